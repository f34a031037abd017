"""Pauses that come again and again. Each of them is no fault, but what they take together somebody may want back."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

MANY, SHARE = 4, 0.25
"""So many pauses in a row, and the share of the time that they take, from which they are told. A checkpoint and the evaluation that
comes with it are fewer."""
KNOWN_NS = 600_000_000_000  # how long ago the first of them may have begun
SAME_NS = 450_000_000  # two readings that see a GPU rest with less than this between them see one pause

Span = tuple[int, int]  # when something began and ended, CLOCK_MONOTONIC


def length_s(spans: Iterable[Span], oldest_ns: int = 0) -> float:
    """Of all together, since then."""
    return sum(until - max(since, oldest_ns) for since, until in spans) / 1e9


class Repeated(Struct, frozen=True):
    """What pauses of one trainer have taken."""

    count: int
    each_s: float  # mean
    share: float
    seconds: float  # since the first of them began

    def told(self) -> str:
        """In words."""
        return f"{self.count} pauses of {self.each_s:.1f} s each took {100 * self.share:.0f}% of the last {self.seconds:.0f} s"


class Repeats:
    """The pauses of one trainer, also those that the window has forgotten."""

    __slots__ = ("_pauses",)

    def __init__(self) -> None:
        self._pauses: list[Span] = []

    def note(self, pauses: Iterable[Span], now_ns: int) -> None:
        """Those that reach into the window; known ones may have grown."""
        known = [span for span in self._pauses if span[0] > now_ns - KNOWN_NS]
        self._pauses = _merged([*known, *pauses])

    def told(self, now_ns: int) -> Repeated | None:
        """None where they are few, or take little."""
        if len(self._pauses) < MANY:
            return None
        lasted, first_ns = [until - since for since, until in self._pauses], self._pauses[0][0]
        # From the beginning of one to that of another; and less by and by where no other begins.
        share = min(sum(lasted[:-1]) / (self._pauses[-1][0] - first_ns), sum(lasted) / (now_ns - first_ns))
        return Repeated(len(lasted), sum(lasted) / len(lasted) / 1e9, share, (now_ns - first_ns) / 1e9) if share >= SHARE else None


def _merged(spans: Iterable[Span]) -> list[Span]:
    """What the GPU, its calls and its workers' turns show of the same pause is one."""
    merged: list[Span] = []
    for since, until in sorted(spans):
        if merged and since <= merged[-1][1] + SAME_NS:
            merged[-1] = merged[-1][0], max(merged[-1][1], until)
        else:
            merged.append((since, until))
    return merged
