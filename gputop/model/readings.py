"""One field's readings of one subject, tick by tick: what lies behind is packed, for much of it was the same, or not fresh."""

from __future__ import annotations

from array import array
from math import nan
from threading import local
from typing import TypeAlias

import zstandard

STRETCH = 256
"""Ticks that are packed together."""
_BLANK = array("f", [nan]) * STRETCH
_Packed: TypeAlias = "float | bytes"
"""Of a stretch: the one reading that stood throughout, NaN for none; or all, compressed."""


class _Zstd(local):
    """Of one thread; making a decompressor takes twenty times what it then does, and each cell that is drawn asks."""

    def __init__(self) -> None:
        self.decompress = zstandard.ZstdDecompressor().decompress


_zstd = _Zstd()


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
    data = stretch.tobytes()
    if data == data[: stretch.itemsize] * STRETCH:
        return stretch[0]
    return bytes(memoryview(zstandard.compress(data, 1)))  # what that gives keeps the room that the worst case would need


def _unpack(packed: _Packed) -> array[float]:
    return array("f", [packed]) * STRETCH if isinstance(packed, float) else array("f", _zstd.decompress(packed))
