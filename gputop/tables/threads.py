"""The sched probe's counts of threads, booked in the rows of their processes.

Probe and /proc are read in ticks of their own: the probe reports a thread that has changed in each of its readings if it is a trainer's or
worker's, else once a second. So a row waits until all that concerns it has been reported, which takes some seconds.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from gputop.model.frame import SECOND_NS, Frame

FORGOTTEN_NS = 10 * SECOND_NS  # a process without a row and a report for so long has ended
COUNTED = {f"probes.threads.{name}" for name in (
    "tid", "pid", "runnable_ns", "sleeping_ns", "uninterruptible_ns", "vol", "invol", "max_run_delay_ns", "start_ns", "state",
)}  # fmt: skip
"""Fields of frames that `ProbedThreads` reads."""
_Report = list[Any]
"""[from, until (ns), longest wait (ns), switches, ns off a CPU in that time]; a thread's first report has None for the last two."""
Columns = tuple[list[Any], list[Any], list[Any]]  # longest wait (ns), switches and ns off a CPU of each row; None is not known


class _ThreadRows:
    """A process's rows that wait, and the reports that are in no row yet."""

    __slots__ = ("booked_ns", "known_ns", "reports", "rests", "rows", "under_way")

    def __init__(self) -> None:
        self.rows: deque[tuple[int, Columns, int]] = deque()  # tick, columns, and place in these
        self.reports: deque[_Report] = deque()
        self.under_way: list[_Report] = []  # reports that are partly in rows already; each begins where that part ends
        self.booked_ns = 0  # everything up to here is in rows
        self.known_ns = 1 << 62  # the first count begins here
        self.rests = 0.0, 0.0  # switches and ns that rounding left over from the latest row

    def add(self, since_ns: int, until_ns: int, wait_ns: int, switches: int | None, offcpu_ns: int | None) -> None:
        """Keep a report; a part of its time that is in rows already counts as later."""
        since_ns = min(max(since_ns, self.booked_ns), until_ns - 1)
        if self.reports:
            last = self.reports[-1]
            if last[0] == since_ns and last[1] == until_ns and last[3] is not None and switches is not None:
                last[2], last[3], last[4] = max(last[2], wait_ns), last[3] + switches, last[4] + offcpu_ns
                return
        self.reports.append([since_ns, until_ns, wait_ns, switches, offcpu_ns])

    def take(self, until_ns: int, complete_ns: int) -> tuple[int | None, int | None, int | None]:
        """Values of a row that ends at ``until_ns``. Counts are spread evenly over the time of their report; None before the probe knew the
        process, and if it may not have met it again."""
        current, self.under_way = self.under_way, []
        while self.reports and self.reports[0][0] < until_ns:
            current.append(self.reports.popleft())
        longest, counted = None, False
        switches, offcpu = self.rests
        for since_ns, reported_ns, wait_ns, more, ns in current:
            share = 1.0
            if reported_ns > until_ns:
                share = (until_ns - since_ns) / (reported_ns - since_ns)
                rest = (None, None) if more is None else (more * (1 - share), ns * (1 - share))
                self.under_way.append([until_ns, reported_ns, wait_ns, *rest])
            elif longest is None or wait_ns > longest:
                longest = wait_ns
            if more is not None:
                counted = True
                switches += more * share
                offcpu += ns * share
        if not counted and not self.known_ns < until_ns <= complete_ns:
            return longest, None, None
        whole, whole_ns = round(switches), round(offcpu)
        self.rests = switches - whole, offcpu - whole_ns
        return longest, whole, whole_ns

    def drop_before(self, until_ns: int) -> bool:
        """Drop reports that no row will ask for; whether nothing is left."""
        while self.reports and self.reports[0][1] <= until_ns:
            self.reports.popleft()
        return not self.reports and not self.under_way and self.booked_ns <= until_ns


class ProbedThreads:
    """Reads the sched probe's threads out of frames."""

    def __init__(self) -> None:
        self.pid_of: dict[int, int] = {}  # tid -> pid
        self._processes: defaultdict[int, _ThreadRows] = defaultdict(_ThreadRows)
        self._readings: deque[int] = deque()  # ticks in which the probe was read: in the last second, and the one before
        self._stood: dict[int, tuple[int, int, int, int]] = {}
        """tid -> when the thread began, its switches, its ns off a CPU, and when these were reported."""

    def learn_pids(self, frame: Frame) -> None:
        """Take from a frame which process each thread belongs to."""
        if frame.probes is not None:
            self.pid_of.update([(thread.tid, thread.pid) for thread in frame.probes.threads])

    def learn_counts(self, frame: Frame, begun_ns: int) -> None:
        """Take the counts of a frame. ``begun_ns``: the first tick that was read; what an older thread did before its first report is
        unknown."""
        if frame.probes is None:
            return
        tick, stood = frame.t_ns, self._stood
        slack_ns = 0 if frame.ticks == 1 else SECOND_NS  # a merged frame comes later than the reports in it
        second_before = self._second_before(tick)
        for thread in frame.probes.threads:
            tid, start_ns, switches = thread.tid, thread.start_ns, thread.vol + thread.invol
            offcpu = thread.runnable_ns + thread.sleeping_ns + thread.uninterruptible_ns
            start_before, switches_before, offcpu_before, reported_ns = stood.get(tid, (start_ns, 0, 0, start_ns))
            if start_before != start_ns or switches_before > switches:
                switches_before, offcpu_before, reported_ns = 0, 0, start_ns
            if offcpu < offcpu_before:
                offcpu = offcpu_before
            process = self._processes[thread.pid]
            if reported_ns >= begun_ns:
                # A change longer ago than a second has been reported by now.
                since_ns = reported_ns if reported_ns > second_before else second_before
                # Waits for a CPU are counted from a thread's birth, all else from when the probe first saw it.
                grown = min(offcpu - offcpu_before, tick - reported_ns + slack_ns)
                process.add(since_ns, tick, thread.max_run_delay_ns, switches - switches_before, grown)
            else:
                since_ns = tick
                process.add(tick, tick, thread.max_run_delay_ns, None, None)
            if since_ns < process.known_ns:
                process.known_ns = since_ns
            stood[tid] = start_ns, switches, offcpu, tick
            if thread.state == "dead":
                del stood[tid]

    def columns(self, ticks: Sequence[int], pids: Sequence[int], kept: Iterable[bool]) -> Columns:
        """Values for rows of processes, None until `settle` fills them in; rows that are not kept stay None."""
        columns: Columns = [None] * len(ticks), [None] * len(ticks), [None] * len(ticks)
        processes = self._processes
        for at, (tick, pid, is_kept) in enumerate(zip(ticks, pids, kept, strict=False)):
            if is_kept:
                processes[pid].rows.append((tick, columns, at))
        return columns

    def settle(self, until_ns: int, end_ns: int) -> None:
        """Fill in the rows up to ``until_ns``; a process's last one takes what was reported up to ``end_ns``."""
        complete_ns = self._readings[0] if self._readings else 0
        for pid, process in list(self._processes.items()):
            if process.reports:
                process.reports = deque(sorted(process.reports, key=itemgetter(0)))
            rows = process.rows
            while rows and rows[0][0] <= until_ns:
                tick, (waits, switches, offcpu), at = rows.popleft()
                process.booked_ns = tick if rows else max(tick, end_ns)
                if process.reports or process.under_way or process.known_ns < complete_ns:  # else the probe knows nothing of this time
                    waits[at], switches[at], offcpu[at] = process.take(process.booked_ns, complete_ns)
            if not rows and process.drop_before(until_ns - FORGOTTEN_NS):
                del self._processes[pid]

    def _second_before(self, tick: int) -> int:
        """The last reading that is a second older; up to the oldest one that is kept every change has been reported."""
        readings = self._readings
        readings.append(tick)
        while len(readings) > 2 and readings[1] <= tick - SECOND_NS:
            readings.popleft()
        return readings[0]
