"""The parts of the screen as text: pure functions from what is known to lines of spans, one file a part. No textual here."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby, islice

from gputop.system.text import ascii_text, cell_width, clean, even, is_narrow

Span = tuple[str, str]
"""Text and what it means; `gputop.tui.palette` gives meanings their colour."""
Line = Sequence[Span]


def ascii_line(line: Line) -> Line:
    """The same line for terminals that show no more than ASCII."""
    return [(ascii_text(text), meaning) for text, meaning in line]


def safe_line(line: Line) -> list[Span]:
    """The same line without anything that a terminal would obey, or take other columns for than we do: what every line passes on its way
    to the screen."""
    if is_narrow("".join([text for text, _ in line])):
        return list(line)
    return [(even(clean(text, len(text))), meaning) for text, meaning in line]


def surely(text: str, width: int) -> int:
    """How many characters of a text fit ``width`` columns, whichever they are."""
    return width if cell_width(text) == len(text) else max(1, width // 2)


def folded(line: Line, width: int) -> list[Line]:
    """The same line in rows of at most ``width`` columns, the further ones indented below the first."""
    whole = "".join(text for text, _ in line)
    if cell_width(whole) <= width:
        return [line]
    # Less of it where it would leave no room for the text: textwrap puts nothing into its rows then, for ever.
    indent = " " * min(len(whole) - len(whole.lstrip()) + 4, surely(whole, width) // 2)
    rows = textwrap.wrap(whole, surely(whole, width), subsequent_indent=indent, drop_whitespace=False, break_on_hyphens=False)
    chars = ((char, meaning) for text, meaning in line for char in text)
    out: list[Line] = []
    for before in ["", *[indent] * (len(rows) - 1)]:
        taken = groupby(islice(chars, len(rows[len(out)]) - len(before)), key=lambda char: char[1])
        out.append([(before, ""), *(("".join(char for char, _ in run), meaning) for meaning, run in taken)])
    return out
