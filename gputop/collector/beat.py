"""The beat: absolute deadlines, lateness counted, one frame per tick, one wake-up for all that is read.

The collector is a process of its own. It keeps its beat while a screen draws, holds the probes' descriptors, and ends by
itself when its reader is gone. It reads the sources in the order of `gputop.sources.REGISTRY`; each may use what earlier ones
left in the beat.
"""

from __future__ import annotations

import importlib
import os
import random
import resource
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from gputop.collector.relay import Relay
from gputop.model import clocks, roles
from gputop.model.frame import Frame, Gpu, Header, ProcInfo, SelfCost, SourceState
from gputop.sources import Beat, Entry, Polled, Settings, Source, Unavailable, is_simulated, registry
from gputop.sources.files import read_once, read_text
from gputop.system import crash
from gputop.system.errors import UserError
from gputop.system.priority import BEAT, MOST_SHARE, OwnPriority, raise_priority
from gputop.system.program import __version__, return_pages
from gputop.system.text import clean

KEY_EVERY_NS = 10_000_000_000  # ns between two key frames
REOPEN_EVERY_NS = 5_000_000_000  # ns until a source that failed is opened again
COST_EVERY_NS = 1_000_000_000  # ns between two readings of the collector's own cost
ROLES_EVERY_NS = 1_000_000_000  # ns between two assignments of roles; each beat assigns them while there is no trainer
ROLES_SHARE = 0.02  # of one CPU, most that assigning roles takes: 20,000 processes cost 60 ms (measured)
LOOK_EVERY_NS = 1_000_000_000  # ns between two looks whether a missing source can be opened
STOPS_WITHIN_S = 0.5  # s, the longest sleep: `stop` is noticed within it, however long the interval
PATIENCE_NS = 10_000_000  # ns for a driver's calls before a frame; if one hangs then, another thread goes on with the beat
LONG_PATIENCE_NS = 30_000_000  # ns for those between two frames: nobody waits for them, and the next beat is not late
AHEAD_MOST_NS = 200_000_000  # ns, most that a source is read ahead of its beat: with long intervals its readings would be old
AHEAD_ROOM = 2  # times what the source lately took: reading ahead begins that long before the beat, which is not late for it

_UNFIT = (OverflowError, TypeError, ValueError)  # what encoding a frame raises
_SAMPLE = ("index", "t_ns", "missing")  # fields of `Gpu` that are no readings


class FrameSink(Protocol):
    """Takes frames. ``send`` returns False if it dropped the frame because the reader is too slow."""

    def send(self, frame: Frame) -> bool: ...


def make_header(settings: Settings) -> Header:
    """The stream's first block, from this machine (uname, /proc/sys/kernel/random/boot_id, sysconf)."""
    uname = os.uname()
    now = clocks.read()
    return Header(
        gputop=__version__,
        host=uname.nodename,
        kernel=uname.release,
        boot_id=read_text("/", "proc/sys/kernel/random/boot_id").strip(),
        t_ns=now.t_ns,
        unix_ns=now.unix_ns,
        interval_ns=settings.interval_ns,
        clock_tick_hz=os.sysconf("SC_CLK_TCK"),
        cpus=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        collector_pid=os.getpid(),
        pid_namespace=_inode("/proc/self/ns/pid"),
        simulated=is_simulated(),
        machine=uname.machine,
        autogroup=read_text("/", "proc/sys/kernel/sched_autogroup_enabled").strip() == "1",
        slept=((now.t_ns, now.slept_ns),),
    )


class _Roles:
    """Processes that the sources read closely: trainers, their workers, and the processes that feed trainers without workers."""

    def __init__(self) -> None:
        self.gpu_pids: frozenset[int] = frozenset()  # processes with a context on a GPU
        self.hot: frozenset[int] = frozenset()
        self.alone: frozenset[int] = frozenset()
        self.trainers: frozenset[int] = frozenset()
        self.programs: frozenset[int] = frozenset()
        self.writers: frozenset[int] = frozenset()  # processes that write what trainers without workers read, or what such writers read
        self._infos: dict[int, ProcInfo] = {}
        self._found: dict[int, roles.Role] = {}
        self._is_due = True
        self._due_ns = 0

    def follow(self, frame: Frame, gpu_pids: frozenset[int]) -> None:
        """Assign roles again if processes with a part in a job came, ended or changed."""
        known = self._infos
        changed = [known.pop(pid) for pid in frame.gone if pid in known]
        for info in frame.infos:
            before = known.get(info.pid)
            if before is not info:
                known[info.pid] = info
                if before is None or not roles.is_alike(before, info):
                    changed += (info,) if before is None else (before, info)
        self._is_due = self._is_due or gpu_pids != self.gpu_pids or roles.may_differ(changed, known, self._found, gpu_pids)
        self.gpu_pids = gpu_pids
        is_assigned = self._is_due and frame.t_ns >= self._due_ns
        if is_assigned:
            self._assign(frame.t_ns)
        if changed or is_assigned:
            self.writers = self._ends_of(self.alone)
            self.writers |= self._ends_of(self.writers)

    def _ends_of(self, pids: frozenset[int]) -> frozenset[int]:
        """Processes at the other ends of what these processes read."""
        return frozenset[int]().union(*(self._infos[pid].other_ends for pid in pids if pid in self._infos)) - self.hot

    def _assign(self, t_ns: int) -> None:
        self._is_due, started = False, time.thread_time_ns()
        found = self._found = roles.assign(self._infos, self.gpu_pids)
        self.hot, self.alone = roles.hot(found), roles.without_workers(found)
        self.trainers = frozenset(pid for pid, role in found.items() if role.kind == "trainer")
        self.programs = roles.children_of(self._infos, self.alone)
        rest_ns = int((time.thread_time_ns() - started) / ROLES_SHARE)
        self._due_ns = t_ns + max(rest_ns, ROLES_EVERY_NS if self.hot else 0)


class Collector:
    """Opens the sources and sends one frame per tick until `stop` is called or the reader leaves."""

    def __init__(self, settings: Settings, sink: FrameSink, leaves_root: bool = False, relays: bool = False) -> None:
        """``leaves_root``: after `sudo gputop` this process only collects, and becomes the user's as soon as the probes are loaded.

        ``relays``: the beat has a thread of its own, in which drivers are asked, too: a call that hangs there does not stop it.
        """
        self.settings = settings
        self._sink = sink
        self._registry = registry()
        self._sources: dict[str, Source] = {}
        self._polled: dict[str, Polled] = {}  # those of them whose calls may hang
        self._having: dict[str, list[tuple[str, Any]]] = {}  # optional attribute -> names of the open sources that have it, and the sources
        self._closed: dict[str, tuple[int, SourceState]] = {}
        """Sources that are not open: when opening was tried or reading failed, and the reason."""
        self._states: dict[str, SourceState] = {}
        self._unsent: dict[str, SourceState] = {}
        self._open_due_ns = 0
        self._opened_all = False  # whether opening was tried with every source
        self._roles = _Roles()
        self._dropped = self._read_ns = 0
        self._nvml: dict[int, tuple[int, int]] = {}  # GPU -> ns and number of its NVML calls so far
        self._random = random.Random()
        self._ahead: frozenset[str] = frozenset()  # sources that were read ahead of the next beat
        self._next: Beat | None = None  # that beat as sources see it, once they were asked whether they are read ahead
        self._took_ns: dict[str, int] = {}  # source that may be read ahead -> longest of its latest readings; a tenth less with each since
        self._priority = OwnPriority(BEAT, MOST_SHARE, raise_priority)
        self._unfit = ""  # why the first frame that could not be encoded could not be
        self._may_leave_root = leaves_root and os.geteuid() == 0 and _import_for_user()
        self._relay = Relay(self._relieve) if relays else None
        self._is_relayed = False  # whether the beat has a thread of its own by now
        self._frame = Frame(0, 0)  # the next one; its time is its deadline until it is read
        self._sent_ns = self._key_due_ns = 0  # deadline of the last frame, and when the next key frame is due
        self.stopping = False  # whether `stop` was called

    def stop(self) -> None:
        """End after the current tick."""
        self.stopping = True

    def run(self, ticks: int | None = None, wait: Callable[[float], None] = time.sleep) -> None:
        """Beat until stopped, or for ``ticks`` ticks. Raises what the sink raises, and a source's UserError."""
        try:
            # Before the first frame gets its time: it may take longer than a beat.
            self._open_missing(time.monotonic_ns(), is_first=not self.settings.everyone)
            self._priority.request()
            self._report_priority()
            now = time.monotonic_ns()
            self._frame.t_ns = now if self.settings.everyone else now - now % self.settings.interval_ns
            if self._relay is None or self._may_leave_root:
                self._beat(ticks, wait)
            if self._relay is not None:  # its threads have the rights that this one has now
                self._is_relayed = True
                self._relay.run(lambda: self._beat(ticks, wait))
        finally:
            self.close()

    def close(self) -> None:
        """Close every source that is open."""
        self._having.clear()
        while self._sources:
            _close(self._sources.popitem()[1])

    def _beat(self, ticks: int | None, wait: Callable[[float], None]) -> None:
        """Beat to the end, or until root is left: only then the beat may have a thread of its own.

        A thread that relieves another begins here again: what that one has done of this beat is not done twice.
        """
        leaves_root = self._relay is not None and self._may_leave_root
        while not self.stopping and (ticks is None or self._frame.seq < ticks):
            frame, deadline = self._frame, self._frame.t_ns
            if frame.seq:
                self._poll(self._sent_ns, is_between=True)
                self._read_ahead(frame, wait)
                self._wait_until(deadline, wait)
                if self.stopping:
                    return
            began = time.monotonic_ns()
            if frame.seq:
                self._poll(deadline, is_between=False)
            self._frame = self._tick(frame, deadline, began)
            if leaves_root and not self._may_leave_root:
                return

    def _tick(self, frame: Frame, deadline: int, began: int) -> Frame:
        """Read and send the frame of a beat that ``began`` in time or late; returns the next one."""
        interval = self.settings.interval_ns
        frame.t_ns = time.monotonic_ns()
        if frame.seq:
            frame.late_ns, frame.missed = max(0, began - deadline), max(0, (deadline - self._sent_ns) // interval - 1)
        if not self._ahead:  # what was read ahead restates all or nothing
            frame.key = frame.t_ns >= self._key_due_ns
        if not self._send(self._read(frame)):
            self._dropped += 1
            self._key_due_ns = 0
        elif frame.key:
            self._key_due_ns = frame.t_ns + KEY_EVERY_NS - interval // 2  # a beat that comes a little early is still the one meant
            return_pages()
        if self._leave_root():
            self._key_due_ns = 0  # restate what can be read now, and what no longer
        ended = time.monotonic_ns()
        if self._priority.check(ended):
            self._report_priority()
        # The first frame takes long and stands between two beats; a single look has no beats but its own.
        alone = self.settings.everyone and not frame.seq
        following = ended + interval if alone else next_deadline(deadline, began if frame.seq else ended, ended, interval)
        self._sent_ns = deadline
        return Frame(frame.seq + 1, following, key=following >= self._key_due_ns)

    def _poll(self, beat_ns: int, is_between: bool) -> None:
        """Have drivers asked in this thread, if another can relieve it."""
        if self._relay is None or not self._is_relayed:
            return
        patience_ns = min(LONG_PATIENCE_NS if is_between else PATIENCE_NS, self.settings.interval_ns // 2)
        for name, source in tuple(self._polled.items()):
            if source.is_due(beat_ns, is_between):
                self._relay.watch(patience_ns)
                self._call(name, beat_ns, source.poll, beat_ns, is_between)
                self._relay.unwatch()

    def _relieve(self) -> bool:
        """Ask the sources whether a call hangs; called by another thread than the beat's."""
        now_ns, stuck_ns = time.monotonic_ns(), min(PATIENCE_NS, self.settings.interval_ns // 2) // 2
        return any(source.relieve(now_ns, stuck_ns) for source in tuple(self._polled.values()))

    def _wait_until(self, t_ns: int, wait: Callable[[float], None]) -> None:
        while (left := t_ns - time.monotonic_ns()) > 0 and not self.stopping:
            wait(min(left / 1e9, STOPS_WITHIN_S))

    def _read_ahead(self, frame: Frame, wait: Callable[[float], None]) -> None:
        """Read the sources that ask for it into the next frame, at a random moment before its beat (``frame.t_ns``).

        At a fixed phase of the beat, a job whose steps keep time with it would always be seen in the same part of its step. The frame
        itself stays on the beat.
        """
        if self._ahead:
            return  # the thread that this one relieved has done it
        if not (asking := self._have("is_read_ahead")):
            return
        beat = self._next = self._beat_of(frame)
        names = [name for name, source in asking if source.is_read_ahead(beat)]
        from_ns = max(time.monotonic_ns(), frame.t_ns - AHEAD_MOST_NS)
        until_ns = frame.t_ns - AHEAD_ROOM * sum(self._took_ns.get(name, 0) for name in names)
        if not names or from_ns >= until_ns:
            return
        self._wait_until(self._random.randrange(from_ns, until_ns), wait)
        started = time.thread_time_ns()
        self._read_sources(names, beat, frame)
        self._read_ns += time.thread_time_ns() - started
        self._ahead = frozenset(names)

    def _report_priority(self) -> None:
        reason, remedy = self._priority.reason, "gputop asks for it again once it takes less, after a minute at the earliest"
        state, detail = "partial" if reason else "ok", {"priority": self._priority.granted}
        self._add_state(SourceState("beat", state, reason, remedy if reason else "", detail))

    def _send(self, frame: Frame) -> bool:
        """Send it; False if it was dropped. A frame that cannot be encoded loses the GPU samples to blame, or is dropped itself."""
        try:
            return self._sink.send(frame)
        except _UNFIT as error:
            self._unfit = self._unfit or clean(crash.log(error))
        frame.gpus = [_fitting(gpu, self._unfit) for gpu in frame.gpus]
        try:
            return self._sink.send(frame)
        except _UNFIT:
            return False

    @property
    def _all_ready(self) -> bool:
        return self._opened_all and all(source.ready for _, source in self._have("ready"))

    def _leave_root(self) -> bool:
        """Become the invoking user of `sudo gputop`, once the probes are loaded; returns whether that happened now."""
        if self._may_leave_root and self._all_ready:
            self._may_leave_root = False
            from gputop.system.privilege import drop_to_invoking_user

            return drop_to_invoking_user(keep_probing=True, sealed=not self.settings.sudo)
        return False

    def _read(self, frame: Frame) -> Frame:
        if frame.seq and frame.t_ns >= self._open_due_ns:
            self._open_missing(frame.t_ns)
        started = time.thread_time_ns()
        beat, due = self._next or self._beat_of(frame), [name for name in self._sources if name not in self._ahead]
        beat.t_ns, beat.key, self._next = frame.t_ns, frame.key, None
        if not frame.seq:  # processes on the GPUs come into the first frame in any case
            listing = [name for name, _ in self._have("pids") if name in due]
            self._read_sources(listing, beat, frame)
            beat.gpu_pids, due = self._pids_of("pids"), [name for name in due if name not in listing]
        self._read_sources(due, beat, frame)
        self._ahead = frozenset()
        frame.sources.extend(self._states.values() if frame.key else self._unsent.values())
        self._unsent.clear()
        self._roles.follow(frame, self._pids_of("pids"))
        self._nvml |= {gpu.index: (gpu.nvml_ns, gpu.nvml_calls or 0) for gpu in frame.gpus if gpu.nvml_ns is not None}
        self._read_ns += time.thread_time_ns() - started
        if frame.key or frame.t_ns % COST_EVERY_NS < self.settings.interval_ns:
            frame.cost = self._cost()
        return frame

    def _beat_of(self, frame: Frame) -> Beat:
        who = self._roles
        return Beat(
            t_ns=frame.t_ns,
            seq=frame.seq,
            key=frame.key,
            gpu_pids=who.gpu_pids,
            hot=who.hot,
            alone=who.alone,
            trainers=who.trainers,
            wakers=(self._pids_of("wakers") | who.writers) - who.hot,
            programs=who.programs,
            loading=not self._all_ready,
        )

    def _read_sources(self, names: Iterable[str], beat: Beat, frame: Frame) -> None:
        timed = [name for name, _ in self._have("is_read_ahead")]
        for name in names:
            began_ns = time.monotonic_ns() if name in timed else 0
            if not self._call(name, beat.t_ns, self._sources[name].read, beat, frame):
                beat.changed[:] = (state for state in beat.changed if state.name != name)  # of before it broke
            elif began_ns:
                self._took_ns[name] = max(time.monotonic_ns() - began_ns, self._took_ns.get(name, 0) * 9 // 10)
        for state in beat.changed:
            self._add_state(state)

    def _call(self, name: str, t_ns: int, method: Callable[..., None], *arguments: object) -> bool:
        """Call a source. A bug in it costs its own readings for some seconds; the other sources go on."""
        try:
            method(*arguments)
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is
            state = _broken(next(one for one in self._registry if one.name == name), error)
            self._closed[name] = t_ns, state
            self._add_state(state)
            self._polled.pop(name, None)
            self._having.clear()
            _close(self._sources.pop(name))
            return False
        return True

    def _add_state(self, state: SourceState) -> None:
        if self._states.get(state.name) != state:
            self._states[state.name] = self._unsent[state.name] = state

    def _open_missing(self, now: int, is_first: bool = False) -> None:
        """Open what is not open. ``is_first``: before the first frame, so that what may come later is due in the next tick."""
        self._open_due_ns = now if is_first else now + LOOK_EVERY_NS
        self._opened_all |= not is_first
        for entry in self._registry:
            if is_first and entry.is_later:
                continue
            tried = self._closed.get(entry.name)
            if entry.name in self._sources or (tried and (not entry.reopens or now - tried[0] < REOPEN_EVERY_NS)):
                continue
            off = entry.off(self.settings)
            if off is None:
                self._open(entry, now)
            elif off:
                self._add_state(SourceState(entry.name, "off", off))

    def _open(self, entry: Entry, now: int) -> None:
        name = entry.name
        try:
            source: Source = getattr(importlib.import_module(entry.module), entry.cls)(self.settings)
            state = source.open()
            self._sources[name] = source
            if isinstance(source, Polled):
                self._polled[name] = source
            self._sources = {one.name: self._sources[one.name] for one in self._registry if one.name in self._sources}
            self._having.clear()
        except Unavailable as why:
            state = SourceState(name, "unavailable", why.reason, why.remedy)
        except ImportError as why:
            remedy = f"it is a plug-in: see to {entry.package}" if entry.package else "install gputop again with its dependencies"
            state = SourceState(name, "unavailable", f"cannot be loaded: {why}", remedy)
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as in reading
            state = _broken(entry, error)
        if name not in self._sources:
            self._closed[name] = (now, state)
        self._add_state(state)

    def _pids_of(self, attribute: str) -> frozenset[int]:
        """The pids that sources give by ``attribute``."""
        given = [pids for _, source in self._have(attribute) if (pids := getattr(source, attribute))]
        return given[0] if len(given) == 1 else frozenset[int]().union(*given)

    def _have(self, attribute: str) -> list[tuple[str, Any]]:
        """The open sources that have an optional attribute: in each beat it would cost more to ask a dozen for four of them."""
        if (found := self._having.get(attribute)) is None:
            found = self._having[attribute] = [(name, source) for name, source in self._sources.items() if hasattr(source, attribute)]
        return found

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
    """The deadline after ``deadline``; that one's tick ``began`` and ``ended``. All in ns.

    A deadline that passed less than half an interval ago is run late; an older one is skipped, and so is one within half an
    interval of when this tick began (after a stop or a suspend). Two frames closer than that give rates that are noise.
    """
    following = deadline + interval
    earliest = max(began + interval // 2, ended - interval // 2)
    skipped = -(min(0, following - earliest) // interval)
    return following + skipped * interval


def _fitting(gpu: Gpu, reason: str) -> Gpu:
    """The sample; if it cannot be encoded, a sample with ``reason`` for each of its values."""
    try:
        msgspec.msgpack.encode(gpu)
        return gpu
    except _UNFIT:
        had = [name for name in gpu.__struct_fields__ if name not in _SAMPLE and getattr(gpu, name) is not None]
        return Gpu(gpu.index, gpu.t_ns, missing=dict.fromkeys(had, reason))


def _import_for_user() -> bool:
    """Import what a collector may need once root is left; False without a user to leave it for. Before any thread runs, whose rights this
    changes for a moment."""
    if not os.environ.get("SUDO_UID"):
        return False
    from gputop.system.imports import STANDARD, import_for_user
    from gputop.system.privilege import invoking_user

    if (user := invoking_user()) is not None:
        import_for_user(user[0], "gputop.sources", "gputop.model", "gputop.system", *STANDARD)
    return user is not None


def _close(source: Source) -> None:
    with suppress(Exception):  # a source that failed may fail again
        source.close()


def _broken(entry: Entry, error: BaseException) -> SourceState:
    """The state of a source with a bug."""
    remedy = "it is opened again in some seconds" if entry.reopens else "start gputop again"
    return SourceState(entry.name, "unavailable", clean(crash.log(error)), remedy)


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _rss_bytes() -> int:
    fields = (read_once("/proc/self/statm", 128) or b"").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0
