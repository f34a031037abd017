"""A reading: some fields of one GPU that are read together, the ways to do it, and when it is due.

It remembers what the driver said. A call that is not supported is asked again after 5 s, 20 s, then once a minute; a way that has
worked is kept through failures that may pass, since another may count differently. A slow call is asked for less often, so that no
reading keeps the driver busy for more than a twentieth of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic_ns
from typing import TypeVar

from gputop.model.frame import SECOND_NS
from gputop.sources.nvml.reasons import FAILURES, Why, why

Values = dict[str, object]
Missing = dict[str, str]
Made = TypeVar("Made")
Way = Callable[[Values, Missing], None]
"""Puts what it read into the first, and what this GPU cannot give into the second; may raise anything."""

HANG_NS = SECOND_NS
"""A call under way for longer than this is said to hang."""
_LONG_NS = SECOND_NS // 10
"""After a call that long what it gave is told at once."""
_RETRY_FIRST_NS, _RETRY_MOST_NS = 5 * SECOND_NS, 60 * SECOND_NS
ONCE_NS = 1 << 62
"""The period of what is read no more once it has been."""
_IDLE_SHARE = 20
_LONGEST_NS = 10 * SECOND_NS
_TRANSIENT_LIMIT = 3
_COSTS = 10
_BLUR = 100
"""A count is given a time that is off by no more than that part of its period, and so are the rates made of it."""
_EARLY_NS = 500_000
"""Due that much before the period is over: beats are that exact, and the next but one would be late by a whole beat."""


class Lost(Exception):
    """The GPU is gone; says why."""


class Lazy:
    """A way that is bound on its first use, since binding fails where the driver has no such function."""

    __slots__ = ("_arguments", "_make")

    def __init__(self, make: Callable[..., Way], *arguments: object) -> None:
        self._make, self._arguments = make, arguments

    def bind(self) -> Way:
        """The way itself. Raises what making it raises."""
        return self._make(*self._arguments)


class Reading:
    """``fields`` of `gputop.model.frame.Gpu`, due every ``period_ns``, by the first of ``ways`` that gives a value.

    ``counts``: they are counters, of which rates are made, with a call that gives them last.
    """

    __slots__ = (
        "_base_ns", "_better", "_costs", "_dear", "_proven", "_retry_ns", "_tries", "_upgrade_ns", "_way", "_ways",
        "counts", "due_ns", "fields", "mig", "period_ns", "reason", "took_ns", "works",
    )  # fmt: skip

    def __init__(self, fields: tuple[str, ...], period_ns: int, *ways: Way | Lazy, counts: bool = False) -> None:
        self.fields = fields
        self.counts = counts
        self.period_ns = self._base_ns = period_ns
        self.due_ns = 0
        self.reason = ""
        self.works = False
        self.took_ns = 0
        """What it cost the last time."""
        self._ways = list(ways)
        self._way = 0
        self._proven: Way | None = None
        """The first of them, once it has given a value, until it gives none."""
        self._better = ""
        """Why the ways before that one failed."""
        self._upgrade_ns = 0
        self._tries = 0
        """Since the last that gave a value."""
        self._retry_ns = _RETRY_FIRST_NS
        self.mig = False
        """Whether the GPU was split when it was read last."""
        self._dear = False
        """Whether it cost too much the last time; only then are costs remembered."""
        self._costs: deque[int] = deque(maxlen=_COSTS)

    def read(self, now_ns: int, values: Values, missing: Missing, mig: bool) -> None:
        """Read now and set the next due time; raises Lost, nothing else."""
        cause: Why | None = None
        if self._proven is not None and mig == self.mig:  # as in nearly all ticks: few calls, for the caches are cold
            try:
                self._proven(values, missing)
            except FAILURES as error:
                self._proven, cause = None, why(error, mig)
            else:
                self.due_ns = now_ns + self.period_ns - _EARLY_NS
                return
        if mig != self.mig:
            self.mig, self._retry_ns, self._upgrade_ns = mig, _RETRY_FIRST_NS, 0
        if self._way and now_ns >= self._upgrade_ns:
            self._way, self.works = 0, False
        self._tries += 1
        failure = self._try_ways(values, missing, now_ns, cause)
        if failure:
            self._note(failure, now_ns, missing)
            return
        self.works, self.reason, self._tries, self._retry_ns = True, "", 0, _RETRY_FIRST_NS
        self.due_ns = now_ns + self.period_ns - _EARLY_NS

    def charge(self, cost_ns: int) -> None:
        """Take down what it cost. The least of the last ten counts: neither a hang nor a busy host makes a driver slow."""
        self.took_ns = cost_ns
        if cost_ns * _IDLE_SHARE <= self._base_ns:
            if self._dear:
                self._dear = False
                self._costs.clear()
                self.period_ns = self._base_ns
            return
        self._dear = True
        self._costs.append(cost_ns)
        least = min(self._costs) if len(self._costs) == _COSTS else 0
        self.period_ns = max(self._base_ns, min(least * _IDLE_SHARE, _LONGEST_NS))

    @property
    def slowed(self) -> bool:
        """Whether it is asked for less often than meant."""
        return self.period_ns > self._base_ns

    def _try_ways(self, values: Values, missing: Missing, now_ns: int, known: Why | None) -> Why | None:
        """Read by the first way that gives a value; why none does: what may pass rather than what lasts. No way but the one that worked
        is tried for what may pass. ``known``: why the first has just given none."""
        failure: Why | None = None
        for at in range(self._way, len(self._ways)):
            cause, known = known or self._ask(at, values, missing), None
            if cause is not None:
                failure = cause if failure is None or failure.lasting or cause.lost else failure
                if cause.lost or (self.works and not cause.lasting):
                    break
                continue
            if failure is not None:
                self._way, self._better = at, failure.text
                self._upgrade_ns = now_ns + (_RETRY_MOST_NS if failure.lasting else _RETRY_FIRST_NS)
            if self._way:
                missing.update({field: f"{self._better}; {missing[field]}" for field in self.fields if field in missing})
            return None
        return failure

    def _ask(self, at: int, values: Values, missing: Missing) -> Why | None:
        """Read by one of the ways; why it gives no value."""
        try:
            way = self._ways[at]
            if isinstance(way, Lazy):
                way = self._ways[at] = way.bind()
            way(values, missing)
        except FAILURES as error:
            return why(error, self.mig)
        self._proven = way if not at else None
        return None

    def _counts(self, cause: Why) -> bool:
        """One failure among many is a gap in the series; a row of them, or the first, is a reason."""
        return cause.lasting or not self.works or self._tries >= _TRANSIENT_LIMIT

    def _note(self, cause: Why, now_ns: int, missing: Missing) -> None:
        if cause.lost:
            raise Lost(cause.text)
        self.due_ns = now_ns + min(self.period_ns, _LONGEST_NS) - _EARLY_NS
        if cause.lasting:
            self.works, self._way = False, 0
            self.due_ns = now_ns + self._retry_ns
            self._retry_ns = min(self._retry_ns * 4, _RETRY_MOST_NS)
        if self._counts(cause):
            self.reason = cause.text
            missing.update(dict.fromkeys(self.fields, cause.text))


class Report:
    """What was learned of a GPU from ``t_ns`` on, in a tick of a lane or a part of it; counters were read at that very time."""

    __slots__ = ("missing", "t_ns", "values")

    def __init__(self, t_ns: int, values: Values, missing: Missing) -> None:
        self.t_ns, self.values, self.missing = t_ns, values, missing


def read_due(readings: list[Reading], now_ns: int, mig: bool) -> Iterator[Report]:
    """Read those of ``readings`` that are due: one report where the driver is quick, else each answer as it comes. Raises Lost."""
    before_ns = monotonic_ns()
    report = Report(before_ns, {}, {})
    for reading in readings:
        # What was refused may be given, or be refused for another reason, since MIG was switched.
        if now_ns < reading.due_ns and (mig == reading.mig or not reading.reason):
            continue
        if reading.took_ns >= _LONG_NS and report.values:
            yield report
            report = Report(before_ns, {}, {})
        values = report.values if not reading.counts else {}
        reading.read(now_ns, values, report.missing, mig)
        after_ns = monotonic_ns()
        reading.charge(after_ns - before_ns)
        late_ns = after_ns - report.t_ns
        if late_ns >= HANG_NS:  # what was read before it is old by now
            told = {field: values[field] for field in reading.fields if field in values}
            report = Report(after_ns if reading.counts and told else before_ns, told, report.missing)
            _ask_again(readings, reading)
        elif values is not report.values:
            if values and late_ns > reading.period_ns // _BLUR:
                if report.values:
                    yield report
                    report = Report(after_ns, {}, {})
                report.t_ns = after_ns
            report.values.update(values)
        before_ns = after_ns
        if after_ns - report.t_ns >= _LONG_NS:
            yield report
            report = Report(after_ns, {}, {})
    yield report


def _ask_again(readings: list[Reading], after: Reading) -> None:
    """All that a lane reads counts as old after one of its readings hung."""
    for reading in readings:
        if reading is not after and not reading.reason:
            reading.due_ns = 0


def take(field: str, read: Callable[[], object], values: Values, missing: Missing) -> None:
    """What ``read`` gives, or why this GPU or driver has no such thing; raises only where the GPU is gone."""
    try:
        values[field] = read()
    except FAILURES as error:
        cause = why(error)
        if cause.lost:
            raise
        missing[field] = cause.text


def once(make: Callable[..., Made], *arguments: object) -> Callable[[], Made]:
    """What ``make`` makes, made when it is first asked for; and again each time it raises."""
    made: list[Made] = []

    def get() -> Made:
        if not made:
            made.append(make(*arguments))
        return made[0]

    return get


def one(field: str, period_ns: int, read: Callable[[], object], *others: Way | Lazy, counts: bool = False) -> Reading:
    """The reading of what one call gives."""

    def way(values: Values, _: Missing) -> None:
        values[field] = read()

    return Reading((field,), period_ns, way, *others, counts=counts)
