"""The sched probe's counts of threads, booked in the rows of their processes.

Probe and /proc are read in ticks of their own: the probe reports a thread that has changed in each of its readings if it is a trainer's or
worker's, else once a second. So a row waits until all that concerns it has been reported, which takes some seconds.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any

from gputop.model.frame import SECOND_NS, Frame

FORGOTTEN_NS = 10 * SECOND_NS  # a process without a row and a report for so long has ended
_Count = tuple[int, int, float]
"""From, until, how much."""


class _Process:
    """A process's rows that wait, and the counts that are in no row yet."""

    __slots__ = ("booked_ns", "known_ns", "reported", "rest", "rows", "under_way")

    def __init__(self) -> None:
        self.rows: deque[tuple[int, list[Any], int]] = deque()
        """Tick, column, and place in the column."""
        self.reported: deque[_Count] = deque()
        self.under_way: list[_Count] = []
        """Counts of which a part is in rows already; they begin where that part ends."""
        self.booked_ns = 0
        """Everything up to here is in rows."""
        self.known_ns = 1 << 62
        """The first report."""
        self.rest = 0.0
        """What rounding kept from the latest row."""

    def add(self, since_ns: int, until_ns: int, count: float) -> None:
        """Keep a count of a span; a part of the span that is in rows already counts as later."""
        self.reported.append((min(max(since_ns, self.booked_ns), until_ns - 1), until_ns, count))

    def drop_before(self, until_ns: int) -> bool:
        """Drop counts that no row will ask for; whether nothing is left."""
        while self.reported and self.reported[0][1] <= until_ns:
            self.reported.popleft()
        return not self.reported and not self.under_way and self.booked_ns <= until_ns


class _ByProcess:
    """A column of the processes' rows that is filled in later."""

    def __init__(self) -> None:
        self.processes: defaultdict[int, _Process] = defaultdict(_Process)

    def column(self, ticks: Sequence[int], pids: Sequence[int], kept: Iterable[bool]) -> list[Any]:
        """A value for each row, None until `settle` fills it in; rows that are not kept stay None."""
        column: list[Any] = [None] * len(ticks)
        for at, (tick, pid, is_kept) in enumerate(zip(ticks, pids, kept, strict=False)):
            if is_kept:
                self.processes[pid].rows.append((tick, column, at))
        return column

    def settle(self, until_ns: int, end_ns: int) -> None:
        """Fill in the rows up to ``until_ns``; a process's last one takes what was reported up to ``end_ns``."""
        for pid, process in list(self.processes.items()):
            process.reported = deque(sorted(process.reported))
            rows = process.rows
            while rows and rows[0][0] <= until_ns:
                tick, column, at = rows.popleft()
                process.booked_ns = tick if rows else max(tick, end_ns)
                column[at] = self._take(process, process.booked_ns)
            if not rows and process.drop_before(until_ns - FORGOTTEN_NS):
                del self.processes[pid]

    def _take(self, process: _Process, until_ns: int) -> Any:
        """The value of a row that ends at ``until_ns``."""
        raise NotImplementedError


class LongestWaits(_ByProcess):
    """ns, None where no wait was reported."""

    def _take(self, process: _Process, until_ns: int) -> float | None:
        found: list[float] = []
        while process.reported and process.reported[0][1] <= until_ns:
            found.append(process.reported.popleft()[2])
        return max(found) if found else None


class Growth(_ByProcess):
    """Whole numbers: a counter's growth, spread evenly over the span in which it was counted."""

    def __init__(self) -> None:
        super().__init__()
        self.complete_ns = 0
        """Up to here every change has been reported."""

    def _take(self, process: _Process, until_ns: int) -> int | None:
        """None before the probe knew the process, and where it may not have come to it again."""
        current, process.under_way, number = process.under_way, [], process.rest
        while process.reported and process.reported[0][0] < until_ns:
            current.append(process.reported.popleft())
        for since_ns, reported_ns, count in current:
            if reported_ns <= until_ns:
                number += count
            else:
                part = count * (until_ns - since_ns) / (reported_ns - since_ns)
                number += part
                process.under_way.append((until_ns, reported_ns, count - part))
        if not current and not process.known_ns < until_ns <= self.complete_ns:
            return None
        whole = round(number)
        process.rest = number - whole
        return whole


class Threads:
    """Reads the sched probe's threads out of frames."""

    def __init__(self) -> None:
        self.waits, self.switches, self.offcpu = LongestWaits(), Growth(), Growth()
        """The longest wait for a CPU, context switches, and ns off a CPU, of all threads of a process."""
        self.pid_of: dict[int, int] = {}
        """tid -> pid."""
        self._readings: deque[int] = deque()
        """Ticks in which the probe was read: those of the last second, and the one before."""
        self._stood: dict[int, tuple[int, int, int, int]] = {}
        """tid -> when the thread began, its switches, its ns off a CPU, and when these were reported."""

    def learn_pids(self, frame: Frame) -> None:
        """Take from a frame which process each thread belongs to."""
        if frame.probes is not None:
            self.pid_of.update([(thread.tid, thread.pid) for thread in frame.probes.threads])

    def learn_counts(self, frame: Frame, begun_ns: int) -> None:
        """Take the counts of a frame. Counts of threads that began before ``begun_ns``, the first tick read, are known from their first
        report on."""
        if frame.probes is None:
            return
        tick = frame.t_ns
        second_before = self._second_before(tick)
        for thread in frame.probes.threads:
            pid, tid, start_ns = thread.pid, thread.tid, thread.start_ns
            self.waits.processes[pid].add(tick, tick, thread.max_run_delay_ns)
            switches = thread.vol + thread.invol
            offcpu = thread.runnable_ns + thread.sleeping_ns + thread.uninterruptible_ns
            start_before, switches_before, offcpu_before, reported_ns = self._stood.get(tid, (start_ns, 0, 0, start_ns))
            if start_before != start_ns or switches_before > switches:
                switches_before, offcpu_before, reported_ns = 0, 0, start_ns
            is_known = reported_ns >= begun_ns
            # What changed longer ago than a second has been reported by now.
            since_ns = max(reported_ns, second_before) if is_known else tick
            for counts, growth in ((self.switches, switches - switches_before), (self.offcpu, max(0, offcpu - offcpu_before))):
                process = counts.processes[pid]
                process.known_ns = min(process.known_ns, since_ns)
                if is_known:
                    process.add(since_ns, tick, growth)
            self._stood[tid] = start_ns, switches, max(offcpu, offcpu_before), tick
            if thread.state == "dead":
                del self._stood[tid]

    def settle(self, until_ns: int, end_ns: int) -> None:
        """See `_ByProcess.settle`."""
        for counts in (self.waits, self.switches, self.offcpu):
            counts.settle(until_ns, end_ns)

    def _second_before(self, tick: int) -> int:
        """The last reading that is a second older."""
        readings = self._readings
        readings.append(tick)
        while len(readings) > 2 and readings[1] <= tick - SECOND_NS:
            readings.popleft()
        self.switches.complete_ns = self.offcpu.complete_ns = readings[0]
        return readings[0]
