"""What commands write for people: nothing in it that a terminal would obey, whoever's names and words it has."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from gputop.text import clean
from gputop.text import one_line

_MOST_CHARACTERS = 1 << 16
"""Of a line."""


def show(lines: Iterable[str]) -> None:
    """Lines on standard output."""
    for line in lines:
        print(clean(line, _MOST_CHARACTERS))
    sys.stdout.flush()


def tell(text: str) -> None:
    """A line on standard error: what went wrong and what to do, or what was done."""
    print(f"gputop: {one_line(text)}", file=sys.stderr, flush=True)
