"""When stacks are taken by themselves: once as an incident begins, and never often. Pure; who calls it takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol, TypeVar


class Begun(Protocol):
    """What is asked of an incident (`gputop.diagnosis.Incident` has more)."""

    @property
    def id(self) -> int: ...

    @property
    def start_ns(self) -> int: ...

    @property
    def end_ns(self) -> int | None: ...


Episode = TypeVar("Episode", bound=Begun)


class AutoStacks:
    """Decides for which incident to take one set of stacks now.

    An incident is due once, while it lasts. Two sets are at least ``least_gap_ns`` apart and at most ``most_per_hour`` are taken in
    an hour; an incident that must wait is due as soon as it may, if it still lasts. A set that took ``took_ns`` keeps the next away for
    `COST_SHARE` times as long, so that it never takes more than 1/300 of the time, however many processes there are.
    """

    COST_SHARE = 300

    def __init__(self, least_gap_ns: int = 30_000_000_000, most_per_hour: int = 60) -> None:
        self._least_gap_ns = least_gap_ns
        self._taken: deque[int] = deque(maxlen=most_per_hour)
        self._not_before_ns = 0
        self._done: set[tuple[int, int]] = set()
        """(id, start_ns): ids begin anew when a collector is started again."""

    def due(self, incidents: Iterable[Episode], now_ns: int) -> Episode | None:
        """The incident to take stacks for at ``now_ns``, the newest first, None for none. Count it with `taken`."""
        if now_ns < self._not_before_ns or self._is_spent(now_ns):
            return None
        waiting = [one for one in incidents if one.end_ns is None and one.start_ns <= now_ns and (one.id, one.start_ns) not in self._done]
        return max(waiting, key=lambda one: (one.start_ns, one.id), default=None)

    def taken(self, incident: Begun, now_ns: int, took_ns: int = 0) -> None:
        """A set was taken (or failed: it is not tried again) for this incident."""
        self._done.add((incident.id, incident.start_ns))
        self._taken.append(now_ns)
        self._not_before_ns = now_ns + max(self._least_gap_ns, self.COST_SHARE * took_ns)

    def _is_spent(self, now_ns: int) -> bool:
        """As many as an hour may have, within the last hour."""
        return len(self._taken) == self._taken.maxlen and now_ns - self._taken[0] < 3_600_000_000_000
