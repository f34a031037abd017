"""Field groups: fields of one GPU that are read together, the ways to read them, and when they are due.

A group remembers the driver's answers. A call that is not supported is made again after 5 s, 20 s, then once a minute. A way that has
worked is kept through failures that may pass, since another way may count differently. A slow call is made less often, so that no group
keeps the driver busy for more than a twentieth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic_ns
from typing import TypeVar

from gputop.model.frame import SECOND_NS
from gputop.sources.nvml.driver import FAILURES, Why, why

Values = dict[str, object]
Missing = dict[str, str]
Made = TypeVar("Made")
Way = Callable[[Values, Missing], None]
"""Puts what it read into the first, and what this GPU cannot give into the second. May raise anything."""

HANG_NS = SECOND_NS  # ns after which a call that has not returned is reported as hanging
ONCE_NS = 1 << 62  # ns, the period of what is read only until it has a value
_LONG_NS = SECOND_NS // 10  # ns of a call after which its values are passed on at once
_RETRY_FIRST_NS, _RETRY_MOST_NS = 5 * SECOND_NS, 60 * SECOND_NS  # ns between tries of what is not supported
_IDLE_SHARE = 20  # a group's period is at least so many times what it costs
_LONGEST_NS = 10 * SECOND_NS  # ns, the longest period that costs lead to
_COSTS = 10  # costs; the least counts
_TRANSIENT_LIMIT = 3  # failures in a row after which a passing one becomes the reason
_BLUR = 100  # a counter's time is off by at most this part of its period, and so are its rates
_EARLY_NS = 500_000  # ns that a group is due early: a beat that comes so much too early must not delay it by a whole beat


class Lost(Exception):
    """The GPU is lost; the text has the reason."""


class FieldGroup:
    """``fields`` of `gputop.model.frame.Gpu`, due every ``period_ns``, read by the first in ``ways`` that gives a value.

    ``counts``: the fields are counters that the last call of a way gives; rates are made of these counters.
    """

    __slots__ = (
        "_better", "_costs", "_retry_ns", "_tries", "_upgrade_ns", "_way", "_ways",
        "base_ns", "counts", "due_ns", "fields", "is_dear", "mig", "period_ns", "reason", "took_ns", "works",
    )  # fmt: skip

    def __init__(self, fields: tuple[str, ...], period_ns: int, *ways: Way, counts: bool = False) -> None:
        self.fields = fields
        self.counts = counts
        self.period_ns = self.base_ns = period_ns  # `base_ns`: as meant, whatever readings cost
        self.due_ns = 0
        self.reason = ""  # why there is no value, empty if there is one
        self.works = False  # whether the way in use has given a value
        self.took_ns = 0  # duration of the last reading
        self._ways = ways
        self._way = 0
        self._better = ""  # why the ways before the one in use failed
        self._upgrade_ns = 0  # when those are tried again
        self._tries = 0  # readings since the last value
        self._retry_ns = _RETRY_FIRST_NS
        self.mig = False  # whether the GPU was split at the last reading
        self.is_dear = False  # whether the last reading cost too much; only then costs are kept
        self._costs: list[int] = []  # ns of the last readings

    def read(self, now_ns: int, values: Values, missing: Missing, mig: bool) -> None:
        """Read now and set the next due time. Raises Lost, nothing else."""
        cause: Why | None = None
        if self.works and not self._way and mig == self.mig:  # nearly every reading: little code, since caches are cold
            try:
                self._ways[0](values, missing)
                self.reason, self._tries, self.due_ns = "", 0, now_ns + self.period_ns - _EARLY_NS
                return
            except FAILURES as error:
                cause = why(error, mig)
        if mig != self.mig:
            self.mig, self._retry_ns, self._upgrade_ns = mig, _RETRY_FIRST_NS, 0
        if self._way and now_ns >= self._upgrade_ns:
            self._way, self.works = 0, False
        self._tries += 1
        failure = self._try_ways(now_ns, values, missing, cause)
        if failure is not None:
            self._fail(failure, now_ns, missing)
            return
        self.works, self.reason, self._tries, self._retry_ns = True, "", 0, _RETRY_FIRST_NS
        self.due_ns = now_ns + self.period_ns - _EARLY_NS

    def add_cost(self, cost_ns: int) -> None:
        """Adapt the period to what readings cost. The least of the last ten counts: a hang or a busy host makes no driver slow."""
        self.took_ns = cost_ns
        if cost_ns * _IDLE_SHARE <= self.base_ns:
            if self.is_dear:
                self.is_dear = False
                self._costs.clear()
                self.period_ns = self.base_ns
            return
        self.is_dear = True
        self._costs = [*self._costs[1 - _COSTS :], cost_ns]
        least = min(self._costs) if len(self._costs) == _COSTS else 0
        self.period_ns = max(self.base_ns, min(least * _IDLE_SHARE, _LONGEST_NS))

    @property
    def slowed(self) -> bool:
        """True if the group is read less often than intended."""
        return self.period_ns > self.base_ns

    def _try_ways(self, now_ns: int, values: Values, missing: Missing, first_failed: Why | None) -> Why | None:
        """Read by the first way that gives a value; else return why none does, preferably a reason that may pass.

        After a failure that may pass, no way but the one in use is tried. ``first_failed``: why that way has just failed.
        """
        failure: Why | None = None
        for at in range(self._way, len(self._ways)):
            cause, first_failed = first_failed or self._try(at, values, missing), None
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

    def _try(self, at: int, values: Values, missing: Missing) -> Why | None:
        try:
            self._ways[at](values, missing)
        except FAILURES as error:
            return why(error, self.mig)
        return None

    def _fail(self, cause: Why, now_ns: int, missing: Missing) -> None:
        """Set the next due time and the reason. After values, one or two failures that may pass are only a gap in the series."""
        if cause.lost:
            raise Lost(cause.text)
        is_gap = self.works and not cause.lasting and self._tries < _TRANSIENT_LIMIT
        self.due_ns = now_ns + min(self.period_ns, _LONGEST_NS) - _EARLY_NS
        if cause.lasting:
            self.works, self._way = False, 0
            self.due_ns = now_ns + self._retry_ns
            self._retry_ns = min(self._retry_ns * 4, _RETRY_MOST_NS)
        if not is_gap:
            self.reason = cause.text
            missing.update(dict.fromkeys(self.fields, cause.text))


class Poll:
    """Result of one poll of a GPU or of a part, from ``t_ns`` on; counters were read at that very time."""

    __slots__ = ("missing", "t_ns", "values")

    def __init__(self, t_ns: int, values: Values, missing: Missing) -> None:
        self.t_ns, self.values, self.missing = t_ns, values, missing


def read_due(groups: list[FieldGroup], now_ns: int, mig: bool) -> Iterator[Poll]:
    """Read the groups that are due: one `Poll` if the driver is quick, else each answer as it comes. Raises Lost."""
    before_ns = monotonic_ns()
    poll = Poll(before_ns, {}, {})
    for group in groups:
        # A refused field may be given, or refused for another reason, since MIG was switched.
        if now_ns < group.due_ns and (mig == group.mig or not group.reason):
            continue
        if group.took_ns >= _LONG_NS and poll.values:
            yield poll
            poll = Poll(before_ns, {}, {})
        values = poll.values if not group.counts else {}
        group.read(now_ns, values, poll.missing, mig)
        after_ns = monotonic_ns()
        if group.is_dear or (after_ns - before_ns) * _IDLE_SHARE > group.base_ns:
            group.add_cost(after_ns - before_ns)
        else:
            group.took_ns = after_ns - before_ns
        late_ns = after_ns - poll.t_ns
        if late_ns >= HANG_NS:  # what was read before it is old by now: read all other groups again
            given = {field: values[field] for field in group.fields if field in values}
            poll = Poll(after_ns if group.counts and given else before_ns, given, poll.missing)
            for other in groups:
                if other is not group and not other.reason:
                    other.due_ns = 0
        elif values is not poll.values:
            if values and late_ns > group.period_ns // _BLUR:
                if poll.values:
                    yield poll
                    poll = Poll(after_ns, {}, {})
                poll.t_ns = after_ns
            poll.values.update(values)
        before_ns = after_ns
        if after_ns - poll.t_ns >= _LONG_NS:
            yield poll
            poll = Poll(after_ns, {}, {})
    yield poll


def take(field: str, read: Callable[[], object], values: Values, missing: Missing) -> None:
    """Put what ``read`` returns into ``values``, or why it fails into ``missing``. Raises only if the GPU is gone."""
    try:
        values[field] = read()
    except FAILURES as error:
        cause = why(error)
        if cause.lost:
            raise
        missing[field] = cause.text


def once(make: Callable[..., Made], *arguments: object) -> Callable[[], Made]:
    """A function that makes the object when it is called first, and returns the same one later. After an error it tries again."""
    made: list[Made] = []

    def get() -> Made:
        if not made:
            made.append(make(*arguments))
        return made[0]

    return get


def made(make: Callable[..., Way], *arguments: object) -> Way:
    """A way that ``make`` makes when it is used first, since making it fails if the driver lacks a function."""
    known: Way | None = None

    def way(values: Values, missing: Missing) -> None:
        nonlocal known
        if known is None:
            known = make(*arguments)
        known(values, missing)

    return way


def single(field: str, period_ns: int, *reads: Callable[[], object], counts: bool = False) -> FieldGroup:
    """The group of one field, which each of ``reads`` returns."""
    return FieldGroup((field,), period_ns, *(_way(field, read) for read in reads), counts=counts)


def _way(field: str, read: Callable[[], object]) -> Way:
    def way(values: Values, _: Missing) -> None:
        values[field] = read()

    return way
