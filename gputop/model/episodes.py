"""Which state a process was in, tick by tick: kept as the ticks at which that changed, for a state stands for seconds."""

from __future__ import annotations

from array import array
from bisect import bisect_right


class Episodes:
    """State codes over ticks, which are counted from the oldest held; 0 is "not known"."""

    __slots__ = ("_codes", "_starts")

    def __init__(self) -> None:
        self._starts = array("i", [0])
        self._codes = bytearray(1)
        """What began at each of the starts, and stood until the next one."""

    def put(self, code: int, first: int, last: int) -> None:
        """It was ``code`` from the tick ``first`` to before ``last``; what had been said of later ones no longer holds."""
        self._turn(first, code)
        self._turn(last, 0)

    def drop(self, ticks: int) -> None:
        """Forget so many of the oldest ticks."""
        gone = bisect_right(self._starts, ticks) - 1
        self._codes = self._codes[gone:]
        self._starts = array("i", [max(0, start - ticks) for start in self._starts[gone:]])

    @property
    def known(self) -> bool:
        """Whether there was any state."""
        return any(self._codes)

    def most(self, first: int, last: int) -> int:
        """The state that holds most of the ticks from ``first`` to before ``last``, of two alike the higher code; 0 where none is known."""
        held: dict[int, int] = {}
        start = first
        for i in range(max(0, bisect_right(self._starts, first) - 1), len(self._starts)):
            end = min(last, self._starts[i + 1]) if i + 1 < len(self._starts) else last
            if end <= start:
                break
            held[self._codes[i]] = held.get(self._codes[i], 0) + end - start
            start = end
        held.pop(0, None)
        return max(held, key=lambda code: (held[code], code)) if held else 0

    def _turn(self, tick: int, code: int) -> None:
        while self._starts and self._starts[-1] >= tick:
            self._starts.pop()
            self._codes.pop()
        if not self._codes or self._codes[-1] != code:
            self._starts.append(tick)
            self._codes.append(code)
