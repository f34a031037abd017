"""Looks of text as a terminal keeps them: only what changes from one text to the next is sent."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from rich.color import ColorSystem
from rich.style import Style

RESET = "\x1b[0m"  # ends each text that Textual's compositor sends
_SGR = re.compile("\x1b\\[([0-9;]*)m")
_MOVE = re.compile("\n?\x1b\\[[0-9;]*H")  # of the cursor, which has no look
_PLACES = {"1": "weight", "4": "line", "7": "reverse"}
_EXTENDED = {"5": 3, "2": 5}  # second parameter of a colour beyond the sixteen -> how many it has


class Look(NamedTuple):
    """The look of a text as SGR parameters, each of which replaces the one before it in its place."""

    colour: str = "39"
    back: str = "49"
    weight: str = "22"
    line: str = "24"
    reverse: str = "27"

    @classmethod
    def of(cls, style: Style, system: ColorSystem | None) -> Look:
        """The look of a style in a terminal with these colours; `PLAIN` in one that has none."""
        if system is None:
            return PLAIN
        colour = ";".join(style.color.downgrade(system).get_ansi_codes(True)) if style.color else "39"
        back = ";".join(style.bgcolor.downgrade(system).get_ansi_codes(False)) if style.bgcolor else "49"
        return cls(colour, back, "1" if style.bold else "22", "4" if style.underline else "24", "7" if style.reverse else "27")


PLAIN = Look()


@lru_cache(maxsize=1024)
def change(before: Look, look: Look, is_blank: bool = False) -> tuple[str, Look]:
    """(escape sequence that changes a terminal's look for a text, the look that it has then).

    The colour of blanks is not seen, unless it fills them or is that of their line: it stays as it is.
    """
    if is_blank and (look.line, look.reverse) == (PLAIN.line, PLAIN.reverse):
        look = Look(before.colour, look.back, before.weight)
    if look == before:
        return "", look
    changed = "" if look == PLAIN else ";".join([new for new, old in zip(look, before, strict=True) if new != old])
    return f"\x1b[{changed}m", look


@lru_cache(maxsize=512)
def look_of(parameters: str) -> Look | None:
    """The look by these SGR parameters after a reset; None where they have anything that `Look` has no place for."""
    look, rest = dict(zip(("colour", "back", "weight", "line", "reverse"), PLAIN, strict=True)), parameters.split(";")
    while rest:
        first, count = rest[0], 1
        if first in ("38", "48"):
            place, count = "colour" if first == "38" else "back", _EXTENDED.get("".join(rest[1:2]), 0)
        else:
            tens = int(first or 0) // 10
            place = _PLACES.get(first, "colour" if tens in (3, 9) else "back" if tens in (4, 10) else "")
        if not place or not 0 < count <= len(rest):
            return None
        look[place], rest = ";".join(rest[:count]), rest[count:]
    return Look(**look)


def compact(text: str) -> str:
    """What Textual's compositor sends, each text of which has its whole look before it and a reset behind it, with the changes alone.

    A text with a look that is not known stays as it is.
    """
    parts = _SGR.split(text)  # text, parameters, text, parameters …
    out, now, wanted = [parts[0]], PLAIN, PLAIN
    for parameters, shown in zip(parts[1::2], parts[2::2], strict=True):
        look = PLAIN if parameters == "0" else look_of(parameters) if wanted == PLAIN else None
        if look is None:
            return text
        wanted = look
        if shown and not _MOVE.fullmatch(shown):
            sequence, now = change(now, wanted, shown.isspace())
            out.append(sequence)
        out.append(shown)
    return "".join([*out, change(now, PLAIN)[0]])
