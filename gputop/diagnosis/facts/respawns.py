"""Cost of respawned workers to a trainer: the time from a birth until steps are made again, less the time of these steps with warm
workers.

Steps are not seen one by one. Their number follows from counters that each step moves: the trainer's CUDA calls if they are probed, else
the voluntary switches of its main thread or the work of its GPUs, whichever shows fewer steps: a trainer that pickles its dataset also
switches, and readings of a GPU lag. The pace outside births is warm workers', however slow they are; steps missing to this pace,
from a birth until steps are made again, are the birth's cost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import dropwhile
from typing import NamedTuple

from gputop.findings import policy


class _Note(NamedTuple):
    """The counters at one feed."""

    t_ns: int
    calls: int | None
    switches: int | None
    util: float | None  # mean of its GPUs since the feed before, 0..1


class _Stretch(NamedTuple):
    """The time between two feeds, with the steps made in it, in the unit of each known counter."""

    since_ns: int
    until_ns: int
    steps: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return (self.until_ns - self.since_ns) / 1e9

    @property
    def stands(self) -> bool:
        """True if no step was made."""
        return min(self.steps) <= 0.0

    def is_at(self, paces: Sequence[float]) -> bool:
        """True if steps come at least at half of each known pace."""
        return all(steps >= policy.HALF * pace * self.seconds for steps, pace in zip(self.steps, paces, strict=False))


class Respawns:
    """Births of one trainer's workers, and their cost."""

    __slots__ = ("_births", "_notes")

    def __init__(self) -> None:
        self._notes: deque[_Note] = deque()
        self._births: set[int] = set()

    def note(self, t_ns: int, calls: int | None, switches: int | None, util: float | None) -> None:
        """Take in the cumulative counters, and the GPUs' utilization since the last note; None for what is not read."""
        self._notes.append(_Note(t_ns, calls, switches, util))
        while self._notes[0].t_ns < t_ns - policy.BIRTHS_NS:
            self._notes.popleft()
        self._births = {born_ns for born_ns in self._births if born_ns >= self._notes[0].t_ns}

    def note_birth(self, born_ns: int) -> None:
        """Note that a worker began at ``born_ns``."""
        self._births.add(born_ns)

    def cost(self, oldest_ns: int) -> tuple[float, float] | None:
        """(seconds that births took since ``oldest_ns``, mean seconds of each set of births). None if the pace of warm workers is unknown,
        as when sets follow each other too fast."""
        found = (self._cost(oldest_ns, counted) for counted in (_by_calls, _by_switches))
        return next((cost for cost in found if cost is not None), None)

    def _cost(self, oldest_ns: int, counted: _Counted) -> tuple[float, float] | None:
        paces = _warm(self._runs(counted, ()))
        runs = list(self._runs(counted, paces))
        paces = _warm(runs)
        if not paces:
            return None
        lost_s, each_s = 0.0, list[float]()
        for run in (run for starts, run in runs if starts):
            parts = [[one.seconds - one.steps[i] / pace for one in run] for i, pace in enumerate(paces)]
            for told in parts:  # faster steps in the last stretch save nothing: their number is chance
                told[-1] = max(0.0, told[-1])
            most = max(parts, key=sum)
            lost_s += sum(part * _inside(one, oldest_ns) for one, part in zip(run, most, strict=True))
            each_s.append(sum(most))
        if runs[-1][0] and len(each_s) > 1:
            each_s.pop()  # it still lasts
        return max(0.0, lost_s), max(0.0, sum(each_s) / max(1, len(each_s)))

    def _runs(self, counted: _Counted, paces: Sequence[float]) -> Iterator[_Run]:
        """Yields (whether workers started, stretches), in order. A start lasts until steps are made again, at half of the ``paces`` or more
        if these are known: queued work goes on without workers. Stretches without a step right before a birth, unless in a start, are left
        out: in them the earlier workers end."""
        births = deque(sorted(self._births))
        run: list[_Stretch] = []
        starts = False
        for one in dropwhile(lambda first: first.stands, self._stretches(counted)):  # their begin was not seen
            fresh = False
            while births and births[0] <= one.until_ns:
                births.popleft()
                fresh = True
            if fresh and not starts:
                while run and run[-1].stands:
                    run.pop()
                yield False, run
                run, starts = [], True
            run.append(one)
            if starts and not fresh and not one.stands and one.is_at(paces):
                yield True, run
                run, starts = [], False
        if run:
            yield starts, run

    def _stretches(self, counted: _Counted) -> Iterator[_Stretch]:
        for older, newer in zip(self._notes, list(self._notes)[1:], strict=False):
            if steps := counted(older, newer):
                yield _Stretch(older.t_ns, newer.t_ns, steps)


_Run = tuple[bool, list[_Stretch]]  # (whether workers started, its stretches)


def _warm(runs: Iterable[_Run]) -> list[float]:
    """Steps per second of warm workers, by each counter that was always known; empty if they were seen too shortly."""
    told = list(runs)
    warm = [one for starts, run in told if not starts for one in run]
    seconds = sum(one.seconds for one in warm)
    if seconds < max(policy.WATCHED_S, policy.TENTH * sum(one.seconds for _, run in told for one in run)):
        return []
    counters = min(len(one.steps) for _, run in told for one in run)
    paces = [sum(one.steps[i] for one in warm) / seconds for i in range(counters)]
    return paces if min(paces) > 0.0 else []


_Counted = Callable[[_Note, _Note], "tuple[float, ...]"]  # the steps between two notes; empty if unknown


def _by_calls(older: _Note, newer: _Note) -> tuple[float, ...]:
    return () if older.calls is None or newer.calls is None else (float(max(0, newer.calls - older.calls)),)


def _by_switches(older: _Note, newer: _Note) -> tuple[float, ...]:
    if older.switches is None or newer.switches is None:
        return ()
    switches = float(max(0, newer.switches - older.switches))
    if newer.util is None:
        return (switches,)
    return (switches, newer.util * (newer.t_ns - older.t_ns) / 1e9) if newer.util >= policy.TRIFLE else (0.0, 0.0)


def _inside(one: _Stretch, oldest_ns: int) -> float:
    """Share of a stretch that lies in the window."""
    return max(0.0, min(1.0, (one.until_ns - oldest_ns) / (one.until_ns - one.since_ns)))
