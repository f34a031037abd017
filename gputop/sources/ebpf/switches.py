"""Bounds the cost of watching context switches: if there are very many, the programs are attached for a part of the time only.

The programs cost a switch with its wake-up about 0.9 µs, and even empty ones cost 150 ns, so only detaching them saves anything. It takes
half a millisecond, attaching as long. While they are attached for `WINDOW_S` at random moments,

- wake-ups, preemptions, switches, sleep and the histograms are estimated from what these windows counted (`unseen`). How often a thread of
  a trainer or worker got a CPU between them is the kernel's own count, so its counts follow its pace.
- time on a CPU and runnable stays exact: the kernel's own sums, read from /proc while the programs are detached.
"""

from __future__ import annotations

import os
import random
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from queue import SimpleQueue
from typing import NamedTuple

from msgspec.structs import replace

from gputop.model.board import wakeup_key
from gputop.model.frame import Preempt, Probes, SchedThread, Wakeup
from gputop.sources.ebpf.budget import Linker
from gputop.sources.ebpf.helper import HelperFailed
from gputop.sources.ebpf.maps import Map
from gputop.sources.ebpf.sched import PAIRS_EVERY, Drain, SchedReader, read_sums
from gputop.sources.ebpf.unseen import WINDOWS, Unseen

SWITCH_NS = 1000  # ns that a switch costs with its wake-up: 600 to 900 on one CPU, 1,100 between CPUs (tests/bench/windows.py)
LEAST_CPUS = 0.1  # of a process, for what it loses to be judged: with less it has other troubles (guess)
BEGIN_SHARE = 0.01  # of the time that this takes from a CPU or a process, for windows to begin: 10,000 switches a second
END_SHARE = 0.006  # below which the programs stay attached again
QUIET = 2  # windows in a row: one may have met the storm without a CPU
BUDGET = 0.007  # of the time that windows may take: a slow CPU and attaching have the rest of 1 %
WINDOW_S, SHORTEST_S = 0.25, 0.05  # s of a window
LONGEST_PAUSE_S = 4.0  # s, about, between two windows: so late is the end of a storm noticed; windows are shortened for it
EDGES_S = 0.001  # s that attaching and detaching take (measured)
LOOK_NS = 400_000_000  # ns over which switches are counted before windows begin
READ = 256  # threads per reading of schedstat, 8 us each; a drain reads more in rotation
LOST_S = 1.0  # s until attaching is tried again
_END_S = 5.0  # s to wait for the thread
_SLICES, _SLICES_WORDS = 32, 66  # struct slices of probes/sched.c: slices of a CPU; words, the first with the number of the last slice
_OPENING = struct.Struct("<QQ")  # struct opening of probes/sched.c


class SwitchWindow(NamedTuple):
    """The last window."""

    number: int = 0  # windows that were closed so far
    opened_ns: int = 0
    closed_ns: int = 0  # 0: the programs are attached
    per_s: float = 0.0  # switches a second of the busiest CPU
    slices: tuple[dict[int, int], dict[int, int]] = ({}, {})
    """Tid of a hot process -> times it got a CPU: when the window was opened, and closed."""


class Switched:
    """Counts the switches of the busiest CPU."""

    latest_ns = 0  # when the last one was seen, on any CPU

    def __init__(self, slices: Map) -> None:
        self._slices = Map(slices.fd, slices.shape)
        self._before: list[int] = []
        self._since_ns = 0

    def per_s(self, now: int) -> float:
        """Switches a second of the busiest CPU since the last call."""
        count = self._slices.read()
        words = self._slices.words(count)
        numbers = [word & 0xFFFFFFFF for word in words[::_SLICES_WORDS].tolist()]
        starts = [words[cpu * _SLICES_WORDS + 2 + 2 * (number % _SLICES)] for cpu, number in enumerate(numbers)]
        self.latest_ns = max(starts, default=0)
        most = max(((new - old) & 0xFFFFFFFF for new, old in zip(numbers, self._before, strict=False)), default=0)
        ns, self._before, self._since_ns = now - self._since_ns, numbers, now
        return most * 1e9 / max(1, ns)


class SwitchAttacher:
    """Attaches and detaches the programs on request, in a thread of its own."""

    def __init__(self, linker: Linker, programs: dict[str, int], links: list[int], tables: dict[str, Map], proc: str) -> None:
        """``proc``: /proc, empty without BTF."""
        self.seen = SwitchWindow()
        self.refused = ""  # why the programs cannot be attached again
        self._linker, self._programs, self._links, self._raw = linker, programs, links, bool(proc)
        self._opened, self._switched = tables["opened"], Switched(tables["slices"])
        self._orders: SimpleQueue[tuple[float, float, frozenset[int]] | None] = SimpleQueue()
        self._proc = proc
        self._ended = threading.Event()
        self._may_close = False
        self._thread: threading.Thread | None = None
        """Started when it is needed: a thread from before root was left has not the capabilities that were kept."""

    def order(self, pause_s: float, width_s: float, hot: frozenset[int]) -> bool:
        """Attach the programs for ``width_s`` after a pause; with 0 they stay attached. False: the thread for it cannot be started."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="gputop-switches", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        self._orders.put((pause_s, width_s, hot))
        return True

    def close(self) -> None:
        """End the thread, and detach."""
        self._ended.set()
        self._orders.put(None)
        if self._thread is not None:
            self._thread.join(_END_S)
        self._detach(self._links)
        self._linker.close()

    def _work(self) -> None:
        while (order := self._orders.get()) is not None and not self._ended.wait(order[0]):
            while not self._attach(order[2]) and not self._ended.wait(LOST_S):
                pass
            if order[1] and not self._ended.wait(order[1]):
                self._close_window(order[2])

    def _attach(self, hot: frozenset[int]) -> bool:
        """Begin a window; False if the programs could not be attached."""
        slices = self._read_slices(hot)
        opened = time.monotonic_ns()
        try:
            if not self._links:
                self._opened.put(0, _OPENING.pack(opened, 0))
                self._links = self._linker.attach_tracepoints(self._programs, self._raw)
                attached = time.monotonic_ns()  # on a busy machine much later
                opened = min(_OPENING.unpack(self._opened.get(0))[1] or attached, attached)
            self._switched.per_s(opened)
        except (OSError, HelperFailed) as error:
            self.refused = getattr(error, "strerror", None) or str(error)
            return False
        self.refused = ""
        self.seen = SwitchWindow(self.seen.number, opened, slices=(slices, {}))
        return True

    def _close_window(self, hot: frozenset[int]) -> None:
        try:
            if not self._may_close:  # may the programs be attached again at all?
                self._detach(self._linker.attach_tracepoints(self._programs, self._raw))
                self._may_close = True
            now = time.monotonic_ns()
            self._detach(self._links)
            self._links = []
            per_s = self._switched.per_s(now)
        except (OSError, HelperFailed) as error:
            self.refused = getattr(error, "strerror", None) or str(error)
            return
        slices = self.seen.slices[0], self._read_slices(hot)
        self.seen = SwitchWindow(self.seen.number + 1, self.seen.opened_ns, max(now, self._switched.latest_ns), per_s, slices)

    def _read_slices(self, hot: frozenset[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        for pid in sorted(hot) if self._proc else ():
            try:
                tids = [int(name) for name in os.listdir(f"{self._proc}/{pid}/task")]
            except OSError:
                continue
            for tid in tids[: READ - len(found)]:
                if sums := read_sums(self._proc, pid, tid):
                    found[tid] = sums[2]
        return found

    def _detach(self, links: list[int]) -> None:
        for link in links:
            os.close(link)


class Switches:
    """Reads the scheduler's maps in each drain, and keeps the programs' cost within the budget."""

    def __init__(self, reader: SchedReader, watch: SwitchAttacher, slices: Map, proc: str) -> None:
        """``proc``: /proc, for the scheduler's sums in schedstat; empty if the programs keep these sums themselves."""
        self.share = 1.0  # of the time in which switches are counted
        self.watch, self._reader, self._proc = watch, reader, proc
        self._switched = Switched(slices)
        sums = () if proc else ("oncpu_ns", "runnable_ns")
        self._threads: Unseen[SchedThread] = Unseen(
            lambda one: (one.tid, one.start_ns), ("preempted_ns", "sleeping_ns", "uninterruptible_ns", "vol", "invol", "hist", *sums)
        )
        self._preempts: Unseen[Preempt] = Unseen(lambda one: (one.victim_tid, one.culprit_tid), ("ns", "times"))
        self._wakeups: Unseen[Wakeup] = Unseen(wakeup_key, ("wait_ns", "times"))
        self._all = (self._threads, self._preempts, self._wakeups)
        self._sampling = self._adds = False
        self._number = -1  # of the last window that was taken
        self._opened_ns = self._closed_ns = 0
        self._late = Probes(0)  # ends that were read with a window, to be sent in the next drain
        self._slices: dict[int, int] = {}  # tid -> times it had got a CPU when the last window was closed
        self._spans: deque[tuple[int, int]] = deque(maxlen=WINDOWS + 1)  # (opened, closed)
        self._looked_ns = self._begun_ns = self._quiet = 0
        self._at_close: dict[tuple[int, int], SchedThread] = {}  # threads when the last window was closed
        self._own: dict[int, SchedThread] = {}  # tid -> a hot process's thread at the last look
        self._now: dict[int, SchedThread] = {}  # the same, in the last drain

    def read(self, drain: Drain) -> Probes:
        """Changes since the last drain, with estimates of what was not seen."""
        seen = self.watch.seen
        if not self._sampling and not self._adds:
            probes = self._reader.read(drain)
            self._look(drain, probes.threads)
            return probes
        if seen.closed_ns and seen.number != self._number:
            self._take_window(seen, drain)
        if seen.closed_ns:
            return self._with_late(self._estimate(seen, drain))
        self._note_opened(seen)
        if self._sampling and self.watch.refused:
            self._end()
        probes = self._reader.read(replace(drain, opened=self._opened_ns))
        told = self._add(probes)
        if not self._sampling:
            self._look(drain, probes.threads)
        return self._with_late(told)

    def close(self) -> None:
        """Detach."""
        self.watch.close()

    def _look(self, drain: Drain, threads: Iterable[SchedThread]) -> None:
        """Begin windows if switches cost too much."""
        for one in threads:
            if one.pid in drain.hot:
                self._now[one.tid] = one
        ns = drain.now - self._looked_ns
        if ns < LOOK_NS or self.watch.refused:
            return
        per_s = self._switched.per_s(drain.now)
        work = Work()
        for tid, one in self._now.items():
            before = self._own.get(tid, one)
            work.add(before, one, ns, (one.vol + one.invol - before.vol - before.invol) * 1e9 / ns)
        cost = cost_share(per_s, work) if self._looked_ns else 0.0
        self._own, self._now, self._looked_ns = self._now, {}, drain.now
        if cost > BEGIN_SHARE and self.watch.order(0.0, width_s(cost), drain.hot):
            self._begin(drain)

    def _begin(self, drain: Drain) -> None:
        whole = self._reader.read(replace(drain, key=True, slots=drain.per_second, opened=self._opened_ns))
        for kind, samples in zip(self._all, (whole.threads, whole.preempts, whole.wakeups), strict=True):
            kind.begin(samples)  # type: ignore[attr-defined]
        self._at_close = dict(self._threads.base)
        self._sampling = self._adds = True
        self._number, self._closed_ns, self._begun_ns = self.watch.seen.number, 0, drain.now
        self._spans.clear()
        self._quiet = 0
        self._keep_ends(whole, [])

    def _end(self) -> None:
        for kind in self._all:
            kind.end()
        self._sampling, self.share, self._looked_ns = False, 1.0, 0

    def _keep_ends(self, whole: Probes, gone: list[int]) -> None:
        late = self._late
        dead = [one for one in whole.threads if one.state == "dead"]
        self._late = replace(
            late, threads=late.threads + dead, gone=[*late.gone, *whole.gone, *gone], forgotten=late.forgotten + whole.forgotten
        )

    def _with_late(self, probes: Probes) -> Probes:
        """Probes that include the ends of threads which an earlier drain has read."""
        late, self._late = self._late, Probes(0)
        told = {one.tid for one in probes.threads}
        threads = [*probes.threads, *(one for one in late.threads if one.tid not in told)]
        return replace(probes, threads=threads, gone=late.gone + probes.gone, forgotten=late.forgotten + probes.forgotten)

    def _note_opened(self, seen: SwitchWindow) -> None:
        """Add what was not seen up to the window."""
        if self._closed_ns and seen.opened_ns > self._closed_ns:
            paces = self._paces(seen.slices[0])
            for kind in self._all:
                kind.open_window(seen.opened_ns - self._closed_ns, paces)
            self._opened_ns, self._closed_ns = seen.opened_ns, 0
            if not self._sampling:
                self._end()

    def _take_window(self, seen: SwitchWindow, drain: Drain) -> None:
        """Read what a window counted, and set when the next one is due."""
        opened_ns = seen.opened_ns if self._spans else self._begun_ns  # the first window begins with what `_begin` read
        self._note_opened(seen)
        ns, cycle_ns = max(1, seen.closed_ns - opened_ns), max(1, seen.closed_ns - self._begun_ns)
        self._number, self._closed_ns, self._begun_ns, self._slices = seen.number, seen.closed_ns, seen.closed_ns, seen.slices[1]
        before = self._at_close
        whole = self._add(self._reader.read(replace(drain, now=seen.closed_ns, key=True, slots=drain.per_second, opened=self._opened_ns)))
        ended = self._reader.forget_ended(self._opened_ns)
        alive = self._reader.alive
        told_later = alive.union(ended, whole.gone, (one.tid for one in whole.threads))
        ended += sorted({tid for tid, _ in self._threads.latest} - told_later)  # another thread has the structure of theirs
        self._forget(frozenset(ended), frozenset())
        self._keep_ends(whole, ended)
        told = {(one.victim_tid, one.culprit_tid) for one in whole.preempts}, {wakeup_key(one) for one in whole.wakeups}
        work = Work()
        for key, counts in self._threads.close_window(ns, lambda key: key[0] in alive).items():
            if (one := self._threads.latest.get(key)) is not None and one.pid in drain.hot:
                work.add(before.get(key, one), one, cycle_ns, (counts.get("vol", 0.0) + counts.get("invol", 0.0)) * 1e9 / ns)
        self._at_close = dict(self._threads.base)
        self._preempts.close_window(ns, told[0].__contains__)
        self._wakeups.close_window(ns, told[1].__contains__)
        cost = cost_share(seen.per_s, work)
        self._quiet = self._quiet + 1 if cost < END_SHARE else 0
        if self._quiet >= QUIET:
            self._sampling = False
            self.watch.order(0.0, 0.0, drain.hot)
            return
        width = width_s(cost)
        pause = max(0.0, cost * (width + EDGES_S) / BUDGET - width)
        self.watch.order(pause * random.uniform(0.7, 1.3), width, drain.hot)
        self._spans.append((opened_ns, seen.closed_ns))
        first = self._spans[0][1] if len(self._spans) > 1 else opened_ns - int(pause * 1e9)
        seen_ns = sum(closed - opened for opened, closed in list(self._spans)[len(self._spans) > 1 :])
        self.share = round(min(1.0, seen_ns / max(1, seen.closed_ns - first)), 4)

    def _add(self, probes: Probes) -> Probes:
        """Probes with estimates added for what the sampling did not see."""
        if probes.gone or probes.forgotten:
            self._forget(frozenset(probes.gone), frozenset((pair & 0xFFFFFFFF, pair >> 32) for pair in probes.forgotten))
        threads = self._threads.see(probes.threads)
        preempts, wakeups = self._preempts.see(probes.preempts), self._wakeups.see(probes.wakeups)
        if not self._sampling:
            self._adds = any(kind.is_needed for kind in self._all)
        return replace(probes, threads=threads, preempts=preempts, wakeups=wakeups, share=self.share)

    def _forget(self, tids: frozenset[int], pairs: frozenset[tuple[int, int]]) -> None:
        self._threads.forget(lambda key: key[0] in tids)
        self._preempts.forget(lambda key: key in pairs or key[0] in tids or key[1] in tids)
        self._wakeups.forget(lambda key: key[0] in tids or key[1] in tids)

    def _estimate(self, seen: SwitchWindow, drain: Drain) -> Probes:
        """Counts up to the last window, with estimates of what was not seen since."""
        gap_ns = max(1, drain.now - seen.closed_ns)
        others = drain.key or drain.is_due(drain.per_second)
        growing = self._threads.per_ns
        wanted = {key for key, one in self._threads.base.items() if one.pid in drain.hot or (others and key in growing)}
        if self._proc:
            parts = -(-len(wanted) // READ)
            for at, key in enumerate(wanted):
                if at % parts == drain.number % parts:
                    self._threads.base[key] = self._reader.with_kernel_sums(self._threads.base[key])
        paces = self._paces(self._reader.slices)
        threads = sorted(self._threads.at(gap_ns, paces, lambda key, _: key in wanted), key=lambda one: one.tid)
        preempts: list[Preempt] = []
        wakeups: list[Wakeup] = []
        if drain.key or drain.is_due(PAIRS_EVERY):
            preempts = self._preempts.at(gap_ns, paces, lambda key, _: drain.key or key in self._preempts.per_ns)
            wakeups = self._wakeups.at(gap_ns, paces, lambda key, _: drain.key or key in self._wakeups.per_ns)
        return Probes(drain.now, threads=threads, preempts=preempts, wakeups=wakeups, share=self.share)


    def _paces(self, slices: Mapping[int, int]) -> dict[int, float]:
        """See `Unseen.at`; ``slices``: times that threads have got a CPU up to now."""
        found: dict[int, float] = {}
        for (tid, _), per_ns in self._threads.per_ns.items():
            if tid in slices and tid in self._slices and (switches := per_ns.get("vol", 0.0) + per_ns.get("invol", 0.0)):
                found[tid] = max(0, slices[tid] - self._slices[tid]) / switches
        return found


class Work(dict[int, tuple[float, float, float]]):
    """Pid -> its threads' switches a second, CPUs used, and threads runnable on average."""

    def add(self, before: SchedThread, now: SchedThread, ns: int, per_s: float) -> None:
        """Add a thread's."""
        all_per_s, cpus, runnable = self.get(now.pid, (0.0, 0.0, 0.0))
        cpus += max(0, now.oncpu_ns - before.oncpu_ns) / ns
        self[now.pid] = all_per_s + per_s, cpus, runnable + max(0, now.runnable_ns - before.runnable_ns) / ns


def cost_share(per_s: float, work: Mapping[int, tuple[float, float, float]]) -> float:
    """Share of the time that the programs take, in the process or on the CPU where that is largest. ``per_s``: switches a second of the
    busiest CPU.

    Threads that wake one another on many CPUs run one at a time, and each loses what all their switches cost; so what a process loses is
    shared by the CPUs that it uses. While it is runnable it loses nothing: what it loses is a share of the rest of the time.
    """
    by_process = (switches / max(cpus, 1.0 - runnable, LEAST_CPUS) for switches, cpus, runnable in work.values())
    return max(per_s, *by_process, 0.0) * SWITCH_NS / 1e9


def width_s(cost: float) -> float:
    """Length of a window in which the programs cost this share of the time."""
    return min(WINDOW_S, max(SHORTEST_S, BUDGET * LONGEST_PAUSE_S / max(cost, 1e-6)))
