"""Processes outside the jobs that take CPUs: by their CPU time, and by the probe's counts of preemptions.

A *stranger* is any process outside the jobs; a *taker* is one that takes CPUs. Short-lived programs (a build, a cron job, a shell
loop) come and go between two looks: they are counted by their parent's cutime and cstime (/proc/PID/stat).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.facts import Grower, Mover, Taker
from gputop.diagnosis.facts.waits import KindOf
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import Culprit
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Preempt, ProcInfo, ProcSample
from gputop.model.rates import pair_growth
from gputop.model.roles import Role, hot, program_name
from gputop.system.text import clean

MOST = 12  # takers kept per window
NAMES, PIDS = 5, 5  # names in a sentence; pids per name
LEVELS = 3  # parents to look at: a shell may stand between a program and the process that wanted it
GONE_NS = 2_000_000_000  # ns that an ended process is kept after its last sample has left the window: it ended up to 1 s later


class TakerTrack:
    """CPU time of every process that is no trainer or worker; a process that did not run costs one comparison.

    ``fed``: pid of a process that feeds a trainer without being its child -> pid of that trainer, of which it counts as a program.
    """

    __slots__ = ("_gains", "_pairs", "_recorders", "_strangers")

    def __init__(self) -> None:
        self._strangers: dict[int, Stranger] = {}
        self._recorders: frozenset[int] = frozenset()
        self._pairs: dict[tuple[int, int], Preempt] | None = None
        self._gains: deque[tuple[int, dict[tuple[int, int], int]]] = deque()
        """Per push, the growth since the last one: pairs of an ended process are pruned, its part in the window is kept."""

    def push(self, board: Board, roles: Mapping[int, Role], oldest_ns: int) -> None:
        """Add new samples; forget processes that ended longer than a window ago."""
        strangers, family = self._strangers, hot(roles)
        for pid, sample in board.procs.items():
            known = strangers.get(pid)
            if (known is not None and known.latest is sample) or pid in family:
                continue
            if known is None or known.latest.start_ticks != sample.start_ticks:
                strangers[pid] = Stranger.met(sample, board)
            else:
                known.push(sample, board, oldest_ns)
        if len(strangers) > len(board.procs) - len(family):
            for pid in [pid for pid in strangers if pid not in board.procs and strangers[pid].latest.t_ns <= oldest_ns - GONE_NS]:
                del strangers[pid]
        self._recorders = recorders(strangers, board.header.collector_pid)
        self._gains.append((board.t_ns, self._gained(board, roles)))
        while self._gains and self._gains[0][0] <= oldest_ns:
            self._gains.popleft()

    def _gained(self, board: Board, roles: Mapping[int, Role]) -> dict[tuple[int, int], int]:
        """(trainer, culprit pid) -> ns since the last push that the culprit ran while a thread of the trainer's job was runnable on that
        CPU."""
        before, self._pairs = self._pairs, dict(board.preempts)
        found: dict[tuple[int, int], int] = {}
        if before is None:
            return found
        for pair, preempt in [(pair, preempt) for pair, preempt in self._pairs.items() if before.get(pair) is not preempt]:
            old, owner = before.get(pair), board.threads.get(pair[0])
            role = roles.get(owner.pid if owner is not None else pair[0])
            if role is not None and role.kind != "helper" and role.trainer_pid is not None and preempt.culprit_pid:
                key = role.trainer_pid, preempt.culprit_pid
                found[key] = found.get(key, 0) + pair_growth(old.ns if old is not None else 0, preempt.ns)
        return found

    def behind(self) -> dict[int, dict[int, float]]:
        """Trainer -> pid -> seconds in the window that threads of the trainer's job waited while the process ran on their CPU."""
        found: dict[int, dict[int, float]] = {}
        for _t_ns, gained in self._gains:
            for (trainer, pid), ns in gained.items():
                waits = found.setdefault(trainer, {})
                waits[pid] = waits.get(pid, 0.0) + ns / 1e9
        return found

    def facts(
        self, board: Board, roles: Mapping[int, Role], behind: Mapping[int, Mapping[int, float]], oldest_ns: int
    ) -> tuple[list[Taker], dict[int, dict[str, float]], float]:
        """(strangers that took a noticeable part of a CPU, most first; trainer -> label of its helpers -> CPUs; CPUs of gputop's own
        processes)."""
        taken, helpers, watching = list[tuple[float, int]](), dict[int, dict[str, float]](), 0.0
        for pid, stranger in self._strangers.items():
            old, new = stranger.used[0], stranger.used[-1]
            if len(stranger.used) < 2 or new.t_ns <= oldest_ns:
                continue
            # Mean over the time between its samples, for it is read seldom; over the time until now if it has ended.
            ns = (new.t_ns if pid in board.procs else board.t_ns) - old.t_ns
            cores = (new.own_ns - old.own_ns) / (ns or 1)
            if cores < policy.HARDLY:
                continue
            role = roles.get(pid)
            if role is not None and role.trainer_pid is not None:
                if role.kind == "helper":
                    by_label = helpers.setdefault(role.trainer_pid, {})
                    by_label[role.label] = by_label.get(role.label, 0.0) + cores
            elif pid in self._recorders:
                watching += cores
            else:
                taken.append((cores, pid))
        others = {pid: one for pid, one in self._strangers.items() if pid not in roles and pid not in self._recorders}
        reaped = reaped_cores(others, board, oldest_ns)
        taken.sort(key=lambda one: -one[0])
        found = [self._taker(pid, cores, behind, oldest_ns) for cores, pid in (taken if reaped else taken[:MOST])]
        if reaped:
            found = sorted(gather(found, reaped, others, board), key=lambda taker: -taker.cores)[:MOST]
        return found, helpers, watching

    def _taker(self, pid: int, cores: float, behind: Mapping[int, Mapping[int, float]], oldest_ns: int) -> Taker:
        one, kept_s = self._strangers[pid], sum(waits.get(pid, 0.0) for waits in behind.values())
        return Taker(pid, one.name, cores, kept_s, shares(one.ns_on), one.before_ns(oldest_ns), one.info)

    def growers(self, board: Board, roles: Mapping[int, Role], fed: Mapping[int, int]) -> list[Grower]:
        """Strangers, not started by a job, that hold `policy.GROWN_BYTES` more memory than when they were first seen; most growth first."""
        grown = [(one.latest.rss_bytes - one.first_rss_bytes, pid) for pid, one in self._strangers.items() if pid in board.procs]
        found = [(more, pid) for more, pid in grown if more >= policy.GROWN_BYTES and self._starter(pid, roles, fed) is None]
        named = [(more, pid, self._strangers[pid]) for more, pid in sorted(found, reverse=True)[:MOST]]
        return [Grower(pid, one.name, more, one.info.cgroup if one.info else "") for more, pid, one in named]

    def movers(self, roles: Mapping[int, Role], fed: Mapping[int, int], oldest_ns: int) -> list[Mover]:
        """Strangers, not started by a job, that move `policy.MOVED_BYTES_PER_S` to or from storage; most first."""
        read = {pid: one for pid, one in self._strangers.items() if one.used[-1].t_ns > oldest_ns and pid not in self._recorders}
        moved = [(one.moved_bytes_per_s, pid) for pid, one in read.items()]
        found = [(rate, pid) for rate, pid in moved if rate >= policy.MOVED_BYTES_PER_S and self._starter(pid, roles, fed) is None]
        return [Mover(pid, self._strangers[pid].name, rate) for rate, pid in sorted(found, reverse=True)[:MOST]]

    def ended_ns(self, board: Board, roles: Mapping[int, Role], fed: Mapping[int, int]) -> dict[int, int]:
        """Pid of a trainer or worker -> total CPU time of its programs that have ended, as far as seen while they ran."""
        found: dict[int, int] = {}
        for pid, stranger in self._strangers.items():
            starter = self._starter(pid, roles, fed) if pid not in board.procs else None
            if starter is not None:
                found[starter] = found.get(starter, 0) + stranger.used[-1].own_ns
        return found

    def cores(self, pid: int) -> float | None:
        """CPUs that a process outside the jobs ran on; None if it was read only once."""
        used = self._strangers[pid].used if pid in self._strangers else []
        ns = used[-1].t_ns - used[0].t_ns if used else 0
        return (used[-1].own_ns - used[0].own_ns) / ns if ns > 0 else None

    def others(self, board: Board, roles: Mapping[int, Role]) -> frozenset[int]:
        """Pids of processes that belong to no job's surroundings: those of jobs themselves, and gputop's own."""
        own = (pid for pid, role in roles.items() if role.trainer_pid is not None)
        return frozenset((*own, *self._recorders, board.header.collector_pid))

    def waits_of(self, pid: int, kind_of: KindOf, oldest_ns: int, threads: bool) -> tuple[Counter[str], float, Counter[int]]:
        """(samples in the window of a process outside the jobs by kind of wait, the last one before it if there is none; share of the
        window in which its main thread was runnable; such samples in which another process held a mutex that it waited for, by that
        process). With ``threads`` a sample is that of a thread where the main thread may wait for it."""
        stranger = self._strangers.get(pid)
        recent = () if stranger is None else stranger.asked_since(oldest_ns) or stranger.asked[-1:]
        ready = _wanted(recent[0], recent[-1])[1] if len(recent) > 1 else 0.0
        locked_by = Counter(one.locked_by for one in recent if one.locked_by is not None)
        ran = _threads_that_ran(stranger.asked) if stranger is not None and threads else set[int]()
        return Counter(_kind_with_threads(one, kind_of, ran) for one in recent), ready, locked_by

    def arriving(self, pid: int, oldest_ns: int) -> float:
        """Share of the window in which data kept arriving at a TCP connection of a process outside the jobs; 0 where none are read."""
        stranger = self._strangers.get(pid)
        read = [one for one in (stranger.asked_since(oldest_ns) if stranger is not None else ()) if one.wire_arriving_ns is not None]
        ns = read[-1].t_ns - read[0].t_ns if read else 0
        return min(1.0, ((read[-1].wire_arriving_ns or 0) - (read[0].wire_arriving_ns or 0)) / ns) if ns > 0 else 0.0

    def pages_of(self, pid: int, oldest_ns: int) -> tuple[float, float]:
        """The values of `Member.kernel` and `Member.paging` of a process outside the jobs."""
        recent = self._strangers[pid].asked_since(oldest_ns) if pid in self._strangers else []
        return _kernel_and_paging(recent[0], recent[-1]) if len(recent) > 1 else (0.0, 0.0)

    def samples_of(self, pid: int) -> tuple[ProcSample, ...]:
        """Samples of the waits of a process outside the jobs, from `BEFORE_NS` before the window on."""
        return self._strangers[pid].asked if pid in self._strangers else ()

    def starters(self, roles: Mapping[int, Role], fed: Mapping[int, int]) -> dict[int, int]:
        """Pid of a program -> pid of the trainer or worker that started it, or that it feeds; only programs with samples of their waits."""
        asked = ((pid, one.info) for pid, one in self._strangers.items() if one.asked)
        parents = {pid: -pid if info is None or pid in fed else info.ppid for pid, info in asked}  # hundreds may have the same one
        found = {parent: self._starter(pid, roles, fed) for parent, pid in {parent: pid for pid, parent in parents.items()}.items()}
        return {pid: starter for pid, parent in parents.items() if (starter := found[parent]) is not None}

    def programs_of(self, starters: Mapping[int, int], board: Board) -> dict[int, dict[int, str]]:
        """Pid of a starter -> {pid: name} of its programs that live."""
        return self._names(starters, lambda pid, _: pid in board.procs)

    def stopped(self, board: Board, starters: Mapping[int, int]) -> dict[int, dict[int, str]]:
        """Pid of a starter -> {pid: name} of its programs that are stopped."""
        return self._names(starters, lambda pid, stranger: pid in board.procs and stranger.latest.state in waits.STOPPED_STATES)

    def mute(self, board: Board, starters: Mapping[int, int]) -> dict[int, dict[int, str]]:
        """Pid of a starter -> {pid: name} of its programs that have not run for `policy.STUCK_S`, blocked writing errors that no process
        reads."""
        return self._names(starters, lambda _pid, stranger: _is_mute(stranger, board))

    def _names(self, starters: Mapping[int, int], has: Callable[[int, Stranger], bool]) -> dict[int, dict[int, str]]:
        found: dict[int, dict[int, str]] = {}
        for pid, starter in starters.items():
            stranger = self._strangers[pid]
            if has(pid, stranger):
                found.setdefault(starter, {})[pid] = stranger.name
        return found

    def met(self, starters: Mapping[int, int], fed: Mapping[int, int], kind_of: KindOf, oldest_ns: int) -> dict[int, Counter[str]]:
        """Pid of a starter -> number of samples in the window of its programs, by kind of wait.

        Samples of programs that are ahead of their reader are left out: no process waits for these. Polls of a feeder that the trainer did
        not start are left out: it polls for the trainer's requests.
        """
        found: dict[int, Counter[str]] = {}
        for pid, starter in starters.items():
            stranger = self._strangers[pid]
            recent = stranger.asked_since(oldest_ns)
            late = [sample for sample in recent if not waits.is_ahead(sample.wchan)]
            kinds = _kinds_of(late, kind_of)
            if len(recent) == len(late) > 1 and kinds[waits.ONCPU]:
                longer = _kinds_of(stranger.asked, kind_of) if len(kinds) == 1 else kinds
                kinds = _by_counters(kinds, longer, min(1.0, sum(_wanted(recent[0], recent[-1]))))
            if pid in fed and (stranger.info is None or stranger.info.ppid != starter):
                del kinds[waits.POLL]
            if starter in found:
                found[starter].update(kinds)
            else:
                found[starter] = kinds
        return found

    def programs(self, starters: Mapping[int, int], oldest_ns: int) -> dict[int, tuple[float, float]]:
        """Pid of a starter -> (CPUs that its programs ran on, CPUs that their main threads waited for)."""
        found: dict[int, tuple[float, float]] = {}
        for pid, starter in starters.items():
            recent = self._strangers[pid].asked_since(oldest_ns)
            if len(recent) > 1:
                run, waited = found.get(starter, (0.0, 0.0))
                more_run, more_waited = _wanted(recent[0], recent[-1])
                found[starter] = run + more_run, waited + more_waited
        return found

    def _starter(self, pid: int, roles: Mapping[int, Role], fed: Mapping[int, int]) -> int | None:
        """Pid of the trainer that a program feeds, or of the nearest trainer or worker above it within `LEVELS` parents; None without
        one."""
        if pid in fed:
            return fed[pid]
        for _ in range(LEVELS):
            stranger = self._strangers.get(pid)
            if stranger is None or stranger.info is None:
                break
            pid = stranger.info.ppid
            role = roles.get(pid)
            if role is not None and role.kind in ("trainer", "worker"):
                return pid
        return None


def _kinds_of(samples: Sequence[ProcSample], kind_of: KindOf) -> Counter[str]:
    return Counter([kind_of(sample.state, sample.syscall, sample.syscall_arg, sample.wchan) for sample in samples])


_VAGUE = (waits.LOCK, waits.POLL, waits.TIMER, waits.CHILD, waits.UNKNOWN)  # sleeps of a main thread that leaves the work to its threads
_OF_THREADS = (waits.DISK, waits.NETWORK, waits.PIPE)  # kinds of sleep of a thread that say more, what decides first


def _kind_with_threads(sample: ProcSample, kind_of: KindOf, ran: Container[int]) -> str:
    """The kind of wait of a process: of its main thread, or of a thread at work if the main thread leaves the work to its threads."""
    kind = kind_of(sample.state, sample.syscall, sample.syscall_arg, sample.wchan)
    if kind not in _VAGUE:
        return kind
    met = {
        kind_of("D" if one.state == "D" else "S", one.syscall, one.syscall_arg, one.wchan)
        for one in sample.threads if one.tid in ran and one.tid != sample.pid and not waits.is_accepting(one.wchan)
    }  # fmt: skip
    return next((other for other in _OF_THREADS if other in met), kind)


def _threads_that_ran(samples: Sequence[ProcSample]) -> set[int]:
    """Threads that ran between two of the samples."""
    first, found = dict[int, int](), set[int]()
    for thread in (thread for sample in samples for thread in sample.threads):
        if thread.oncpu_ns > first.setdefault(thread.tid, thread.oncpu_ns):
            found.add(thread.tid)
    return found


def _by_counters(recent: Counter[str], longer: Counter[str], wanted: float) -> Counter[str]:
    """The samples, with at most the running share in which the program ``wanted`` a CPU: a program that ends a read while gputop looks
    waits for gputop's CPU. The other samples are spread over its sleeps, by the samples of a longer time if the recent ones have none."""
    samples = recent.total()
    running = min(recent[waits.ONCPU], round(samples * wanted))
    asleep = {kind: times for kind, times in recent.items() if kind != waits.ONCPU}
    asleep = asleep or {kind: times for kind, times in longer.items() if kind not in (waits.ONCPU, waits.UNKNOWN)}
    if not asleep:
        return Counter({waits.ONCPU: recent[waits.ONCPU]})
    part = (samples - running) / sum(asleep.values())
    found = {kind: round(part * times) for kind, times in asleep.items()} | {waits.ONCPU: running}
    return Counter({kind: times for kind, times in found.items() if times > 0})


def _wanted(old: ProcSample, new: ProcSample) -> tuple[float, float]:
    ns = max(1, new.t_ns - old.t_ns)
    return (new.utime_ns + new.stime_ns - old.utime_ns - old.stime_ns) / ns, max(0, (new.run_delay_ns or 0) - (old.run_delay_ns or 0)) / ns


def _kernel_and_paging(old: ProcSample, new: ProcSample) -> tuple[float, float]:
    """(part of the CPU time that was spent in the kernel, part of the sleeps that were for pages) between two samples of a process. Each
    major fault of its one thread is a sleep; of several threads it is not known which one slept."""
    in_kernel, ran = new.stime_ns - old.stime_ns, new.utime_ns + new.stime_ns - old.utime_ns - old.stime_ns
    kernel = min(1.0, max(0.0, in_kernel / ran)) if ran > 0 else 0.0
    faults, slept = ((getattr(new, name) or 0) - (getattr(old, name) or 0) for name in ("majflt", "vol"))
    few = faults * SECOND_NS < policy.FAULTS_PER_S * (new.t_ns - old.t_ns)
    return kernel, min(1.0, faults / slept) if new.num_threads == 1 and slept > 0 and not few else 0.0


def _is_mute(stranger: Stranger, board: Board) -> bool:
    last, first = stranger.latest, stranger.used[0]
    stands = board.t_ns - first.t_ns >= policy.STUCK_S * 1e9 and first.own_ns == stranger.used[-1].own_ns
    return stands and waits.is_mute(board.header.machine, last.syscall, last.syscall_arg, last.wchan)


def blame(takers: list[Taker], seconds: float) -> tuple[Culprit, ...]:
    """The takers as culprits, with the CPU seconds that they took in a window of ``seconds``."""
    return tuple(Culprit(taker.pid, taker.name, round(taker.cores * seconds, 3)) for taker in takers)


def names_of(takers: list[Taker]) -> list[str]:
    """The first names of the takers, each with its first pids."""
    pids: dict[tuple[str, str], list[str]] = {}
    for taker in takers:
        pids.setdefault((taker.name, _started(taker)), []).append(str(taker.pid))
    told = [
        filled("{} ({}{})", name, ", ".join(some[:PIDS]), _more(len(some) - PIDS))
        + (filled(" and {} {}", started, "it starts" if len(some) == 1 else "they start") if started else "")
        for (name, started), some in pids.items()
    ]
    return told[:NAMES] + ["others"] * (len(told) > NAMES)


def _started(taker: Taker) -> str:
    """Words for the programs that a taker starts: the name with most CPU time, if some were seen; empty if it starts none."""
    if not taker.spawns:
        return ""
    taken: Counter[str] = Counter()
    for name, ns in taker.started.values():
        taken[name] += ns
    return f"the {taken.most_common(1)[0][0]}" if taken else "what"


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


BEFORE_NS = 4_000_000_000  # ns before the window for which samples of waits are kept
LOADS_BELOW = 3  # levels below the collector: sudo, sudo's own child, and the process that loads the probes


class Used(NamedTuple):
    """CPU time in ns until ``t_ns``, of the process itself and of children that it reaped; bytes moved to and from storage (None:
    unreadable); and the CPU on which it ran last, in the kernel's numbering (/proc/PID/stat 39)."""

    t_ns: int
    own_ns: int
    children_ns: int
    moved_bytes: int | None
    cpu: int | None = None


class Stranger(Struct):
    """One process outside the jobs; kept for as long as its end may lie in the window."""

    latest: ProcSample
    name: str
    info: ProcInfo | None
    used: list[Used]  # of the window. There are hundreds of strangers: whole samples, and a deque for each, would take megabytes.
    began: Used  # at the last sample at which it rested
    first_rss_bytes: int
    asked: tuple[ProcSample, ...] = ()
    """Samples that have a wait, in the window and a few seconds before it; only a program of a trainer or worker has such samples."""

    @classmethod
    def met(cls, sample: ProcSample, board: Board) -> Stranger:
        """A stranger that has not been seen before."""
        used = _used(sample)
        held_bytes = 0 if sample.t_ns - born_ns(sample, board) < policy.YOUNG_NS else sample.rss_bytes
        return cls(sample, name_of(board, sample.pid), board.infos.get(sample.pid), [used], used, held_bytes, _asked(sample))

    def push(self, sample: ProcSample, board: Board, oldest_ns: int) -> None:
        """Add the process's next sample."""
        info = board.infos.get(sample.pid)
        if info is not None and info is not self.info:
            self.info, self.name = info, name_of(board, sample.pid)
        used, last = _used(sample), self.used[-1]
        if used.own_ns - last.own_ns < policy.TENTH * (used.t_ns - last.t_ns):
            self.began = used
        self.latest = sample
        asked = _asked(sample)
        if asked or self.asked:
            self.asked = tuple([one for one in self.asked if one.t_ns > oldest_ns - BEFORE_NS]) + asked
        self.used.append(used)
        while len(self.used) > 2 and (self.used[1].t_ns <= oldest_ns or self.used[0].t_ns <= oldest_ns - BEFORE_NS):
            del self.used[0]  # it rested until it woke in the window: its mean since then would hide what it takes now

    def asked_since(self, t_ns: int) -> list[ProcSample]:
        """Samples of `asked` that are later than ``t_ns``."""
        return [sample for sample in self.asked if sample.t_ns > t_ns]

    @property
    def ns_on(self) -> Counter[int]:
        """CPU -> ns that the process ran in the window, by the CPU of each later sample; empty if unknown."""
        taken: Counter[int] = Counter()
        for old, new in pairwise(self.used):
            if new.cpu is not None and new.own_ns > old.own_ns:
                taken[new.cpu] += new.own_ns - old.own_ns
        return taken

    @property
    def moved_bytes_per_s(self) -> float:
        """Bytes per second moved to and from storage over the window; 0 if not readable."""
        old, new = self.used[0], self.used[-1]
        if old.moved_bytes is None or new.moved_bytes is None or new.t_ns <= old.t_ns:
            return 0.0
        return (new.moved_bytes - old.moved_bytes) * SECOND_NS / (new.t_ns - old.t_ns)

    def before_ns(self, oldest_ns: int) -> int:
        """CPU time in ns that the process had taken when the window began, or when it began to run, if that was shortly before."""
        first = self.used[0]
        return (self.began if oldest_ns - policy.LEAD_NS <= self.began.t_ns < first.t_ns else first).own_ns


def shares(ns_on: Mapping[int, int]) -> dict[int, float]:
    """CPU -> its share of the total time."""
    total = sum(ns_on.values())
    return {cpu: ns / total for cpu, ns in ns_on.items() if total}


def recorders(strangers: Mapping[int, Stranger], collector_pid: int) -> frozenset[int]:
    """Pids of the processes that make this stream: the collector, the gputop that started it, and the collector's children, e.g. to load
    the probes.

    Their CPU time is shown on the screen, and is no trouble of the training's. They are found by pid, for any process may have the name
    gputop.
    """
    collector = strangers.get(collector_pid)
    if collector is None or collector.info is None:
        return frozenset()
    parent = strangers.get(collector.info.ppid)
    found = {collector_pid}
    for _ in range(LOADS_BELOW):
        found |= {pid for pid, one in strangers.items() if one.info is not None and one.info.ppid in found}
    return frozenset(found | {collector.info.ppid} if _is_gputop(parent) else found)


def _is_gputop(process: Stranger | None) -> bool:
    """True if the program itself is gputop; a title is no proof."""
    return process is not None and process.info is not None and program_name(process.info, titled=False) == "gputop"


def born_ns(sample: ProcSample, board: Board) -> int:
    """When the process was started, on the clock of the samples, ns."""
    return sample.start_ticks * SECOND_NS // board.header.clock_tick_hz


def _asked(sample: ProcSample) -> tuple[ProcSample, ...]:
    return () if sample.syscall is None and sample.wchan is None else (sample,)


def _used(sample: ProcSample) -> Used:
    moved = None if sample.read_bytes is None or sample.write_bytes is None else sample.read_bytes + sample.write_bytes
    return Used(sample.t_ns, sample.utime_ns + sample.stime_ns, sample.children_ns or 0, moved, sample.processor)


def name_of(board: Board, pid: int) -> str:
    """The name by which people know the process."""
    info = board.infos.get(pid)
    if info is None:
        return f"pid {pid}"
    name = program_name(info)
    return name if name != "python" else clean(info.comm, 32)


SPAWN_LEVELS = 6  # parents to look at: between make and the compiler stand a make of a folder, a shell and the compiler's driver
_INIT = 1  # pid of init: it reaps all orphans, and did not start them


def gather(takers: list[Taker], reaped: Mapping[int, float], strangers: Mapping[int, Stranger], board: Board) -> list[Taker]:
    """The takers, with short-lived programs counted by the process that starts them. ``reaped``: see `reaped_cores`."""
    tops = {pid: top for pid in strangers if (top := _top(pid, reaped, strangers)) is not None}
    alone = {taker.pid: taker for taker in takers}
    members: dict[int, list[int]] = {}
    for pid, top in tops.items():
        if pid in reaped or _is_short(strangers[pid], board):
            members.setdefault(top, []).append(pid)
    gathered = []
    for top, pids in members.items():
        ns_on = Counter[int]()
        for pid in pids:
            ns_on.update(_ns_on(strangers[pid], pid == top))
        own = [alone.pop(pid) for pid in pids if pid in alone]
        # Programs that live now are reaped later: they are taken to use as many CPUs as the ones reaped in the window.
        gathered.append(Taker(
            top, strangers[top].name, reaped[top] + sum(one.cores for one in own if one.pid == top), sum(one.preempted_s for one in own),
            shares(ns_on), info=strangers[top].info, spawns=True,
            started={pid: (strangers[pid].name, strangers[pid].used[-1].own_ns) for pid in pids if pid != top},
        ))  # fmt: skip
    return [*alone.values(), *gathered]


def _ns_on(stranger: Stranger, stays: bool) -> Counter[int]:
    """CPU -> ns that the process ran in the window; for a short-lived process (not ``stays``) in all its life."""
    first = stranger.used[0]
    return stranger.ns_on + Counter({first.cpu: first.own_ns} if first.cpu is not None and not stays else {})


def reaped_cores(strangers: Mapping[int, Stranger], board: Board, oldest_ns: int) -> dict[int, float]:
    """Pid -> CPUs that its reaped short-lived children took, if noticeable."""
    apart, found = _apart(strangers, board, oldest_ns), dict[int, float]()
    for pid, stranger in strangers.items():
        old, new = stranger.used[0], stranger.used[-1]
        if new.children_ns > old.children_ns and new.t_ns > oldest_ns and pid != _INIT and pid in board.procs:
            cores = (new.children_ns - old.children_ns - apart.get(pid, 0)) / (new.t_ns - old.t_ns)
            if policy.TENTH <= cores <= 2 * board.header.cpus:
                found[pid] = min(cores, board.header.cpus)  # a part was taken before the window
    return found


def _apart(strangers: Mapping[int, Stranger], board: Board, oldest_ns: int) -> dict[int, int]:
    """Pid -> ns of reaped children that were taken before the window, or are counted for the children themselves."""
    ended: dict[int, list[int]] = {}
    for pid, stranger in strangers.items():
        if pid not in board.procs and stranger.info is not None:
            ended.setdefault(stranger.info.ppid, []).append(pid)

    told = _counted_ns(ended, strangers, board, oldest_ns)
    return {parent: sum(told.get(pid, 0) for pid in pids) for parent, pids in ended.items() if parent in board.procs}


def _counted_ns(ended: Mapping[int, list[int]], strangers: Mapping[int, Stranger], board: Board, oldest_ns: int) -> dict[int, int]:
    """Pid of each ended process -> its CPU time in ns, including ended descendants, that is not to be counted again; deepest first. Cycles
    in recorded parents are ignored."""
    told: dict[int, int] = {}
    order = [pid for parent, pids in ended.items() if parent in board.procs for pid in pids]
    for pid in order:  # children are appended, so descendants come after their ancestors
        order += ended.get(pid, ())
    for pid in reversed(order):
        stranger = strangers[pid]
        old, new = stranger.used[0], stranger.used[-1]
        if _is_short(stranger, board):
            told[pid] = old.own_ns + old.children_ns if old.t_ns <= oldest_ns else 0
        else:
            # It ran on, and may have reaped children, after its last sample: as much again as in the window is left out.
            below_ns = sum(told[child] for child in ended.get(pid, ()))
            told[pid] = new.own_ns + new.own_ns - old.own_ns + max(new.children_ns, below_ns)
    return told


def _is_short(stranger: Stranger, board: Board) -> bool:
    return stranger.latest.t_ns - born_ns(stranger.latest, board) < policy.SHORT_LIVED_NS


def _top(pid: int, reaped: Mapping[int, float], strangers: Mapping[int, Stranger]) -> int | None:
    """Pid of the highest process, from ``pid`` upwards, that has reaped short-lived children; None without one."""
    top = pid if pid in reaped else None
    for _ in range(SPAWN_LEVELS):
        stranger = strangers.get(pid)
        if stranger is None or stranger.info is None:
            break
        pid = stranger.info.ppid
        top = pid if pid in reaped else top
    return top


def tree_ns(board: Board, pid: int) -> int:
    """CPU time in ns of a process, of children it has reaped, and of all live descendants."""
    below: dict[int, list[int]] = {}
    for info in board.infos.values():
        below.setdefault(info.ppid, []).append(info.pid)
    total, due = 0, [pid]
    while due:
        one = due.pop()
        due += below.pop(one, [])
        if (sample := board.procs.get(one)) is not None:
            total += sample.utime_ns + sample.stime_ns + (sample.children_ns or 0)
    return total
