"""What counters stood at when a block began, of which the block tells only how far they went on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gputop.recording.columns.layout import FieldPlan, Order, Subject


class Standing:
    """One field's last value of every subject. Mostly a block is about the very subjects of the one before: these come first."""

    __slots__ = ("_lasts", "_order", "_others")

    def __init__(self) -> None:
        self._order: Order | None = None
        self._lasts: Sequence[Any] = ()
        """Of each subject of that order."""
        self._others: dict[Subject, Any] = {}

    def __len__(self) -> int:
        return len(self._others) + len(self._lasts)

    def of(self, order: Order, unseen: Any = 0) -> Sequence[Any]:
        """The last value of each of the order's subjects."""
        if order is self._order:
            return self._lasts
        self._settle()
        return [self._others.get(subject, unseen) for subject in order.subjects]

    def put(self, order: Order, lasts: Sequence[Any]) -> None:
        """What the order's subjects stand at now."""
        if order is not self._order:
            self._settle()
        self._order, self._lasts = order, lasts

    def copy(self) -> Standing:
        """One that goes on by itself."""
        other = Standing()
        other._order, other._lasts, other._others = self._order, self._lasts, dict(self._others)
        return other

    def _settle(self) -> None:
        if self._order is not None:
            self._others.update(zip(self._order.subjects, self._lasts, strict=True))
            self._order = None


class TableStanding:
    """The same of all fields of a table at once, for who writes it: each subject is looked up once, not once a field."""

    __slots__ = ("_kept", "_lasts", "_others", "_plan", "order")

    def __init__(self, plan: Mapping[str, FieldPlan]) -> None:
        self._plan = plan
        self.order = Order((), (), ())
        """Whose subjects `of` and `put` are about."""
        self._lasts: dict[str, Sequence[Any]] = {}
        """Of the fields that were ever asked for: most never change."""
        self._others: dict[Subject, tuple[Any, ...]] = {}
        """The same of each subject ever seen."""
        self._kept: dict[str, tuple[Sequence[Any], list[Any]]] = {}

    def move(self, order: Order) -> None:
        """Go on with another order."""
        if order is self.order:
            return
        self._others.update(zip(self.order.subjects, zip(*self._lasts.values(), strict=True), strict=False))
        unseen = tuple(map(self._unseen, self._lasts))
        stood = [self._others.get(subject, unseen) for subject in order.subjects]
        self.order, self._lasts, self._kept = order, dict(zip(self._lasts, zip(*stood, strict=True), strict=False)), {}

    def of(self, name: str) -> Sequence[Any]:
        """The last value in a field of each of the order's subjects."""
        lasts = self._lasts.get(name)
        if lasts is None:
            unseen = self._unseen(name)
            lasts = self._lasts[name] = [unseen] * len(self.order.subjects)
            self._others = {subject: (*stood, unseen) for subject, stood in self._others.items()}
        return lasts

    def _unseen(self, name: str) -> Any:
        return {} if self._plan[name].kind == "counts" else 0

    def put(self, name: str, lasts: Sequence[Any]) -> None:
        """What they stand at now."""
        self._lasts[name] = lasts
        self._kept.pop(name, None)

    def as_before(self, name: str, column: Sequence[Any]) -> list[Any] | None:
        """How the block before told its column, if that was this very one and would be told so again; None otherwise."""
        before, packed = self._kept.get(name, (None, None))
        return packed if column == before else None

    def keep(self, name: str, column: Sequence[Any], packed: list[Any]) -> list[Any]:
        """Keep for `as_before` how a column was told."""
        self._kept[name] = column, packed
        return packed

    def copy(self) -> TableStanding:
        """One that goes on by itself."""
        other = TableStanding(self._plan)
        other.order, other._lasts, other._others = self.order, dict(self._lasts), dict(self._others)
        return other


Standings = dict[str, TableStanding]
"""Path of a table -> that."""
