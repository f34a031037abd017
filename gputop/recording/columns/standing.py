"""What counters stood at when a block began, of which the block tells only how far they went on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gputop.recording.columns.layout import Order
from gputop.recording.columns.layout import Subject


class Standing:
    """One field's last value of every subject. Mostly a block is about the very subjects of the one before: these come first."""

    __slots__ = ("_kept", "_lasts", "_order", "_others")

    def __init__(self) -> None:
        self._order: Order | None = None
        self._lasts: Sequence[Any] = ()
        """Of each subject of that order."""
        self._kept: tuple[Order | None, Sequence[Any], list[Any]] = None, (), []
        self._others: dict[Subject, Any] = {}

    def __len__(self) -> int:
        return len(self._others) + len(self._lasts)

    def of(self, order: Order, unseen: Any = 0) -> Sequence[Any]:
        """The last value of each of the order's subjects."""
        if order is self._order:
            return self._lasts
        self._settle()
        return [self._others.get(subject, unseen) for subject in order.subjects]

    def as_before(self, order: Order, column: Sequence[Any]) -> list[Any] | None:
        """How the block before told its column, if that was this very one and would be told so again; None otherwise."""
        if order is self._kept[0] and column == self._kept[1]:
            return self._kept[2]
        return None

    def keep(self, order: Order, column: Sequence[Any], packed: list[Any]) -> list[Any]:
        """Keep for `as_before` how a column was told."""
        self._kept = order, column, packed
        return packed

    def put(self, order: Order, lasts: Sequence[Any]) -> None:
        """What the order's subjects stand at now."""
        if order is not self._order:
            self._settle()
        self._order, self._lasts, self._kept = order, lasts, (None, (), [])

    def copy(self) -> Standing:
        """One that goes on by itself."""
        other = Standing()
        other._order, other._lasts, other._others = self._order, self._lasts, dict(self._others)
        return other

    def _settle(self) -> None:
        if self._order is not None:
            self._others.update(zip(self._order.subjects, self._lasts, strict=True))
            self._order = None


Standings = dict[tuple[str, str], Standing]
"""(path, field) -> that; the field is empty for the counts of a dict, whose path is the field's own."""
