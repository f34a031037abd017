"""How many rows each part of the screen gets; every part folds before the process table does."""

from __future__ import annotations

from msgspec import Struct

LEAST_COLUMNS, LEAST_ROWS = 20, 3
"""A terminal that is smaller shows nothing but that."""
TOO_SMALL = f"too small, needs {LEAST_COLUMNS}×{LEAST_ROWS}"
LEAST_PROCS = 8
"""Heading and seven processes: what an 80×24 terminal must show."""


class Heights(Struct, frozen=True):
    """Rows of each part; 0 hides it."""

    header: int = 0
    verdict: int = 0
    gpus: int = 0
    lanes: int = 0
    """The ruler counts."""
    procs: int = 0
    keys: int = 0
    scrub: int = 0
    """The line of a replay."""


def is_too_small(columns: int, rows: int) -> bool:
    """Whether a terminal has no room for any screen."""
    return columns < LEAST_COLUMNS or rows < LEAST_ROWS


def arrange(height: int, gpus: int, lanes: int, scrub: int = 0) -> Heights:
    """Share out ``height`` rows among parts that would like ``gpus`` GPU rows, ``lanes`` lanes and ``scrub`` rows for a replay."""
    header = 1 if height >= 2 else 0
    keys = 1 if height >= 10 else 0
    verdict = 2 if height >= 8 else 1 if height >= 3 else 0
    scrub = scrub if height >= 10 else 0
    left = height - header - keys - verdict - scrub
    # All of them where a third holds all; where some must be left out anyway, few are as good.
    gpu_rows = 1 + (max(gpus, 1) if gpus <= left // 3 else max(1, left // 5)) if left >= 8 else 0
    left -= gpu_rows
    least_procs = LEAST_PROCS if left < 34 else left // 3
    lane_rows = min(lanes, left - least_procs - 1)
    lane_rows = lane_rows + 1 if lane_rows >= 1 else 0
    return Heights(header, verdict, gpu_rows, lane_rows, max(0, left - lane_rows), keys, scrub)
