"""What the sched probe tells of the threads of processes, booked in the rows of these: the two come in ticks of their own.

The probe tells of a thread that has changed in each of its readings if it is a trainer's or worker's, else once a second. A row is
filled in when all that concerns it has been told, so what is kept is that of some seconds.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any

from gputop.model.frame import SECOND_NS

FORGOTTEN_NS = 10 * SECOND_NS
"""Who has had no row, and was not told of, for so long has ended."""


class Readings:
    """The ticks in which the probe was read, as far as they matter to the latest one."""

    def __init__(self) -> None:
        self._ticks: deque[int] = deque()

    def note(self, ticks: Iterable[int]) -> dict[int, int]:
        """Each of the next ticks -> the last one a second before: who has changed since then is told of by now."""
        return {tick: self._second_before(tick) for tick in ticks}

    @property
    def complete_ns(self) -> int:
        """Up to here everything has been told; 0 for nothing."""
        return self._ticks[0] if self._ticks else 0

    def _second_before(self, tick: int) -> int:
        self._ticks.append(tick)
        while len(self._ticks) > 2 and self._ticks[1] <= tick - SECOND_NS:
            self._ticks.popleft()
        return self._ticks[0]


_Number = tuple[int, int, float]
"""From, until, how much."""


class _Process:
    """The rows of a process that wait, and what was told of it and is in none yet."""

    __slots__ = ("booked_ns", "known_ns", "rest", "rows", "told", "under_way")

    def __init__(self) -> None:
        self.rows: deque[tuple[int, list[Any], int]] = deque()
        """Tick, and where in a column its number belongs."""
        self.told: deque[_Number] = deque()
        self.under_way: list[_Number] = []
        """Of these a part is in rows, and from where that ends the rest is not."""
        self.booked_ns = 0
        """Up to here it is in rows."""
        self.known_ns = 1 << 62
        """From here on it is told of."""
        self.rest = 0.0
        """Of a switch, which its latest row was given too little."""

    def tell(self, since_ns: int, until_ns: int, number: float) -> None:
        """What was counted from one moment to another; what of that is in rows already is as good as told later."""
        self.told.append((min(max(since_ns, self.booked_ns), until_ns - 1), until_ns, number))

    def forget(self, until_ns: int) -> bool:
        """Nobody asks for what is so old; whether there is nothing else."""
        while self.told and self.told[0][1] <= until_ns:
            self.told.popleft()
        return not self.told and not self.under_way and self.booked_ns <= until_ns


class Told:
    """Of several processes."""

    def __init__(self) -> None:
        self._processes: defaultdict[int, _Process] = defaultdict(_Process)

    def column(self, ticks: Sequence[int], pids: Sequence[int], kept: Iterable[bool]) -> list[Any]:
        """A number for each row, None until `settle` fills it in; rows that are not kept get none."""
        column: list[Any] = [None] * len(ticks)
        for at, (tick, pid, is_kept) in enumerate(zip(ticks, pids, kept, strict=False)):
            if is_kept:
                self._processes[pid].rows.append((tick, column, at))
        return column

    def settle(self, until_ns: int, end_ns: int) -> None:
        """Fill in the rows up to ``until_ns``, a process's last one with what was told up to ``end_ns``, too."""
        for pid, process in list(self._processes.items()):
            process.told = deque(sorted(process.told))
            rows = process.rows
            while rows and rows[0][0] <= until_ns:
                tick, column, at = rows.popleft()
                process.booked_ns = tick if rows else max(tick, end_ns)
                column[at] = self._take(process, process.booked_ns)
            if not rows and process.forget(until_ns - FORGOTTEN_NS):
                del self._processes[pid]

    def _take(self, process: _Process, until_ns: int) -> float | None:
        """What was told of the time until then, and was not taken before."""
        raise NotImplementedError


class Stalls(Told):
    """The longest waits for a CPU."""

    def learn(self, ticks: Sequence[int], pids: Sequence[int], waits_ns: Sequence[int]) -> None:
        """Take over what was told of threads."""
        for tick, pid, wait_ns in zip(ticks, pids, waits_ns, strict=True):
            self._processes[pid].tell(tick, tick, wait_ns)

    def _take(self, process: _Process, until_ns: int) -> float | None:
        told: list[float] = []
        while process.told and process.told[0][1] <= until_ns:
            told.append(process.told.popleft()[2])
        return max(told) / 1e6 if told else None


class Switches(Told):
    """Context switches, spread evenly over the time in which they were counted."""

    def __init__(self) -> None:
        super().__init__()
        self._readings = Readings()
        self._stood: dict[int, tuple[int, int, int]] = {}
        """tid -> when the thread began, what its count stood at, and when that was told."""

    def learn(self, readings: Iterable[int], threads: Iterable[tuple[int, int, int, int, int, str]], begun_ns: int) -> None:
        """Take over (tick, tid, pid, start_ns, switches, state) of threads, told in the ticks ``readings``. What those stood at that began
        before ``begun_ns`` is not known until they are told of."""
        second_before = self._readings.note(readings)
        for tick, tid, pid, start_ns, count, state in threads:
            start_before, before, told_ns = self._stood.get(tid, (start_ns, 0, start_ns))
            if start_before != start_ns or before > count:
                before, told_ns = 0, start_ns
            is_known, process = told_ns >= begun_ns, self._processes[pid]
            since_ns = max(told_ns, second_before[tick]) if is_known else tick
            process.known_ns = min(process.known_ns, since_ns)
            if is_known:
                process.tell(since_ns, tick, count - before)
            self._stood[tid] = start_ns, count, tick
            if state == "dead":
                del self._stood[tid]

    def _take(self, process: _Process, until_ns: int) -> float | None:
        """None where nothing was told: before the probe knew the process, and where it may not have come to it again."""
        current, process.under_way, number = process.under_way, [], process.rest
        while process.told and process.told[0][0] < until_ns:
            current.append(process.told.popleft())
        for since_ns, told_ns, count in current:
            if told_ns <= until_ns:
                number += count
            else:
                part = count * (until_ns - since_ns) / (told_ns - since_ns)
                number += part
                process.under_way.append((until_ns, told_ns, count - part))
        if not current and not process.known_ns < until_ns <= self._readings.complete_ns:
            return None
        whole = round(number)
        process.rest = number - whole
        return whole
