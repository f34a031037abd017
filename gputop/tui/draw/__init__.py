"""The screen as text: functions from what is known to lines of spans, one file per part of the screen. No Textual here."""

from __future__ import annotations

import textwrap
from itertools import dropwhile, groupby, islice
from time import localtime, strftime

from gputop.system.colour import Line as Line  # meanings have their colours on a screen from `gputop.tui.widgets`
from gputop.system.colour import Span as Span
from gputop.system.text import ascii_text, cell_width, clean, cut, even, is_narrow

NEARLY_S = 0.05  # s before a full second that are shown as that second: frames come a little early
LEAST_COLUMNS, LEAST_ROWS = 20, 3  # a smaller terminal shows nothing but `TOO_SMALL`
TOO_SMALL = f"too small, needs {LEAST_COLUMNS}×{LEAST_ROWS}"


def ascii_line(line: Line) -> Line:
    """The line for terminals that show only ASCII."""
    return [(ascii_text(text), meaning) for text, meaning in line]


def clipped(line: Line, width: int) -> list[Span]:
    """The line in at most ``width`` columns."""
    out = list[Span]()
    for text, style in line:
        out.append((cut(text, width), style))
        width -= cell_width(out[-1][0])
    return out


def safe_line(line: Line) -> list[Span]:
    """The line without control characters, and without characters of different width in different terminals. Every line passes here."""
    if is_narrow("".join([text for text, _ in line])):
        return list(line)
    return [(even(clean(text, len(text))), meaning) for text, meaning in line]


def is_too_small(columns: int, rows: int) -> bool:
    """True if a terminal has no room for any screen."""
    return columns < LEAST_COLUMNS or rows < LEAST_ROWS


def room_for(text: str, width: int) -> int:
    """Number of characters of a text that fit ``width`` columns, wherever it is cut."""
    return width if cell_width(text) == len(text) else max(1, width // 2)


def folded(line: Line, width: int) -> list[Line]:
    """The line in rows of at most ``width`` columns; all but the first row are indented."""
    whole = "".join(text for text, _ in line)
    if cell_width(whole) <= width:
        return [line]
    room = room_for(whole, width)
    # A smaller indent where it would leave no room: textwrap would loop for ever.
    indent = " " * min(len(whole) - len(whole.lstrip()) + 4, room // 2)
    rows = textwrap.wrap(whole, room, subsequent_indent=indent, drop_whitespace=False, break_on_hyphens=False)
    chars = ((char, meaning) for text, meaning in line for char in text)
    out: list[Line] = []
    for before, row in zip(["", *[indent] * (len(rows) - 1)], rows, strict=True):
        told = list(islice(chars, len(row) - len(before)))
        if before:  # the space at which it broke
            told = list(dropwhile(lambda char: char[0] == " ", told))
        if told or not out:
            out.append(
                [(before, ""), *(("".join(char for char, _ in run), meaning) for meaning, run in groupby(told, key=lambda char: char[1]))]
            )
    return out


def time_of_day(unix_s: float, tenths: bool = False) -> str:
    """``14:03:07``, or ``14:03:07.2``, in local time."""
    whole, tenth = divmod(int((unix_s + NEARLY_S) * 10), 10)
    return strftime("%H:%M:%S", localtime(whole)) + (f".{tenth}" if tenths else "")


def duration(seconds: float, tenths: bool = False) -> str:
    """``0:07``, ``12:30`` or ``3:07:05``; with tenths ``0:07.2``."""
    whole, tenth = divmod(int((max(0.0, seconds) + NEARLY_S) * 10), 10)
    minutes, left = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
    return text + (f".{tenth}" if tenths else "")


def size(value: float) -> str:
    """Bytes in at most six characters."""
    for unit in ("B", "K", "M", "G", "T"):
        if value < 1000 or unit == "T":
            return f"{value:.0f}{unit}" if unit in "BK" or value >= 10 else f"{value:.1f}{unit}"
        value /= 1024
    return ""
