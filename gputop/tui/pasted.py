"""What is pasted, as text alone: a parser of keys takes an Esc in it for the begin of a key, and all that follows for keys pressed."""

from __future__ import annotations

import re

_BEGIN, _END = "\x1b[200~", "\x1b[201~"
"""Around what is pasted (bracketed paste, DECSET 2004)."""
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class Pasted:
    """Goes over all that a terminal sends, in whatever pieces that comes."""

    def __init__(self) -> None:
        self._inside = False
        self._before = ""
        """The latest that came outside: a paste may begin in it."""
        self._held = ""
        """Of a paste, what may be the begin of its end."""

    def feed(self, text: str) -> str:
        """The same without what is no text inside of pastes."""
        out = ""
        while text:
            part, text = self._paste(text) if self._inside else self._keys(text)
            out += part
        return out

    def _keys(self, text: str) -> tuple[str, str]:
        """What comes before a paste, and the rest; nothing is held back, for an Esc may be a key."""
        known = self._before + text
        at = known.find(_BEGIN)
        if at < 0:
            self._before = known[1 - len(_BEGIN) :]
            return text, ""
        ends = at + len(_BEGIN) - len(self._before)
        self._inside, self._before = True, ""
        return text[:ends], text[ends:]

    def _paste(self, text: str) -> tuple[str, str]:
        part, found, rest = (self._held + text).partition(_END)
        self._inside, self._held = not found, ""
        if not found:
            begun = next((n for n in range(len(_END) - 1, 0, -1) if part.endswith(_END[:n])), 0)
            part, self._held = part[: len(part) - begun], part[len(part) - begun :]
        return _NO_TEXT.sub("", part) + found, rest
