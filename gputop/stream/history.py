"""The last ten minutes as columns on one time axis.

All columns share one list of ticks. A column has a slot for each tick, NaN if nothing fresh was read in it. Nothing is interpolated:
the screen decides whether an old reading still stands, by the field's refresh interval.

A chart asks for cells: slices of time of ``cell_ns``, numbered ``t_ns // cell_ns``, so that a cell keeps its content while the chart moves.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator
from math import nan
from threading import local
from typing import TypeAlias

import zstandard

from gputop.model.fields import OF_SERVERS, STEPS
from gputop.model.frame import SECOND_NS

WINDOW_NS = 600 * 1_000_000_000  # ns kept
STRETCH = 256  # ticks that are compressed together, and dropped together at the old end
SeriesKey = tuple[str, int]  # (field id, subject): a GPU's index, a pid, or 0 for the host
_EMPTY = array("f", [nan]) * STRETCH
_Packed: TypeAlias = "float | bytes"  # a compressed stretch; a stretch of one value is that value (NaN: no reading)


class _Zstd(local):
    """One decompressor per thread: to create one costs twenty times as much as to use it."""

    def __init__(self) -> None:
        self.decompress = zstandard.ZstdDecompressor().decompress


_zstd = _Zstd()


class HistoryColumn:
    """One field's readings of one subject: 32-bit floats, one per tick, NaN if nothing fresh was read."""

    __slots__ = ("_packed", "newest")

    def __init__(self, stretches: int) -> None:
        """``stretches``: how many whole stretches have passed without a reading."""
        self._packed: list[_Packed] = [nan] * stretches
        self.newest = _EMPTY[:]  # the last stretch, not compressed yet

    def close_stretch(self) -> None:
        """Compress the last stretch and begin another."""
        self._packed.append(_pack(self.newest))
        self.newest = _EMPTY[:]

    def drop_stretch(self) -> None:
        del self._packed[0]

    def slice(self, first: int, last: int) -> array[float]:
        """The readings of the ticks ``first`` to ``last`` (exclusive), counted from the oldest tick held."""
        number, place = divmod(first, STRETCH)
        found = self._stretch(number)[place : place + last - first]
        for start in range((number + 1) * STRETCH, last, STRETCH):
            found += self._stretch(start // STRETCH)[: last - start]
        return found

    @property
    def known(self) -> bool:
        """True if any tick has a reading."""
        return any(isinstance(one, bytes) or one == one for one in self._packed) or any(one == one for one in self.newest)

    def _stretch(self, number: int) -> array[float]:
        return _unpack(self._packed[number]) if number < len(self._packed) else self.newest


def _pack(stretch: array[float]) -> _Packed:
    data = stretch.tobytes()
    if data == data[: stretch.itemsize] * STRETCH:
        return stretch[0]
    return bytes(memoryview(zstandard.compress(data, 1)))  # a copy: the original keeps the worst case's buffer


def _unpack(packed: _Packed) -> array[float]:
    return array("f", [packed]) * STRETCH if isinstance(packed, float) else array("f", _zstd.decompress(packed))


class StateRuns:
    """One process's state codes over ticks, run-length encoded. Ticks count from the oldest held; code 0 is "not known"."""

    __slots__ = ("_codes", "_starts")

    def __init__(self) -> None:
        self._starts = array("i", [0])
        self._codes = bytearray(1)  # the code from each start to the next

    def put(self, code: int, first: int, last: int) -> None:
        """Set the ticks ``first`` to ``last`` (exclusive) to ``code``, and forget what was set for later ticks."""
        self._start(first, code)
        self._start(last, 0)

    def drop(self, ticks: int) -> None:
        """Forget the oldest ``ticks`` ticks."""
        gone = bisect_right(self._starts, ticks) - 1
        self._codes = self._codes[gone:]
        self._starts = array("i", [max(0, start - ticks) for start in self._starts[gone:]])

    @property
    def known(self) -> bool:
        """True if any tick has a state."""
        return any(self._codes)

    @property
    def until(self) -> int:
        """The tick from which on no state is known."""
        return self._starts[-1]

    def most(self, first: int, last: int) -> int:
        """The code of most ticks from ``first`` to ``last`` (exclusive); the higher code of two equal ones; 0 if none is known."""
        run = max(0, bisect_right(self._starts, first) - 1)
        if first < last and (run + 1 == len(self._starts) or last <= self._starts[run + 1]):
            return self._codes[run]  # most cells lie in one run
        held: dict[int, int] = {}
        start = first
        for i in range(run, len(self._starts)):
            end = min(last, self._starts[i + 1]) if i + 1 < len(self._starts) else last
            if end <= start:
                break
            held[self._codes[i]] = held.get(self._codes[i], 0) + end - start
            start = end
        held.pop(0, None)
        return max(held, key=lambda code: (held[code], code)) if held else 0

    def _start(self, tick: int, code: int) -> None:
        while self._starts and self._starts[-1] >= tick:
            self._starts.pop()
            self._codes.pop()
        if not self._codes or self._codes[-1] != code:
            self._starts.append(tick)
            self._codes.append(code)


class History:
    """Ticks, columns and states. Only appended to; the oldest stretch is dropped once there are ``capacity + STRETCH`` ticks."""

    def __init__(self, interval_ns: int) -> None:
        self.interval_ns = interval_ns
        self.capacity = max(600, min(WINDOW_NS // interval_ns, 36_000))  # ticks
        self._stands = 11 * SECOND_NS // 10 // interval_ns  # ticks for which a reading taken once a second stands
        self.times = array("q")  # CLOCK_MONOTONIC ns of each tick
        self.series: dict[SeriesKey, HistoryColumn] = {}
        self.states: dict[int, StateRuns] = {}  # pid -> its states; codes of `gputop.stream.session.STATE_WORDS`
        self.shares: dict[int, StateRuns] = {}  # pid -> CPU that it took, in eighths of a CPU; processes without states alone
        self.trimmed = 0  # ticks dropped at the old end so far: makes tick numbers absolute
        self._cells_of: tuple[int, int, int] = 0, 0, 0  # length of a cell, ticks, `trimmed`: what the next depends on
        self._ticks_of: dict[int, tuple[int, int]] = {}  # cell -> its ticks, of those cells that were asked for

    @property
    def ticks(self) -> int:
        return len(self.times)

    def tick(self, t_ns: int) -> None:
        """Begin a tick. One that is not later than the last begins a new axis: time does not run backwards on one."""
        if self.times and t_ns <= self.times[-1]:
            self.clear()
        if self.times and len(self.times) % STRETCH == 0:
            for column in self.series.values():
                column.close_stretch()
        self.times.append(t_ns)
        if len(self.times) >= self.capacity + STRETCH:
            self._trim()

    def put(self, field_id: str, subject: int, value: float) -> None:
        """Set the fresh reading of the current tick."""
        tick = len(self.times) - 1
        column = self.series.get((field_id, subject))
        if column is None:
            column = self.series[field_id, subject] = HistoryColumn(tick // STRETCH)
        column.newest[tick % STRETCH] = value

    def fresh(self) -> Iterator[tuple[SeriesKey, float]]:
        """(key, value) of what was read in the current tick."""
        place = (len(self.times) - 1) % STRETCH
        return ((key, value) for key, column in self.series.items() if (value := column.newest[place]) == value)

    def put_state(self, pid: int, code: int, since_ns: int) -> None:
        """Set a process's state from ``since_ns`` to the current tick."""
        self._put(self.states, pid, code, since_ns)

    def put_share(self, pid: int, eighths: int, since_ns: int) -> None:
        """Set the CPU that a process took from ``since_ns`` to the current tick; it stands until the process is read again."""
        if eighths or pid in self.shares:
            self._put(self.shares, pid, eighths, since_ns, self._stands)

    def _put(self, kept: dict[int, StateRuns], pid: int, code: int, since_ns: int, stands: int = 0) -> None:
        runs = kept.get(pid)
        if runs is None:
            runs = kept[pid] = StateRuns()
        last = len(self.times)
        runs.put(code, max(bisect_left(self.times, since_ns + 1), last - 64), last + stands)

    def forget_ended(self, alive: Container[int]) -> None:
        """Forget processes that have ended and of which nothing is on the axis."""
        for kept in (self.states, self.shares):
            for pid in [pid for pid, runs in kept.items() if pid not in alive and not runs.known]:
                del kept[pid]
        for key in [(field, pid) for field, pid in self.series if field in (STEPS, *OF_SERVERS) and pid not in alive]:
            if not self.series[key].known:
                del self.series[key]

    def clear(self) -> None:
        self.trimmed += len(self.times)
        self.times = array("q")
        self.series.clear()
        self.states.clear()
        self.shares.clear()

    def slice_of(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Indices (first, last exclusive) of the ticks with ``start_ns <= t < end_ns``."""
        return bisect_left(self.times, start_ns), bisect_left(self.times, end_ns)

    def cell(self, key: SeriesKey, start_ns: int, end_ns: int, peak: bool = False) -> float:
        """Mean, or with ``peak`` the maximum, of the fresh readings from ``start_ns`` to ``end_ns``; NaN without any."""
        column = self.series.get(key)
        if column is None:
            return nan
        first, last = self.slice_of(start_ns, end_ns)
        if first == last:
            return nan
        total, count, most = 0.0, 0, nan
        for value in column.slice(first, last):
            if value == value:  # not NaN; isnan() costs a call, and this runs for each cell drawn
                total += value
                count += 1
                if not most >= value:
                    most = value
        if not count:
            return nan
        return most if peak else total / count

    def state_cell(self, pid: int, start_ns: int, end_ns: int) -> int:
        """The code that a process was in for most of the ticks from ``start_ns`` to ``end_ns``; 0 if unknown.

        Between two ticks that of the later one holds, where it comes as soon as it should.
        """
        return self._most(self.states, pid, start_ns, end_ns)

    def share_cell(self, pid: int, start_ns: int, end_ns: int) -> int:
        """The eighths of a CPU that a process took for most of the ticks from ``start_ns`` to ``end_ns``; 0 if unknown, or next to none."""
        return self._most(self.shares, pid, start_ns, end_ns)

    def states_known_ns(self, pid: int) -> int:
        """The time of the last tick with a known state of a process; 0 without one."""
        runs = self.states.get(pid)
        last = min(runs.until, len(self.times)) - 1 if runs is not None else -1
        return self.times[last] if last >= 0 else 0

    def cell_of_runs(self, runs: StateRuns, number: int, cell_ns: int) -> int:
        """What `state_cell` or `share_cell` give for cell ``number``. All rows of a table show the same cells, whose ticks are looked up
        once for all rows."""
        asked = cell_ns, len(self.times), self.trimmed
        if asked != self._cells_of:
            self._cells_of, self._ticks_of = asked, {}
        if (ticks := self._ticks_of.get(number)) is None:
            ticks = self._ticks_of[number] = self._ticks_shown(number * cell_ns, (number + 1) * cell_ns)
        return runs.most(*ticks)

    def _most(self, kept: dict[int, StateRuns], pid: int, start_ns: int, end_ns: int) -> int:
        runs = kept.get(pid)
        return 0 if runs is None else runs.most(*self._ticks_shown(start_ns, end_ns))

    def _ticks_shown(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Indices (first, last exclusive) of the ticks whose states stand for the time from ``start_ns`` to ``end_ns``."""
        first, last = self.slice_of(start_ns, end_ns)
        if first == last < len(self.times) and self.times[last] < end_ns + max(end_ns - start_ns, self.interval_ns):
            last += 1
        return first, last

    def at(self, key: SeriesKey, t_ns: int, back_ns: int) -> float:
        """The newest reading at ``t_ns`` that is at most ``back_ns`` old, or NaN."""
        return self._newest(key, t_ns, back_ns)[1]

    def standing(self, key: SeriesKey, t_ns: int, refresh_ns: int, slowest_ns: int) -> float:
        """The reading that still stands at ``t_ns``, or NaN.

        A reading stands for twice the time that its source takes for one: the distance to the reading before it, bounded by
        ``refresh_ns`` and ``slowest_ns``.
        """
        read_ns, value = self._newest(key, t_ns, 2 * slowest_ns)
        if read_ns is None:
            return nan
        before_ns, _ = self._newest(key, read_ns - 1, 2 * slowest_ns)
        took_ns = refresh_ns if before_ns is None else max(refresh_ns, min(read_ns - before_ns, slowest_ns))
        return value if t_ns - read_ns <= 2 * took_ns else nan

    def _newest(self, key: SeriesKey, t_ns: int, back_ns: int) -> tuple[int | None, float]:
        """Time and value of the newest reading at ``t_ns`` that is at most ``back_ns`` old; else None and NaN."""
        column = self.series.get(key)
        if column is None:
            return None, nan
        first, last = self.slice_of(t_ns - back_ns, t_ns + 1)
        part = column.slice(first, last)
        for i in range(len(part) - 1, -1, -1):
            if part[i] == part[i]:
                return self.times[first + i], part[i]
        return None, nan

    def values(self, key: SeriesKey, start_ns: int, end_ns: int) -> list[tuple[int, float]]:
        """(t_ns, value) of the fresh readings from ``start_ns`` to ``end_ns``."""
        column = self.series.get(key)
        if column is None:
            return []
        first, last = self.slice_of(start_ns, end_ns)
        return [(t, v) for t, v in zip(self.times[first:last], column.slice(first, last), strict=True) if v == v]

    def _trim(self) -> None:
        del self.times[:STRETCH]
        for column in self.series.values():
            column.drop_stretch()
        for runs in (*self.states.values(), *self.shares.values()):
            runs.drop(STRETCH)
        self.trimmed += STRETCH
