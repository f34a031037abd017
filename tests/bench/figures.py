"""Figures of several runs, and the Markdown tables they are printed in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median


def spread(values: Sequence[float], digits: int = 1) -> str:
    """min/median/max, or the reason why there is none."""
    if not values:
        return "not measured"
    low, middle, high = min(values), median(values), max(values)
    return "/".join(f"{value:.{digits}f}" for value in (low, middle, high))


def quantile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` (0 to 1) of ``values`` do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
