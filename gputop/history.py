"""The last ten minutes as fixed-size columns on one time axis.

One ring of ticks; every series has a slot per tick, NaN where nothing fresh was read. Nothing is filled in: whether an old
reading still stands is the drawer's question, answered with the field's real refresh interval.

Cells are what a chart draws: absolute slices of time of ``cell_ns``, numbered ``t_ns // cell_ns``, so that a cell keeps its
content while the chart moves.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from math import isnan
from math import nan

WINDOW_NS = 600 * 1_000_000_000
SeriesKey = tuple[str, int]
"""(field id, subject): a GPU's index, a pid, or 0 for the host."""


class History:
    """Ticks and series; append-only, the oldest tick goes when ``capacity`` is reached."""

    def __init__(self, interval_ns: int) -> None:
        self.capacity = max(600, min(WINDOW_NS // interval_ns, 36_000))
        self.times = array("q")
        self.series: dict[SeriesKey, array[float]] = {}
        self.states: dict[int, bytearray] = {}
        """Per pid, a state code a tick (see `gputop.session.STATE_WORDS`); 0 is "not known"."""
        self.trimmed = 0
        """Ticks dropped at the old end so far: makes tick numbers absolute."""

    @property
    def ticks(self) -> int:
        """Ticks held."""
        return len(self.times)

    def tick(self, t_ns: int) -> None:
        """Begin a tick; time never runs backwards on one axis, so an older one starts the axis anew."""
        if self.times and t_ns <= self.times[-1]:
            self.clear()
        self.times.append(t_ns)
        for column in self.series.values():
            column.append(nan)
        for codes in self.states.values():
            codes.append(0)
        if len(self.times) > self.capacity + self.capacity // 32:
            self._trim(len(self.times) - self.capacity)

    def put(self, field_id: str, subject: int, value: float) -> None:
        """A fresh reading for the current tick."""
        column = self.series.get((field_id, subject))
        if column is None:
            column = self.series[field_id, subject] = array("f", [nan]) * len(self.times)
        column[-1] = value

    def put_state(self, pid: int, code: int, since_ns: int) -> None:
        """The state of a process from ``since_ns`` to the current tick."""
        codes = self.states.get(pid)
        if codes is None:
            codes = self.states[pid] = bytearray(len(self.times))
        last = len(codes)
        for i in range(max(bisect_left(self.times, since_ns + 1), last - 64), last):
            codes[i] = code

    def forget_states(self, pids: set[int]) -> None:
        """Drop the lanes of processes that ended before the window."""
        for pid in pids:
            self.states.pop(pid, None)

    def clear(self) -> None:
        """Begin anew."""
        self.trimmed += len(self.times)
        self.times = array("q")
        self.series.clear()
        self.states.clear()

    def slice_of(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Indices of the ticks with ``start_ns <= t < end_ns``."""
        return bisect_left(self.times, start_ns), bisect_left(self.times, end_ns)

    def cell(self, key: SeriesKey, start_ns: int, end_ns: int, peak: bool = False) -> float:
        """Mean (or maximum) of the fresh readings in a slice of time, NaN where there is none."""
        column = self.series.get(key)
        if column is None:
            return nan
        first, last = self.slice_of(start_ns, end_ns)
        total, count, most = 0.0, 0, nan
        for value in column[first:last]:
            if value == value:  # not NaN; isnan() costs a call, and this runs for each cell drawn
                total += value
                count += 1
                if not most >= value:
                    most = value
        if not count:
            return nan
        return most if peak else total / count

    def state_cell(self, pid: int, start_ns: int, end_ns: int) -> int:
        """The state that holds most of a slice of time; 0 where none is known."""
        codes = self.states.get(pid)
        if codes is None:
            return 0
        first, last = self.slice_of(start_ns, end_ns)
        part = codes[first:last]
        known = set(part) - {0}
        return max(known, key=part.count) if known else 0

    def at(self, key: SeriesKey, t_ns: int, back_ns: int) -> float:
        """The freshest reading at ``t_ns``, not older than ``back_ns``; NaN where there is none."""
        i = self._newest(key, t_ns, back_ns)
        return nan if i is None else self.series[key][i]

    def standing(self, key: SeriesKey, t_ns: int, refresh_ns: int, slowest_ns: int) -> float:
        """The reading that stands at ``t_ns``, NaN where none does.

        One stands for twice the time since the one before it, taken to be ``refresh_ns`` at least and ``slowest_ns`` at most.
        """
        i = self._newest(key, t_ns, 2 * slowest_ns)
        if i is None:
            return nan
        read_ns = self.times[i]
        before = self._newest(key, read_ns - 1, 2 * slowest_ns)
        took_ns = refresh_ns if before is None else max(refresh_ns, min(read_ns - self.times[before], slowest_ns))
        return self.series[key][i] if t_ns - read_ns <= 2 * took_ns else nan

    def _newest(self, key: SeriesKey, t_ns: int, back_ns: int) -> int | None:
        """The tick of the freshest reading at ``t_ns``, not older than ``back_ns``."""
        column = self.series.get(key)
        if column is None:
            return None
        for i in range(bisect_left(self.times, t_ns + 1) - 1, -1, -1):
            if self.times[i] < t_ns - back_ns:
                break
            if not isnan(column[i]):
                return i
        return None

    def values(self, key: SeriesKey, start_ns: int, end_ns: int) -> list[tuple[int, float]]:
        """(t_ns, value) of the fresh readings in a slice of time."""
        column = self.series.get(key)
        if column is None:
            return []
        first, last = self.slice_of(start_ns, end_ns)
        return [(t, v) for t, v in zip(self.times[first:last], column[first:last], strict=True) if v == v]

    def top(self, key: SeriesKey, start_ns: int, end_ns: int) -> float:
        """The largest reading in a slice of time, NaN where there is none."""
        return self.cell(key, start_ns, end_ns, peak=True)

    def _trim(self, count: int) -> None:
        del self.times[:count]
        for column in self.series.values():
            del column[:count]
        for codes in self.states.values():
            del codes[:count]
        self.trimmed += count
