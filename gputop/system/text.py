"""Text that comes from other people's processes, made safe for a terminal."""

from __future__ import annotations

import os
import re
import unicodedata

# C0 and C1 controls, DEL, and the Unicode characters that reorder or hide text (bidi, zero width, line separators, tags).
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)


def clean(text: str, limit: int = 4096) -> str:
    """``text`` without anything a terminal would obey or that would move what stands beside it, cut to ``limit`` characters.

    Markup needs no care here: what we draw is never parsed as markup.
    """
    return _UNSAFE.sub("·", text[:limit])


def clean_lines(text: str, limit: int) -> str:
    """The same of a text that may have several lines, as a stack."""
    return "\n".join(clean(line, limit) for line in text[:limit].split("\n"))


_FORMULA = re.compile("[=+\\-@\t\r\n＝＋－＠]")
"""How a cell begins that a spreadsheet computes instead of showing it (OWASP, "CSV Injection")."""
_PLAIN_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def csv_cell(value: object) -> object:
    """A value as it is written into CSV: a text that a spreadsheet would take for a formula is marked as text by ``'``, as there.

    Numbers stay what they are, also where SQL made a text of one.
    """
    if not isinstance(value, str) or not _FORMULA.match(value) or _PLAIN_NUMBER.fullmatch(value):
        return value
    return f"'{value}"


def one_line(text: str) -> str:
    """Text of several lines, an error's say, cleaned and as one."""
    return clean(" ".join(line.strip() for line in text.splitlines() if line.strip()))


# Everything outside these blocks may be wide, take no cell at all, or be unsafe: Latin, Greek, punctuation, arrows, box drawing, shapes.
_MAYBE_ODD = re.compile("[^\x20-\x7e\xa0-\u02ff\u0370-\u03ff\u2010-\u2027\u2030-\u205e\u2190-\u22ff\u2500-\u25fc\u2713-\u2717]")


def is_narrow(text: str) -> bool:
    """Whether every character surely takes one column and is safe; quick, for what is drawn ten thousand times a minute."""
    return _MAYBE_ODD.search(text) is None


# What Unicode made wide or narrow of late, letters that are invisible, notes that are put together of parts.
_DISPUTED = re.compile(
    "[\u2630-\u2637\u268a-\u268f\u3164\u3248-\u324f\u4dc0-\u4dff\uffa0\U00016fe4\U0001d15e-\U0001d1c0\U0001d300-\U0001d37f]"
)
_DROPPED = re.compile("[\ufe00-\ufe0f\U0001f3fb-\U0001f3ff]")
"""What picks a variant or a skin, which changes the width in one terminal and not in another."""
_UNSURE = ("Cc", "Cf", "Cn", "Co", "Cs", "Mc", "Zl", "Zp")
"""Categories of characters without a width of their own: controls, unassigned and private ones, marks that may take a column."""
_FLAG_A, _FLAG_Z = 0x1F1E6, 0x1F1FF


class _Even(dict[int, str]):
    """What is drawn of a character, so that all terminals agree how many columns that takes: mostly the character itself."""

    def __missing__(self, code: int) -> str:
        self[code] = shown = _evened(chr(code))
        return shown


def _evened(char: str) -> str:
    if _DROPPED.match(char):
        return ""
    if _FLAG_A <= ord(char) <= _FLAG_Z:
        return chr(ord("A") + ord(char) - _FLAG_A)
    return "·" if unicodedata.category(char) in _UNSURE or _DISPUTED.match(char) else char


_EVEN = _Even()


class _Widths(dict[str, int]):
    """Columns of what is drawn of a character."""

    def __missing__(self, char: str) -> int:
        self[char] = width = _width_of(_EVEN[ord(char)])
        return width


def _width_of(shown: str) -> int:
    if not shown or unicodedata.category(shown) in ("Mn", "Me") or "\u1160" <= shown <= "\u11ff" or "\ud7b0" <= shown <= "\ud7ff":
        return 0  # the last two: vowels and ends of Korean syllables in parts
    return 2 if unicodedata.east_asian_width(shown) in "WF" else 1


_WIDTHS = _Widths()


def even(text: str) -> str:
    """``text`` as it is drawn where columns must stay: its marks on their letters, and no character for which some terminals take more
    columns than others."""
    return unicodedata.normalize("NFC", text.translate(_EVEN))


def cell_width(text: str) -> int:
    """Columns that ``text`` takes in a terminal, made `even`."""
    return len(text) if is_narrow(text) else sum(_WIDTHS[char] for char in text)


def figure(value: float, digits: int = 4) -> str:
    """So many significant digits and never an exponent: ``43.75``, ``52,840``."""
    if abs(value) < 10 ** (digits - 1):
        return f"{value:.{digits}g}"
    return f"{round(value, digits - len(str(int(abs(value))))):,.0f}"


def file_size(size_bytes: int) -> str:
    """``38 KB``, ``4.2 MB``."""
    return f"{size_bytes / 1e3:.0f} KB" if size_bytes < 999_500 else f"{size_bytes / 1e6:.1f} MB"


def counted(count: int, noun: str) -> str:
    """``1 worker``, ``3 workers``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def fit(text: str, width: int) -> str:
    """``text`` in exactly ``width`` columns: padded with spaces, or cut with ``…``."""
    missing = width - cell_width(text)
    return text + " " * missing if missing >= 0 else cut(text, width)


def cut(text: str, width: int) -> str:
    """``text`` in at most ``width`` columns, ending in ``…`` where it was cut, then padded where a wide character left a gap."""
    if cell_width(text) <= width:
        return text
    kept, used = "", 0
    for char in text:
        if used + _WIDTHS[char] > width - 1:
            break
        kept += char
        used += _WIDTHS[char]
    return (kept + "…" + " " * (width - used - 1)) if width > 0 else ""


class _Ascii(dict[int, str]):
    """What stands for a character beyond ASCII: of the same width, so that columns stay."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        self[code] = char if 32 <= code < 127 else "?" * cell_width(char)
        return self[code]


_ASCII = _Ascii({ord(" "): " ", ord("°"): " ", ord("🔎"): "/ ", **dict.fromkeys(map(ord, "╭╮╰╯┌┐└┘├┤┬┴┼"), "+")})
_ASCII.update(zip(map(ord, "▁▂▃▄▅▆▇█░▒▪◆▼■►×●▲▾–−─·…←→↑↓✓✗│•~"), "_,-=+*%#:%dmtX>xo!v---..<>^v+x|*~", strict=True))

# What plotext draws with: quarters of a cell.
_ASCII.update(zip(map(ord, "▘▝▀▖▗▌▐▞▚▛▜▙▟"), "'`\".,||/\\####", strict=True))
_ASCII.update(zip(map(ord, "◐▶▔▏▎▍▊▕µ"), "o>-|||||u", strict=True))
_CUT = re.compile(r"(?<=\S)…")
"""Where a name was cut. Not ``~`` in ASCII either: that says of a state that it is inferred."""


def ascii_text(text: str) -> str:
    """The same text for terminals that show no more than ASCII."""
    return text if text.isascii() and is_narrow(text) else _CUT.sub(">", text).translate(_ASCII)


def from_shell(text: str) -> str:
    """An argument as its user meant it: a locale of ASCII alone leaves surrogates for the bytes beyond, nearly always UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return os.fsencode(text).decode("utf-8", "replace")
    return text
