"""What changed on the machine, and when: processes that take CPUs or a disk, what others move over a network, clocks, limits, masks, links,
mounts, numbers of files, workers.

Which process moves what over a network no file of /proc has, so there it is the interface that is named, and only where it carries more.
A change is never called a cause here. Each has the causes to which it could lead by a known mechanism, and is listed by how much of the
ledger's rise these causes have: `HostChange.explains`. One that makes things easier (a limit that is lifted, a process that takes CPUs no
longer) explains no rise. Of processes that do one thing at once, each explains by its own part of it. Those of one name are one change.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from statistics import median
from typing import Any, NamedTuple

from gputop.diagnosis.graph.job import WalkedFacts
from gputop.findings import policy
from gputop.findings.runs import FILES_MOVE
from gputop.findings.sentence import Sentence, filled
from gputop.model.board import Board
from gputop.model.machine import FileSystem, Nic, parse_cpus
from gputop.system.text import clean, counted

EACH_NS = 950_000_000  # ns between two looks; what is looked at is read once a second at most
MOST_KEPT = 256  # changes of a kind that are remembered: a quarter of an hour's, of a busy machine (a choice)
TAKES_BYTES_PER_S = 20_000_000  # of a disk, from which a process takes some of it; of the CPUs, half of one (a choice)
RESTS_NS = 6_000_000_000  # ns without, after which it has ended to
LEVEL_NS = 10_000_000_000  # ns over which a clock and a rate are looked at together: several steps of most jobs (a choice)
CLOCK_PART = 20  # one part in so many of a clock at work is a change (a choice)
CARRIES_BYTES_PER_S, CARRIES_TIMES = 50_000_000, 2  # by which an interface carries more, at least, than before (a choice)
LEAST_FILES = 1000  # files of a file system, from which their number is looked at (a choice)
_CPU = ("cpu-contention", "gil-contention", "slow-transform", "main-thread-preprocessing", "straggler-rank", "gpu-shared")
_DISK = ("disk-io", "memory-pressure", "network-io", "model-load")
_NETWORK = ("network-io", "slow-wire", "comm-fallback", "straggler-rank")
_WAYS: Mapping[str, tuple[str, ...]] = {
    "taker": _CPU, "disk": _DISK, "gpu process": ("gpu-shared",),
    "power limit": ("gpu-throttle",), "clock limit": ("gpu-throttle",), "PCIe lanes": ("pcie-degraded", "h2d-transfer"),
    "NVLinks": ("straggler-rank", "comm-fallback", "slow-wire"), "MIG": ("gpu-shared", "undersized-work"),
    "CPU quota": ("cgroup-throttle", "cpu-contention"), "CPU set": ("affinity", "cpu-contention", "numa-remote"),
    "CPU mask": ("affinity", "cpu-contention", "numa-remote"), "memory limit": ("memory-pressure", "disk-io"),
    "read limit": ("disk-io",), "workers": ("too-few-workers", "slow-transform", "worker-respawn"),
    "mounts": ("disk-io", "network-io"), "network link": ("network-io", "slow-wire", "comm-fallback"),
    "online CPUs": ("cpu-contention", "slow-transform", "too-few-workers"), "scheduling policy": ("cpu-contention",),
    "SM clock": ("gpu-throttle",), "network": _NETWORK, "files": ("disk-io", "network-io"),
    "PCIe generation": ("pcie-degraded", "h2d-transfer"), "OMP_NUM_THREADS": _CPU, "CPUs": ("cpu-contention", "too-few-workers"),
    "CPUs that others take": _CPU, "network links": _NETWORK,
}  # fmt: skip
"""Kind of a change, or of a setting that differs between runs -> causes to which it can lead. A kernel, a driver and a package have none
that is known, so nothing is ascribed to them."""
_MORE_WORKERS = ("worker-oversubscription", "worker-respawn", "memory-pressure")
_LASTS = ("power limit", "clock limit", "PCIe lanes", "PCIe generation", "NVLinks", "MIG", "online CPUs", "network link", "mounts", "files")
"""Kinds whose subjects stay, so that a value which is unreadable for a while can be compared again."""


class Doer(NamedTuple):
    """The processes of one name behind a change."""

    name: str
    pid: int  # of one of them
    processes: int
    much: float  # CPUs or bytes a second, of all
    most: float  # of one


class HostChange(NamedTuple):
    """One change; its words name what is there now, and what was before."""

    t_ns: int
    kind: str
    words: Sentence
    ways: tuple[str, ...]  # none of what makes things easier
    doer: Doer | None = None  # None: a setting

    def explains(self, rise: Mapping[str, float]) -> float:
        """Share of the ledger's ``rise`` (cause -> more of the GPU time) that its causes have, 0 to 1."""
        return explained(self.ways, rise)


def explained(ways: Iterable[str], rise: Mapping[str, float]) -> float:
    """Share of the ledger's ``rise`` that those causes have, 0 to 1."""
    whole = sum(more for more in rise.values() if more > 0.0)
    return sum(max(0.0, rise.get(cause, 0.0)) for cause in ways) / whole if whole > 0.0 else 0.0


def by_explained(found: Iterable[HostChange], rise: Mapping[str, float], since_ns: int) -> list[HostChange]:
    """Changes by how much of the ledger's ``rise`` each could have led to, processes by their part of what those of their kind took; then
    the nearest first."""
    changes, whole = [*found], defaultdict[tuple[str, tuple[str, ...]], float](float)
    for one in changes:
        if one.doer is not None:
            whole[one.kind, one.ways] += one.doer.much

    def order(one: HostChange) -> tuple[float, float, int]:
        share = one.explains(rise)
        part = 1.0 if one.doer is None else one.doer.much / (whole[one.kind, one.ways] or 1.0)
        return -round(share * part, 2), -round(share, 2), abs(one.t_ns - since_ns)

    return sorted(changes, key=order)


def ways_of(setting: str, then: str, now: str) -> tuple[str, ...]:
    """Causes to which another value of a setting can lead: ``power limit, W``, ``files on /data``."""
    return _ways(setting.partition(",")[0].partition(" on ")[0], *(_number(one) for one in (then, now)))


def _number(text: str) -> Any:
    return inf if text == "none" else float(text) if text.replace(".", "", 1).isdecimal() else text


def _ways(kind: str, before: Any, now: Any) -> tuple[str, ...]:
    """Causes to which a value can lead that was another one before; none if it makes things easier."""
    if _is_easier(kind, before, now):
        return ()
    return _MORE_WORKERS if kind == "workers" and now > before else _WAYS.get(kind, ())


_MORE_IS_EASIER = ("power limit", "clock limit", "PCIe lanes", "PCIe generation", "NVLinks", "online CPUs", "SM clock", "CPU quota",
                   "memory limit", "read limit", "CPUs")  # fmt: skip
_LESS_IS_EASIER = ("files", "CPUs that others take")
_NO_LIMIT = ("CPU quota", "memory limit", "read limit")  # kinds of which 0 is none


def _is_easier(kind: str, before: Any, now: Any) -> bool:
    """True if a value makes things easier than the one before, for all that is known."""
    if kind in ("CPU mask", "CPU set") and isinstance(before, str) and isinstance(now, str):
        return not now or bool(before and parse_cpus(before) < parse_cpus(now))
    if kind == "network link" and isinstance(now, tuple):
        return None not in (*before, *now) and all(new >= old for old, new in zip(before, now, strict=True))
    if not all(isinstance(one, (int, float)) for one in (before, now)):
        return False
    if kind in _NO_LIMIT:
        before, now = before or inf, now or inf
    return bool(now > before if kind in _MORE_IS_EASIER else now < before if kind in _LESS_IS_EASIER else False)


class _Busy(NamedTuple):
    """A process that takes CPUs or a disk."""

    name: str
    first_ns: int
    last_ns: int
    most: float


class _Level:
    """A reading that moves all the time, by its medians over `LEVEL_NS`."""

    def __init__(self) -> None:
        self._now: list[float] = []
        self._since_ns = 0
        self.usual: float | None = None  # the median that stands, until another is a change

    def note(self, t_ns: int, value: float) -> float | None:
        """The median of the stretch that ends with this value; None within one."""
        self._since_ns = self._since_ns or t_ns
        self._now.append(value)
        if t_ns - self._since_ns < LEVEL_NS:
            return None
        found, self._now, self._since_ns = median(self._now), [], t_ns
        if self.usual is None:
            self.usual = found
        return found


class Changes:
    """Looks about once a second, and remembers what changed."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Any], Any] = {}  # (kind, subject) -> value
        self._busy: dict[tuple[str, int], _Busy] = {}  # (kind, pid)
        self._logged: set[tuple[str, int]] = set()  # takers that are in the log
        self._due_ns = self._begun_ns = 0
        self._log: dict[tuple[str, bool], deque[HostChange]] = {}  # by kind, and whether it could lead to anything
        self._moved: dict[int, tuple[int, int]] = {}  # pid of a stranger -> (t_ns, bytes moved)
        self._levels: dict[tuple[str, Any], _Level] = {}  # (kind, subject)
        self._carried: dict[str, tuple[int, int]] = {}  # interface -> (t_ns, bytes both ways)

    def note(self, board: Board, facts: WalkedFacts) -> None:
        """Take in the machine as it is now."""
        if board.t_ns < self._due_ns:
            return
        self._due_ns, self._begun_ns = board.t_ns + EACH_NS, self._begun_ns or board.t_ns
        now = dict(_settings(board, facts))
        for key, value in now.items():
            before = self._seen.get(key)
            if before is not None and key[0] == "files" and abs(value - before) <= FILES_MOVE * before:
                now[key] = before  # a number that grows slowly changes when it has grown by so much
            elif before is not None and before != value:
                for words, ways in _told(*key, before, value):
                    self._keep(HostChange(board.t_ns, key[0], words, ways))
        self._seen = {key: value for key, value in self._seen.items() if key[0] in _LASTS} | now
        self._note_busy(board, facts)
        self._note_levels(board, facts)

    def between(self, start_ns: int, end_ns: int) -> list[HostChange]:
        """Changes in a stretch, oldest first."""
        found = (one for kept in self._log.values() for one in kept if start_ns <= one.t_ns <= end_ns)
        return sorted(found, key=lambda one: (one.t_ns, one.kind, one.words))

    def _keep(self, one: HostChange) -> None:
        """Remember a change, together with those of the same name that do the same at about that time. What comes and goes by the hundred
        leaves the others of its time remembered."""
        kept = self._log.setdefault((one.kind, bool(one.ways)), deque(maxlen=MOST_KEPT))
        for i in range(len(kept) - 1, -1, -1) if one.doer is not None else ():
            other = kept[i]
            if abs(other.t_ns - one.t_ns) > LEVEL_NS:
                break
            if other.doer is not None and one.doer is not None and other.doer.name == one.doer.name:
                first, then = other.doer, one.doer
                both = first._replace(
                    processes=first.processes + then.processes, much=first.much + then.much, most=max(first.most, then.most),
                )  # fmt: skip
                kept[i] = other._replace(words=_did(other.kind, both, not other.ways), doer=both)
                return
        kept.append(one)

    def _keep_doer(self, t_ns: int, key: tuple[str, int], one: _Busy, has_ended: bool) -> None:
        doer = Doer(one.name, key[1], 1, one.most, one.most)
        self._keep(HostChange(t_ns, key[0], _did(key[0], doer, has_ended), () if has_ended else _WAYS[key[0]], doer))

    def _note_busy(self, board: Board, facts: WalkedFacts) -> None:
        family = facts.family
        taken = {("taker", one.pid): (one.name, one.cores) for one in facts.takers if one.pid not in family and one.cores >= policy.HALF}
        taken |= {("disk", pid): found for pid, found in self._disk_takers(board, facts).items()}
        for key, (name, much) in taken.items():
            before = self._busy.get(key)
            first_ns, most = (board.t_ns, 0.0) if before is None else (before.first_ns, before.most)
            self._busy[key] = _Busy(name, first_ns, board.t_ns, max(much, most))
            if before is not None and key not in self._logged and before.first_ns > self._begun_ns + policy.WINDOW_NS:
                self._logged.add(key)
                self._keep_doer(first_ns - policy.WINDOW_NS // 2, key, self._busy[key], has_ended=False)
        for key, one in list(self._busy.items()):
            if board.t_ns - one.last_ns >= RESTS_NS:
                del self._busy[key]
                self._logged.discard(key)
                self._keep_doer(one.last_ns, key, one, has_ended=True)

    def _note_levels(self, board: Board, facts: WalkedFacts) -> None:
        """Clocks of GPUs at work, and what interfaces carry."""
        at_work = [gpu for gpu in facts.gpus if gpu.sm_clock_mhz and (gpu.util or 0.0) >= policy.HALF]
        readings = [(("SM clock", gpu.index), gpu.sm_clock_mhz or 0.0) for gpu in at_work]
        for key, value in (*readings, *((("network", name), rate) for name, rate in self._rates(board))):
            level = self._levels.setdefault(key, _Level())
            before, now = level.usual, level.note(board.t_ns, value)
            if now is None or before is None:
                continue
            apart, is_change = now - before, abs(now - before) * CLOCK_PART >= before
            if key[0] == "network":
                is_change = apart >= CARRIES_BYTES_PER_S and now >= CARRIES_TIMES * before
                level.usual = min(before, now)
            if is_change:
                level.usual = now
                words = filled(_LEVELS[key[0]], *_numbers(key, now, before))
                self._keep(HostChange(board.t_ns - LEVEL_NS, key[0], words, _ways(key[0], before, now)))

    def _rates(self, board: Board) -> Iterator[tuple[str, float]]:
        """(interface, bytes a second both ways since the last look) of those with a link."""
        nets = board.host.get("nets")
        for one in nets if isinstance(nets, list) else ():
            count = one.rx_bytes + one.tx_bytes
            before_ns, before = self._carried.get(one.name, (board.t_ns, count))
            self._carried[one.name] = board.t_ns, count
            if board.t_ns > before_ns and one.flaps is not None:
                yield one.name, max(0, count - before) * 1e9 / (board.t_ns - before_ns)

    def _disk_takers(self, board: Board, facts: WalkedFacts) -> dict[int, tuple[str, float]]:
        """Pid -> (name, bytes a second to and from storage) of strangers that take a disk, by their own counters."""
        found, moved = dict[int, tuple[str, float]](), dict[int, tuple[int, int]]()
        own = {proc.pid for job in facts.jobs for proc in (job.trainer, *job.workers)} | facts.family.keys()
        for pid, sample in board.procs.items():
            if pid in own or sample.read_bytes is None:
                continue
            count = sample.read_bytes + (sample.write_bytes or 0)
            t_ns, before = self._moved.get(pid, (sample.t_ns, count))
            moved[pid] = (sample.t_ns, count) if sample.t_ns != t_ns or pid not in self._moved else (t_ns, before)
            if sample.t_ns > t_ns and (rate := (count - before) * 1e9 / (sample.t_ns - t_ns)) >= TAKES_BYTES_PER_S:
                info = board.infos.get(pid)
                found[pid] = clean(info.comm if info is not None else "?", 32), rate
        self._moved = moved
        return found


def _numbers(key: tuple[str, Any], now: float, before: float) -> tuple[Any, float, float]:
    """Facts of a sentence of `_LEVELS`."""
    return (clean(str(key[1]), 32), now / 1e6, before / 1e6) if key[0] == "network" else (key[1], now, before)


def _did(kind: str, doer: Doer, has_ended: bool) -> Sentence:
    """Words for what processes of one name began to take or move, or no longer do."""
    alone, several = _DOES[kind, has_ended]
    most = doer.most if kind == "taker" else doer.most / 1e6
    return filled(alone, doer.name, doer.pid, most) if doer.processes == 1 else filled(several, doer.processes, doer.name, most)


_DOES = {
    ("taker", False): ("{} ({}) began to take {:.1f} CPUs", "{:d} processes {} began to take up to {:.1f} CPUs each"),
    ("taker", True): ("{} ({}) took {:.1f} CPUs no longer", "{:d} processes {} took up to {:.1f} CPUs each no longer"),
    ("disk", False): (
        "{} ({}) began to move {:.0f} MB/s to or from storage", "{:d} processes {} began to move up to {:.0f} MB/s each to or from storage",
    ),
    ("disk", True): (
        "{} ({}) moved {:.0f} MB/s to or from storage no longer",
        "{:d} processes {} moved up to {:.0f} MB/s each to or from storage no longer",
    ),
}  # fmt: skip
"""(kind, whether it has ended) -> words for one process, words for several."""


def _settings(board: Board, facts: WalkedFacts) -> Iterator[tuple[tuple[str, Any], Any]]:
    """((kind, subject), value) of what stays as it is unless it is changed; only what is known."""
    for index, gpu in board.gpus.items():
        for kind, name in (("power limit", "power_limit_w"), ("clock limit", "sm_clock_max_mhz"), ("PCIe lanes", "pcie_width"),
                           ("NVLinks", "nvlink_links")):  # fmt: skip
            if (value := gpu.number(name)) is not None:
                yield (kind, index), value
        if isinstance(mig := gpu.values.get("mig_mode"), bool):
            yield ("MIG", index), mig
        yield ("gpu process", index), frozenset(gpu.compute_pids - facts.family.keys() - {job.trainer.pid for job in facts.jobs})
    for used in facts.gpus:
        if used.best_gen is not None and (used.util or 0.0) >= policy.HALF:
            yield ("PCIe generation", used.index), used.best_gen
    for job in facts.jobs:
        info = job.trainer.info
        yield ("workers", job.trainer.pid), len(job.workers)
        for proc in (job.trainer, *job.workers[:1]):
            if proc.info.cpus_allowed:
                yield ("CPU mask", proc.pid), proc.info.cpus_allowed
        yield ("scheduling policy", job.trainer.pid), info.policy
        if (group := board.cgroups.get(info.cgroup)) is not None:
            limit = group.read_limit
            yield ("CPU quota", group.path), group.quota_cpus or 0.0
            yield ("CPU set", group.path), group.cpuset or ""
            yield ("memory limit", group.path), group.mem_limit_bytes or 0
            yield ("read limit", group.path), 0 if limit is None else limit.bytes_per_s or limit.ios_per_s or 0
    hardware = board.host.get("hardware")
    if (threads := getattr(hardware, "threads", None)) is not None:
        yield ("online CPUs", ""), threads
    for nic in getattr(hardware, "nics", None) or ():
        if isinstance(nic, Nic):
            yield ("network link", nic.name), (nic.is_up, nic.speed_mbit, nic.mtu)
    systems = getattr(hardware, "file_systems", None)
    if systems is not None:
        yield ("mounts", ""), frozenset(one.path for one in systems if isinstance(one, FileSystem))
        for one in systems:
            if isinstance(one, FileSystem) and (one.files or 0) >= LEAST_FILES:
                yield ("files", one.path), one.files


def _told(kind: str, subject: Any, before: Any, now: Any) -> Iterator[tuple[Sentence, tuple[str, ...]]]:
    """(sentence that names what changed, with its value now and before; causes to which it can lead)."""
    if kind == "gpu process":
        yield from ((filled("process {} came to GPU {}", pid, subject), _WAYS[kind]) for pid in sorted(now - before)[:4])
        yield from ((filled("process {} left GPU {}", pid, subject), ()) for pid in sorted(before - now)[:4])
        return
    yield from ((words, _ways(kind, before, now)) for words in _words(kind, subject, before, now))


def _words(kind: str, subject: Any, before: Any, now: Any) -> Iterator[Sentence]:
    if kind in _PLAIN:
        yield filled(_PLAIN[kind], subject, now, before)
    elif kind in _OF_GROUP:
        template, none = _OF_GROUP[kind]
        yield filled(template, clean(str(subject), 64), *(filled(none) if not one else _shown(kind, one) for one in (now, before)))
    elif kind == "MIG":
        yield filled("MIG of GPU {} was switched {}", subject, "on" if now else "off")
    elif kind == "workers":
        yield filled("process {} has {} instead of {}", subject, counted(now, "worker"), before)
    elif kind == "online CPUs":
        yield filled("{} CPUs are online instead of {}", now, before)
    elif kind == "network link":
        yield filled("network link {}: {} instead of {}", clean(str(subject), 32), _link(now), _link(before))
    elif kind == "files":
        yield filled("{} holds {:d} files instead of {:d}", clean(str(subject), 64), now, before)
    elif kind == "mounts":
        yield from (filled("{} was mounted", clean(path, 64)) for path in sorted(now - before)[:4])
        yield from (filled("{} is mounted no longer", clean(path, 64)) for path in sorted(before - now)[:4])


_PLAIN = {
    "power limit": "GPU {} may draw {:.0f} W instead of {:.0f}", "clock limit": "GPU {} may run at {:.0f} MHz instead of {:.0f}",
    "PCIe lanes": "the PCIe link of GPU {} has {:.0f} lanes instead of {:.0f}", "NVLinks": "GPU {} has {:.0f} NVLinks instead of {:.0f}",
    "PCIe generation": "the PCIe link of GPU {} has generation {:.0f} instead of {:.0f}",
    "CPU mask": "process {} may run on CPUs {} instead of {}", "scheduling policy": "process {} has scheduling policy {} instead of {}",
}  # fmt: skip
"""Kind -> words for subject, value now and before."""
_LEVELS = {
    "SM clock": "GPU {} at work runs at {:.0f} MHz instead of {:.0f}",
    "network": "network interface {} carries {:.0f} MB/s instead of {:.0f}; which process's is not known",
}
"""Kind -> the same, for what moves all the time."""
_OF_GROUP = {
    "CPU quota": ("the CPU quota of {} is {} instead of {}", "none"), "CPU set": ("the CPUs of {} are {} instead of {}", "all"),
    "memory limit": ("the memory limit of {} is {} instead of {}", "none"),
    "read limit": ("{} may read {} instead of {}", "without a limit"),
}  # fmt: skip
"""Kind -> (words, word for no limit)."""


def _shown(kind: str, value: Any) -> Sentence:
    if kind == "CPU quota":
        return filled("{:.2f} CPUs", value)
    if kind == "memory limit":
        return filled("{:.1f} GiB", value / 2**30)
    return filled("{:.0f} a second", value) if kind == "read limit" else filled("{}", str(value))


def _link(value: tuple[bool, int | None, int | None]) -> Sentence:
    is_up, speed, mtu = value
    return filled("{}, {} Mbit/s, MTU {}", "up" if is_up else "down", "?" if speed is None else speed, "?" if mtu is None else mtu)
