"""One field's readings of one subject, tick by tick: what lies behind is packed, for much of it was the same, or not fresh."""

from __future__ import annotations

from array import array
from math import nan
from typing import TypeAlias

STRETCH = 256
"""Ticks that are packed together; a place in them is a byte."""
_DENSE = STRETCH * 5 // 8
"""Fresh readings from which on they take less without their places."""
_BLANK = array("f", [nan]) * STRETCH
_Packed: TypeAlias = "float | tuple[bytes, array[float]] | array[float]"
"""Of a stretch: the one reading that stood throughout, NaN for none; or the places and values of the fresh ones; or all."""


class Readings:
    """32-bit floats, NaN where nothing fresh was read."""

    __slots__ = ("_packed", "growing")

    def __init__(self, stretches: int) -> None:
        """That many whole stretches have passed without a reading."""
        self._packed: list[_Packed] = [nan] * stretches
        self.growing = _BLANK[:]
        """The stretch that is not packed yet."""

    def close(self) -> None:
        """Pack the stretch that has passed, and begin the next."""
        self._packed.append(_pack(self.growing))
        self.growing = _BLANK[:]

    def drop(self) -> None:
        """Forget the oldest stretch."""
        del self._packed[0]

    def part(self, first: int, last: int) -> array[float]:
        """Those of the ticks from ``first`` to before ``last``, counted from the oldest held."""
        number, place = divmod(first, STRETCH)
        found = self._stretch(number)[place : place + last - first]
        for start in range((number + 1) * STRETCH, last, STRETCH):
            found += self._stretch(start // STRETCH)[: last - start]
        return found

    def _stretch(self, number: int) -> array[float]:
        return _unpack(self._packed[number]) if number < len(self._packed) else self.growing


def _pack(stretch: array[float]) -> _Packed:
    fresh = [(place, value) for place, value in enumerate(stretch) if value == value]
    if not fresh:
        return nan
    if stretch.count(stretch[0]) == STRETCH:
        return stretch[0]
    if len(fresh) >= _DENSE:
        return stretch
    return bytes(place for place, _ in fresh), array("f", [value for _, value in fresh])


def _unpack(packed: _Packed) -> array[float]:
    if isinstance(packed, float):
        return array("f", [packed]) * STRETCH
    if isinstance(packed, array):
        return packed
    stretch = _BLANK[:]
    for place, value in zip(*packed, strict=True):
        stretch[place] = value
    return stretch
