"""The parts of the screen as text: pure functions from what is known to lines of spans, one file a part. No textual here."""

from __future__ import annotations

from collections.abc import Sequence

from gputop.text import cell_width

Span = tuple[str, str]
"""Text and what it means; `gputop.tui.palette` gives meanings their colour."""
Line = Sequence[Span]


class _Ascii(dict[int, str]):
    """What stands for a character beyond ASCII: of the same width, so that columns stay."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        self[code] = char if code < 128 else "?" * cell_width(char)
        return self[code]


_ASCII = _Ascii({ord(" "): " ", ord("°"): " "})
_ASCII.update(zip(map(ord, "▁▂▃▄▅▆▇█░▒▪◆▼■►×●▲▾–−─·…←→↑↓✓✗│•~"), "_.-=+*%#:%dmtX>x!>v---.~<>^v+x|*~", strict=True))


def ascii_line(line: Line) -> Line:
    """The same line for terminals that show no more than ASCII."""
    return [(text if text.isascii() else text.translate(_ASCII), meaning) for text, meaning in line]
