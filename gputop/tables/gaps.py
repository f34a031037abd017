"""Stretches of which a recording knows nothing: beats that the collector skipped, and what cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gputop.model.frame import Mark

SKIPPED, UNREAD = "the beat was skipped", "not in the file"


class Gap(NamedTuple):
    """From the last tick before until the first behind."""

    since_ns: int
    until_ns: int
    missed: int | None
    """Beats that the collector skipped, None where its word is not in the file."""
    reason: str


class Gaps:
    """Finds them among ticks that are told in order, from ``start_ns`` on."""

    def __init__(self, start_ns: int, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self._earlier = self._before = start_ns
        """The last two ticks."""
        self._seq: int | None = None

    def tick(self, t_ns: int, seq: int, missed: int, marks: Sequence[Mark] = ()) -> Gap | None:
        """The gap that this tick tells of, with the recorder's reason where it gave one."""
        unread = t_ns > self._before if self._seq is None else seq != self._seq + 1
        held_up = not unread and t_ns - self._before < missed * self._interval_ns
        since, until = self._before, t_ns
        if held_up and self._before - self._earlier > t_ns - self._before:
            # Who is stopped while it waits runs that beat late; only the next one tells of those skipped meanwhile.
            since, until = self._earlier, self._before
        self._earlier, self._before, self._seq = self._before, t_ns, seq
        reason = next((mark.gap_reason for mark in marks if mark.gap_reason), UNREAD if unread else SKIPPED)
        return Gap(since, until, missed, reason) if (missed or unread) and since < until else None

    def rest(self, end_ns: int) -> Gap | None:
        """The gap up to ``end_ns``, which was still recorded."""
        return Gap(self._before, end_ns, None, UNREAD) if 2 * (end_ns - self._before) > 3 * self._interval_ns else None
