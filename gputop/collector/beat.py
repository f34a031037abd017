"""The beat: absolute deadlines, lateness counted, one frame per tick.

The collector is a process of its own. It keeps its beat while a screen draws, holds the probes' descriptors, and ends by
itself when nobody reads it any more. Sources are read in the order of `REGISTRY`; each may use what earlier ones left in the
beat.
"""

from __future__ import annotations

import importlib
import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec

from gputop.model import clocks, roles
from gputop.model.frame import Frame, Gpu, Header, ProcInfo, SelfCost, SourceState
from gputop.sources import Beat, Settings, Source, Unavailable
from gputop.system import crash
from gputop.system.errors import UserError
from gputop.system.memory import return_pages
from gputop.system.priority import BEAT, MOST_SHARE, Place, raise_priority
from gputop.system.program import __version__
from gputop.system.text import clean

_UNFIT = (OverflowError, TypeError, ValueError)
"""What encoding raises."""
_SAMPLE = ("index", "t_ns", "missing")
KEY_EVERY_NS = 10_000_000_000
REOPEN_EVERY_NS = 5_000_000_000
COST_EVERY_NS = 1_000_000_000
ROLES_EVERY_NS = 1_000_000_000  # ns between two looks who is who; while there is nobody to watch each beat looks
ROLES_SHARE = 0.02  # of one CPU, what that may take: 20,000 processes cost some 60 ms
LOOK_EVERY_NS = 1_000_000_000
"""How often it is looked which of the missing sources are to be opened again."""
STOPS_WITHIN_S = 0.5
"""It is looked so often whether to stop, however long the beat."""
BEHIND_DRIVER_NS = 8_000_000
"""How far our beat lies behind that of NVML's threads: when we begin, most of them are done and need the interpreter no more."""


class Entry(NamedTuple):
    """One source: its name, and where its class is; it is imported only when it is opened."""

    name: str
    module: str
    cls: str
    off: Callable[[Settings], str | None] = lambda _: None
    """Why it is not to be opened, None where it is; an empty text is told to nobody."""
    reopens: bool = True
    """Whether to try again when it could not be opened: not where that may ask for a password."""


REGISTRY = (
    Entry("procfs", "gputop.sources.procfs", "ProcfsSource"),
    Entry("host", "gputop.sources.host", "HostSource"),
    Entry("hardware", "gputop.sources.hardware", "HardwareSource", lambda s: None if s.root == "/" else ""),  # psutil reads no other root
    Entry("cgroup", "gputop.sources.cgroup", "CgroupSource"),
    Entry("ebpf", "gputop.sources.ebpf.source", "EbpfSource", lambda s: None if s.ebpf else _without_ebpf(s), reopens=False),
    Entry("perf", "gputop.sources.perf", "PerfSource"),
    Entry("nvml", "gputop.sources.nvml", "NvmlSource", lambda _: "gputop demo simulates the GPU" if _is_simulated() else None),
    Entry("simulated", "gputop.sources.simulated", "SimulatedSource", lambda _: None if _is_simulated() else ""),
    Entry("marks", "gputop.sources.marks", "MarksSource"),
)
"""In reading order: NVML after those that read /proc, since its threads read while they do."""


class Sink(Protocol):
    """Where frames go. ``send`` returns False when the frame was dropped because the reader is too slow."""

    def send(self, frame: Frame) -> bool: ...


def make_header(settings: Settings) -> Header:
    """The stream's first block, from this machine (uname, /proc/sys/kernel/random/boot_id, sysconf)."""
    uname = os.uname()
    now = clocks.read()
    return Header(
        gputop=__version__,
        host=uname.nodename,
        kernel=uname.release,
        boot_id=_read_text("/proc/sys/kernel/random/boot_id"),
        t_ns=now.t_ns,
        unix_ns=now.unix_ns,
        interval_ns=settings.interval_ns,
        clock_tick_hz=os.sysconf("SC_CLK_TCK"),
        cpus=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        collector_pid=os.getpid(),
        pid_namespace=_inode("/proc/self/ns/pid"),
        simulated=_is_simulated(),
        machine=uname.machine,
        autogroup=_read_text("/proc/sys/kernel/sched_autogroup_enabled") == "1",
        slept=((now.t_ns, now.slept_ns),),
    )


class Collector:
    """Opens the sources and sends one frame per tick until `stop` is called or the reader leaves."""

    def __init__(self, settings: Settings, sink: Sink, leaves_root: bool = False) -> None:
        """``leaves_root``: after `sudo gputop` its process is for nothing but to collect, and becomes the user's when it can."""
        self.settings = settings
        self._sink = sink
        self._sources: dict[str, Source] = {}
        self._closed: dict[str, tuple[int, SourceState]] = {}
        """Sources that are not open: when that was tried, or went wrong, and the reason."""
        self._states: dict[str, SourceState] = {}
        self._unsent: dict[str, SourceState] = {}
        self._infos: dict[int, ProcInfo] = {}
        self._open_due_ns = 0
        self._hot: frozenset[int] = frozenset()
        self._alone: frozenset[int] = frozenset()
        self._trainers: frozenset[int] = frozenset()
        self._programs: frozenset[int] = frozenset()
        self._ends: frozenset[int] = frozenset()
        """Who writes what trainers without workers read from."""
        self._roles_due = True
        self._roles_due_ns = 0
        self._gpu_pids: frozenset[int] = frozenset()
        """Processes with a context on one of the GPUs."""
        self._dropped = self._read_ns = 0
        self._nvml: dict[int, tuple[int, int]] = {}
        """GPU -> time and number of its NVML calls, as last told."""
        self._place = Place(BEAT, MOST_SHARE, raise_priority)
        self._unfit = ""
        """What was said of the first frame that could not be sent."""
        self._may_leave_root = leaves_root and os.geteuid() == 0 and bool(os.environ.get("SUDO_UID"))
        self.stopping = False
        """Whether it was told to `stop`."""

    def stop(self) -> None:
        """End after the current tick."""
        self.stopping = True

    def run(self, ticks: int | None = None, wait: Callable[[float], None] = time.sleep) -> None:
        """Beat until stopped, or for ``ticks`` ticks. What the sink raises ends it, and a source's UserError."""
        try:
            # Before the first frame gets its time, for this may take longer than a beat.
            self._open_missing(time.monotonic_ns())
            self._place.take()
            self._tell_of_place()
            self._beat(ticks, wait)
        finally:
            self.close()

    def _beat(self, ticks: int | None, wait: Callable[[float], None]) -> None:
        interval = self.settings.interval_ns
        last_sent, seq, key_due = 0, 0, 0
        deadline = time.monotonic_ns()
        if not self.settings.everyone:
            deadline += min(BEHIND_DRIVER_NS, interval // 8) - deadline % interval
        while not self.stopping and (ticks is None or seq < ticks):
            now = time.monotonic_ns()
            late = max(0, now - deadline) if seq else 0
            missed = max(0, (deadline - last_sent) // interval - 1) if seq else 0
            key = now >= key_due
            if not self._send(self._read(Frame(seq, now, late, missed, key))):
                self._dropped += 1
                key_due = 0
            elif key:
                key_due = now + KEY_EVERY_NS - self.settings.interval_ns // 2  # no beat more for one that comes a little early
                return_pages()
            if self._leave_root():
                key_due = 0  # what can be read now, and what no more
            ended = time.monotonic_ns()
            if self._place.note(ended):
                self._tell_of_place()
            # The first frame takes long, and stands between two beats; a single look has no beats but its own.
            alone = self.settings.everyone and not seq
            following = ended + interval if alone else next_deadline(deadline, now if seq else ended, ended, interval)
            last_sent, deadline, seq = deadline, following, seq + 1
            while seq != ticks and (left := deadline - time.monotonic_ns()) > 0 and not self.stopping:
                wait(min(left / 1e9, STOPS_WITHIN_S))

    def _tell_of_place(self) -> None:
        reason, remedy = self._place.reason, "it asks for it again once it takes less, a minute later at the earliest"
        self._note(SourceState("beat", "partial" if reason else "ok", reason, remedy if reason else "", {"priority": self._place.told}))

    def _send(self, frame: Frame) -> bool:
        """Whether it was not dropped. One that the stream cannot hold costs the GPUs' samples that are to blame, else itself."""
        try:
            return self._sink.send(frame)
        except _UNFIT as error:
            self._unfit = self._unfit or clean(crash.log(error))
        frame.gpus = [_fitting(gpu, self._unfit) for gpu in frame.gpus]
        try:
            return self._sink.send(frame)
        except _UNFIT:
            return False

    def close(self) -> None:
        """Close every source that is open."""
        while self._sources:
            _close(self._sources.popitem()[1])

    @property
    def _all_ready(self) -> bool:
        return all(getattr(source, "ready", True) for source in self._sources.values())

    def _leave_root(self) -> bool:
        """After `sudo gputop`: once the probes are loaded, go on as the user who typed it; whether that was now."""
        if self._may_leave_root and self._all_ready:
            self._may_leave_root = False
            from gputop.sources.ebpf.privilege import drop_to_invoking_user

            return drop_to_invoking_user(keep_probing=True, sealed=not self.settings.sudo)
        return False

    def _read(self, frame: Frame) -> Frame:
        if frame.t_ns >= self._open_due_ns:
            self._open_missing(frame.t_ns)
        wakers = (self._told_by("wakers") | self._ends) - self._hot
        beat = Beat(frame.t_ns, frame.seq, frame.key, self._gpu_pids, self._hot, self._alone, self._trainers, wakers, self._programs)
        beat.loading = not self._all_ready
        started = time.thread_time_ns()
        for name in list(self._sources):
            self._read_source(name, beat, frame)
        for state in beat.changed:
            self._note(state)
        frame.sources.extend(self._states.values() if frame.key else self._unsent.values())
        self._unsent.clear()
        self._follow_roles(frame)
        self._nvml |= {gpu.index: (gpu.nvml_ns, gpu.nvml_calls or 0) for gpu in frame.gpus if gpu.nvml_ns is not None}
        self._read_ns += time.thread_time_ns() - started
        if frame.key or frame.t_ns % COST_EVERY_NS < self.settings.interval_ns:
            frame.cost = self._cost()
        return frame

    def _read_source(self, name: str, beat: Beat, frame: Frame) -> None:
        """A bug in one source costs what that one reads, for some seconds; the others go on."""
        try:
            self._sources[name].read(beat, frame)
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is
            state = _broken(next(one for one in REGISTRY if one.name == name), error)
            self._closed[name] = beat.t_ns, state
            beat.changed.append(state)
            _close(self._sources.pop(name))

    def _note(self, state: SourceState) -> None:
        if self._states.get(state.name) != state:
            self._states[state.name] = self._unsent[state.name] = state

    def _open_missing(self, now: int) -> None:
        self._open_due_ns = now + LOOK_EVERY_NS
        for entry in REGISTRY:
            tried = self._closed.get(entry.name)
            if entry.name in self._sources or (tried and (not entry.reopens or now - tried[0] < REOPEN_EVERY_NS)):
                continue
            off = entry.off(self.settings)
            if off is None:
                self._open(entry, now)
            elif off:
                self._note(SourceState(entry.name, "off", off))

    def _open(self, entry: Entry, now: int) -> None:
        name = entry.name
        try:
            source: Source = getattr(importlib.import_module(entry.module), entry.cls)(self.settings)
            state = source.open()
            self._sources[name] = source
            self._sources = {one.name: self._sources[one.name] for one in REGISTRY if one.name in self._sources}
        except Unavailable as why:
            state = SourceState(name, "unavailable", why.reason, why.remedy)
        except ImportError as why:
            state = SourceState(name, "unavailable", f"cannot be loaded: {why}", "install gputop again with its dependencies")
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - as in reading
            state = _broken(entry, error)
        if name not in self._sources:
            self._closed[name] = (now, state)
        self._note(state)

    def _follow_roles(self, frame: Frame) -> None:
        """Find out who must be read each tick: trainers and workers, whenever processes came, went or changed."""
        for pid in frame.gone:
            self._infos.pop(pid, None)
        for info in frame.infos:
            self._infos[info.pid] = info
        gpu_pids = self._told_by("pids")
        changed = bool(frame.infos or frame.gone)
        self._roles_due |= changed or gpu_pids != self._gpu_pids
        self._gpu_pids = gpu_pids
        if self._roles_due and frame.t_ns >= self._roles_due_ns:
            self._roles_due, started = False, time.thread_time_ns()
            found = roles.assign(self._infos, gpu_pids)
            self._hot, self._alone = roles.hot(found), roles.without_workers(found)
            self._trainers = frozenset(pid for pid, role in found.items() if role.kind == "trainer")
            self._programs = roles.children_of(self._infos, self._alone)
            rest_ns = int((time.thread_time_ns() - started) / ROLES_SHARE)
            self._roles_due_ns = frame.t_ns + max(rest_ns, ROLES_EVERY_NS if self._hot else 0)
            changed = True
        if changed:
            self._ends = frozenset[int]().union(*(self._infos[pid].other_ends for pid in self._alone if pid in self._infos))

    def _told_by(self, attribute: str) -> frozenset[int]:
        """The pids that sources tell by an attribute."""
        told = [pids for source in self._sources.values() if (pids := getattr(source, attribute, None))]
        return told[0] if len(told) == 1 else frozenset[int]().union(*told)

    def _cost(self) -> SelfCost:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return SelfCost(
            cpu_ns=int((usage.ru_utime + usage.ru_stime) * 1e9),
            rss_bytes=_rss_bytes(),
            nvml_ns=sum(ns for ns, _ in self._nvml.values()),
            nvml_calls=sum(calls for _, calls in self._nvml.values()),
            proc_ns=self._read_ns,
            dropped=self._dropped,
        )


def next_deadline(deadline: int, began: int, ended: int, interval: int) -> int:
    """The next beat after that of ``deadline``, which ``began`` and ``ended`` then, in ns. One that passed up to half an interval ago is
    run late, an older one is skipped.

    It would stand so close to its neighbours that rates between them were noise; as one would that comes within half an interval of when
    this one began, which may be anywhere after we were stopped, or slept.
    """
    following = deadline + interval
    earliest = max(began + interval // 2, ended - interval // 2)
    skipped = -(min(0, following - earliest) // interval)
    return following + skipped * interval


def _fitting(gpu: Gpu, reason: str) -> Gpu:
    """The sample, or where the stream cannot hold it the reason instead of what it had."""
    try:
        msgspec.msgpack.encode(gpu)
        return gpu
    except _UNFIT:
        had = [name for name in gpu.__struct_fields__ if name not in _SAMPLE and getattr(gpu, name) is not None]
        return Gpu(gpu.index, gpu.t_ns, missing=dict.fromkeys(had, reason))


def _close(source: Source) -> None:
    with suppress(Exception):  # one that broke may break here again
        source.close()


def _broken(entry: Entry, error: Exception) -> SourceState:
    """What is said of a source that raised what it should not."""
    remedy = "it is opened again in some seconds" if entry.reopens else "start gputop again"
    return SourceState(entry.name, "unavailable", clean(crash.log(error)), remedy)


def _without_ebpf(settings: Settings) -> str:
    return "a single look is too short for it" if settings.everyone else "not asked for: --no-ebpf"


def _is_simulated() -> bool:
    """`gputop demo` gave its own GPU for this stream."""
    return bool(os.environ.get("GPUTOP_SIMULATED"))


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _rss_bytes() -> int:
    fields = _read_text("/proc/self/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0
