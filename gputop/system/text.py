"""Text from other people's processes made safe for a terminal, and numbers in words."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import groupby

# C0 and C1 controls, DEL, surrogates, and Unicode characters that reorder or hide text (bidi, zero width, line separators, tags).
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)


def decoded(data: bytes) -> str:
    """The text of a file that people edit: UTF-8, or UTF-16 by its byte order mark, which editors of Windows put first; without the mark.
    UnicodeDecodeError if it is neither."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16")
    return data.decode("utf-8-sig")


def clean(text: str, limit: int = 4096) -> str:
    """The first ``limit`` characters of ``text``, with a dot for each that a terminal would obey or that would move its neighbours.

    Markup stays: gputop's output is never parsed as markup.
    """
    return _UNSAFE.sub("·", text[:limit])


def clean_lines(text: str, limit: int) -> str:
    """`clean` each line of a text of at most ``limit`` characters, such as a stack."""
    return "\n".join(clean(line, limit) for line in text[:limit].split("\n"))


_FORMULA = re.compile("[=+\\-@\t\r\n＝＋－＠]")  # the first character of a cell that a spreadsheet computes (OWASP, "CSV Injection")
_PLAIN_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def csv_cell(value: object) -> object:
    """A value for CSV: ``'`` before a text that a spreadsheet would take for a formula, as spreadsheets mark text.

    Numbers stay as they are, also as text.
    """
    if not isinstance(value, str) or not _FORMULA.match(value) or _PLAIN_NUMBER.fullmatch(value):
        return value
    return f"'{value}"


def one_line(text: str) -> str:
    """The lines of ``text``, such as an error's, joined to one and cleaned."""
    return clean(" ".join(line.strip() for line in text.splitlines() if line.strip()))


# Characters outside of Latin, Greek, punctuation, arrows, box drawing and shapes: they may be wide, take no column, or be unsafe.
_MAYBE_ODD = re.compile("[^\x20-\x7e\xa0-\u02ff\u0370-\u03ff\u2010-\u2027\u2030-\u205e\u2190-\u22ff\u2500-\u25fc\u2713-\u2717]")


def is_narrow(text: str) -> bool:
    """True if each character surely takes one column and is safe. Quick: called ten thousand times a minute."""
    return _MAYBE_ODD.search(text) is None


# Characters of a width that Unicode changed recently, invisible letters, composed musical notes: terminals disagree about their width.
_DISPUTED = re.compile(
    "[\u2630-\u2637\u268a-\u268f\u3164\u3248-\u324f\u4dc0-\u4dff\uffa0\U00016fe4\U0001d15e-\U0001d1c0\U0001d300-\U0001d37f]"
)
_DROPPED = re.compile("[\ufe00-\ufe0f\U0001f3fb-\U0001f3ff]")  # variation selectors and skin tones: terminals disagree about the width
_UNSURE = ("Cc", "Cf", "Cn", "Co", "Cs", "Mc", "Zl", "Zp")  # Unicode categories without a sure width: a dot is drawn
_FLAG_A, _FLAG_Z = 0x1F1E6, 0x1F1FF  # regional indicators, drawn as the letters A to Z


class _Even(dict[int, str]):
    """Code point -> what is drawn for it: the character itself, or a substitute if terminals disagree about its width."""

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
    """Character -> columns that its drawn form takes."""

    def __missing__(self, char: str) -> int:
        self[char] = width = _width_of(_EVEN[ord(char)])
        return width


def _width_of(shown: str) -> int:
    if not shown or unicodedata.category(shown) in ("Mn", "Me") or "\u1160" <= shown <= "\u11ff" or "\ud7b0" <= shown <= "\ud7ff":
        return 0  # combining marks; vowels and finals of decomposed Korean syllables
    return 2 if unicodedata.east_asian_width(shown) in "WF" else 1


_WIDTHS = _Widths()


def even(text: str) -> str:
    """``text`` in a form that takes equally many columns in all terminals: composed (NFC), with substitutes for disputed characters."""
    return unicodedata.normalize("NFC", text.translate(_EVEN))


def cell_width(text: str) -> int:
    """Columns that ``text`` takes once it is made `even`."""
    return len(text) if is_narrow(text) else sum(_WIDTHS[char] for char in text)


def figure(value: float, digits: int = 4) -> str:
    """``value`` with ``digits`` significant digits and no exponent: ``43.75``, ``52,840``."""
    if abs(value) < 10 ** (digits - 1):
        return f"{value:.{digits}g}"
    return f"{round(value, digits - len(str(int(abs(value))))):,.0f}"


def file_size(size_bytes: int) -> str:
    """``38 KB``, ``4.2 MB``."""
    return f"{size_bytes / 1e3:.0f} KB" if size_bytes < 999_500 else f"{size_bytes / 1e6:.1f} MB"


def counted(count: int, noun: str) -> str:
    """``1 worker``, ``3 workers``, ``2 processes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def fit(text: str, width: int) -> str:
    """``text`` in exactly ``width`` columns: padded with spaces, or cut with ``…``."""
    missing = width - cell_width(text)
    return text + " " * missing if missing >= 0 else cut(text, width)


def cut(text: str, width: int) -> str:
    """``text`` in at most ``width`` columns. A cut text ends in ``…``, and a space if a wide character left a gap."""
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
    """Code point -> ASCII substitute of the same width, so that columns stay."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        self[code] = char if 32 <= code < 127 else "?" * cell_width(char)
        return self[code]


_ASCII = _Ascii({ord(" "): " ", ord("°"): " ", ord("🔎"): "/ ", ord("┄"): "?", **dict.fromkeys(map(ord, "╭╮╰╯┌┐└┘├┤┬┴┼"), "+")})
_ASCII.update(zip(map(ord, "▁▂▃▄▅▆▇█░▒▪◆▼■►×●▲▾–−─·…←→↑↓✓✗│•~"), "_,-=+*%#:%dmvX>xo!v---..<>^v+x|*~", strict=True))

# Plotext draws with quarters of a cell.
_ASCII.update(zip(map(ord, "▘▝▀▖▗▌▐▞▚▛▜▙▟"), "'`\".,||/\\####", strict=True))
_ASCII.update(zip(map(ord, "◐○▶▔▏▎▍▊▕µ╌◄▸━"), "o.>-|||||u-<>=", strict=True))
_CUT = re.compile(r"(?<=\S)…")  # the end of a cut name: ``>`` in ASCII, not ``~``, which marks an inferred state


def ascii_text(text: str) -> str:
    """``text`` in ASCII, with as many columns."""
    return text if text.isascii() and is_narrow(text) else _CUT.sub(">", text).translate(_ASCII)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``: did you mean explain?``; empty if nothing known is spelled alike."""
    from difflib import get_close_matches

    close = get_close_matches(word[:80], list(known), 1, 0.7)
    return f": did you mean {close[0]}?" if close else ""


def from_shell(text: str) -> str:
    """An argument of the command line as the user typed it: under an ASCII locale Python leaves surrogates for UTF-8 bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return os.fsencode(text).decode("utf-8", "replace")
    return text


def ranges(numbers: Sequence[int]) -> str:
    """``0-3,8`` of sorted numbers, as taskset takes CPUs."""
    runs = ([number for _, number in run] for _, run in groupby(enumerate(numbers), key=lambda one: one[1] - one[0]))
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
