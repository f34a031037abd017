"""The last ten minutes as fixed-size columns on one time axis.

One ring of ticks; every series has a slot per tick, NaN where nothing fresh was read. Nothing is filled in: whether an old
reading still stands is the drawer's question, answered with the field's real refresh interval.

Cells are what a chart draws: absolute slices of time of ``cell_ns``, numbered ``t_ns // cell_ns``, so that a cell keeps its
content while the chart moves.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from math import nan

from gputop.model.episodes import Episodes
from gputop.model.readings import STRETCH, Readings

WINDOW_NS = 600 * 1_000_000_000
SeriesKey = tuple[str, int]
"""(field id, subject): a GPU's index, a pid, or 0 for the host."""


class History:
    """Ticks and series; append-only, the oldest ticks go, many at once, when there are more than ``capacity``."""

    def __init__(self, interval_ns: int) -> None:
        self.capacity = max(600, min(WINDOW_NS // interval_ns, 36_000))
        self.times = array("q")
        self.series: dict[SeriesKey, Readings] = {}
        self.states: dict[int, Episodes] = {}
        """Per pid; codes as in `gputop.session.session.STATE_WORDS`."""
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
        if self.times and len(self.times) % STRETCH == 0:
            for readings in self.series.values():
                readings.close()
        self.times.append(t_ns)
        if len(self.times) >= self.capacity + STRETCH:
            self._trim()

    def put(self, field_id: str, subject: int, value: float) -> None:
        """A fresh reading for the current tick."""
        tick = len(self.times) - 1
        readings = self.series.get((field_id, subject))
        if readings is None:
            readings = self.series[field_id, subject] = Readings(tick // STRETCH)
        readings.growing[tick % STRETCH] = value

    def put_state(self, pid: int, code: int, since_ns: int) -> None:
        """The state of a process from ``since_ns`` to the current tick."""
        states = self.states.get(pid)
        if states is None:
            states = self.states[pid] = Episodes()
        last = len(self.times)
        states.put(code, max(bisect_left(self.times, since_ns + 1), last - 64), last)

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
        readings = self.series.get(key)
        if readings is None:
            return nan
        total, count, most = 0.0, 0, nan
        for value in readings.part(*self.slice_of(start_ns, end_ns)):
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
        states = self.states.get(pid)
        return 0 if states is None else states.most(*self.slice_of(start_ns, end_ns))

    def at(self, key: SeriesKey, t_ns: int, back_ns: int) -> float:
        """The freshest reading at ``t_ns``, not older than ``back_ns``; NaN where there is none."""
        return self._newest(key, t_ns, back_ns)[1]

    def standing(self, key: SeriesKey, t_ns: int, refresh_ns: int, slowest_ns: int) -> float:
        """The reading that stands at ``t_ns``, NaN where none does.

        One stands for twice the time since the one before it, taken to be ``refresh_ns`` at least and ``slowest_ns`` at most.
        """
        read_ns, value = self._newest(key, t_ns, 2 * slowest_ns)
        if read_ns is None:
            return nan
        before_ns, _ = self._newest(key, read_ns - 1, 2 * slowest_ns)
        took_ns = refresh_ns if before_ns is None else max(refresh_ns, min(read_ns - before_ns, slowest_ns))
        return value if t_ns - read_ns <= 2 * took_ns else nan

    def _newest(self, key: SeriesKey, t_ns: int, back_ns: int) -> tuple[int | None, float]:
        """When the freshest reading at ``t_ns`` was, not older than ``back_ns``, and it; None and NaN where there is none."""
        readings = self.series.get(key)
        if readings is None:
            return None, nan
        first, last = self.slice_of(t_ns - back_ns, t_ns + 1)
        part = readings.part(first, last)
        for i in range(len(part) - 1, -1, -1):
            if part[i] == part[i]:
                return self.times[first + i], part[i]
        return None, nan

    def values(self, key: SeriesKey, start_ns: int, end_ns: int) -> list[tuple[int, float]]:
        """(t_ns, value) of the fresh readings in a slice of time."""
        readings = self.series.get(key)
        if readings is None:
            return []
        first, last = self.slice_of(start_ns, end_ns)
        return [(t, v) for t, v in zip(self.times[first:last], readings.part(first, last), strict=True) if v == v]

    def top(self, key: SeriesKey, start_ns: int, end_ns: int) -> float:
        """The largest reading in a slice of time, NaN where there is none."""
        return self.cell(key, start_ns, end_ns, peak=True)

    def _trim(self) -> None:
        del self.times[:STRETCH]
        for readings in self.series.values():
            readings.drop()
        for states in self.states.values():
            states.drop(STRETCH)
        self.trimmed += STRETCH
