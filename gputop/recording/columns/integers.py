"""Columns of integers, which go on from where their subjects stood before the block."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add, sub
from typing import Any

from gputop.recording.columns.context import Context
from gputop.recording.columns.layout import INTS, LAST_INTS, LESS, STEPS, ZEROS, Order, unpack_integers
from gputop.recording.columns.sums import onward, per_subject, sums, times, whole

BY_STEPS = (STEPS, LESS)
ENDS_KNOWN = (LAST_INTS, *BY_STEPS)
"""Codes of which a subject's last value is told, or soon summed up."""
INTEGERS = (INTS, *ENDS_KNOWN)


class Integers:
    """Those of the table at ``path``. Where a value is absent stands the one before it."""

    __slots__ = ("_context", "_order", "_path")

    def __init__(self, context: Context, path: str, order: Order) -> None:
        self._context, self._path, self._order = context, path, order

    def values(self, name: str, packed: list[Any]) -> list[int]:
        """Of each row, in the order of subjects."""
        code, _, unit, *rest = packed
        steps = self.steps(packed)
        if code in BY_STEPS:
            return onward(self._context.stood(self._path, name, self._order), steps, self._order)
        return sums(self._anchors(name, unit, rest[0]), steps, self._order.spans, code == LAST_INTS)

    def steps(self, packed: list[Any]) -> list[int]:
        """How each row, in the order of subjects, differs from the one before."""
        return times(packed[2], unpack_integers(packed[-1], len(self._order.ids)))

    def course(self, name: str, packed: list[Any]) -> tuple[Sequence[int], list[int], list[int]]:
        """Where each subject stood before, where it then stands, and `steps`, of a column that is absent in no row."""
        steps = self.steps(packed)
        if packed[0] == LAST_INTS:
            lasts = self.lasts(name, packed)
            return list(map(sub, lasts, per_subject(steps, self._order))), lasts, steps
        stood = self._context.stood(self._path, name, self._order)
        return stood, self._context.lasts(self._path, name, self._order, lambda: whole(self._after(stood, packed[-1], steps))), steps

    def _after(self, stood: Sequence[int], told: bytes, steps: list[int]) -> list[int]:
        return list(stood) if told == ZEROS else list(map(add, stood, per_subject(steps, self._order)))

    def lasts(self, name: str, packed: list[Any]) -> list[int]:
        """Each subject's last value."""
        return self._context.lasts(self._path, name, self._order, lambda: whole(self._lasts(name, packed)))

    def _lasts(self, name: str, packed: list[Any]) -> list[int]:
        code, _, unit, *rest = packed
        if code == LAST_INTS:
            return self._anchors(name, unit, rest[0])
        if code == INTS:
            return self._order.at_ends(self.values(name, packed))
        return self._after(self._context.stood(self._path, name, self._order), rest[-1], self.steps(packed))

    def _anchors(self, name: str, unit: int, anchors: bytes) -> list[int]:
        """Each subject's known value, its first or its last."""
        stood = self._context.stood(self._path, name, self._order)
        if anchors == b"\0":
            return list(stood)
        return list(map(add, times(unit, unpack_integers(anchors, len(self._order.starts))), stood))
