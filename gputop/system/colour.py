"""Colour of what commands print: which streams take it, and each meaning's sequence. Without it the text is the same, byte for byte."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TextIO

Span = tuple[str, str]  # text and its meaning
Line = Sequence[Span]
SGR = {
    "title": "1", "head": "1", "dim": "2", "accent": "36", "good": "32", "warn": "33", "crit": "1;31", "starving": "1;31", "culprit": "35",
}  # fmt: skip
"""Meaning -> parameters of the escape sequence: the terminal's own colours, so that every palette is readable. Faint is no colour of its
own, as bright black is, which some palettes make invisible."""


def takes_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """True if colour is wanted on a stream: NO_COLOR forbids it, FORCE_COLOR and CLICOLOR_FORCE want it even in a pipe (https://no-color.org,
    https://bixense.com/clicolors); else a terminal that is not dumb takes it."""
    if environ.get("NO_COLOR"):
        return False
    if any(environ.get(name, "") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return environ.get("TERM", "") not in ("", "dumb") and environ.get("CLICOLOR", "") != "0" and stream.isatty()


def width_of(stream: TextIO, least: int, most: int, otherwise: int) -> int:
    """Columns for text on a stream: the terminal's within bounds; ``otherwise`` in a pipe or a file, whose lines depend on no terminal."""
    if not stream.isatty():
        return otherwise
    import shutil  # loads compressors

    return min(most, max(least, shutil.get_terminal_size((otherwise, 24)).columns))


def painted(line: Line, on: bool) -> str:
    """The line's text; ``on``: with the sequences of its meanings."""
    if not on:
        return "".join(text for text, _ in line)
    return "".join(f"\x1b[{code}m{text}\x1b[0m" if text.strip() and (code := SGR.get(style)) else text for text, style in line)


def trimmed(line: Line) -> list[Span]:
    """The line without blanks at its end."""
    out = list(line)
    while out and not out[-1][0].rstrip():
        out.pop()
    return [*out[:-1], (out[-1][0].rstrip(), out[-1][1])] if out else []
