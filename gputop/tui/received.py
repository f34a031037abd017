"""What a terminal sends, cut into characters, escape sequences and pastes, in whatever pieces it comes.

Textual's parser takes an Esc inside a paste for a key, spells out each answer of the terminal that it does not know as keys, and waits for
ever for the end of a paste that was cut off. It gets one whole thing at a time instead.
"""

from __future__ import annotations

import re

PASTE = "\x1b[200~"
"""What a paste begins with (bracketed paste, DECSET 2004)."""
_END = "\x1b[201~"
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
MOST_PASTED = 4096  # characters of a paste; the rest is dropped: the screen has no longer line
MOST_HELD = 4096  # characters of a sequence that goes on; none of a terminal's has a hundred
ESC_S = 0.1  # s after which an Esc alone is the key (Textual's default for ESCDELAY)
CUT_OFF_S = 0.5  # s of silence after which a sequence that was cut off is given up
PASTE_CUT_OFF_S = 1.0  # s of silence after which a paste has ended: its end may have got lost, and keys must work again

_WHOLE = re.compile(
    r"""
    \x1b\[M[^\x00-\x1f]{3}        # a mouse as of X10: three characters after the sequence
  | \x1b\[\[[A-Z]                 # F1 to F5 of Linux's console
  | \x1b\[[0-?]*[ -/]*[@-~]       # CSI
  | \x1bO[0-9;]*[@-~]             # SS3: function keys
  | \x1b[^\x1b\[O\]PX^_]          # Alt and a key
  | [^\x1b]
    """,
    re.VERBOSE | re.DOTALL,
)
"""A key or a sequence that is complete (ECMA-48)."""
_BEGUN = re.compile(r"\x1b(?:\[M[^\x00-\x1f]{0,2}|\[\[|\[[0-?]*[ -/]*|O[0-9;]*)?\Z")
"""A sequence as far as it has come."""
_BROKEN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O[0-9;]*)?")
"""One that another character has ended, which begins something else."""
_STRING = re.compile(r"\x1b[\]PX^_]")
"""OSC, DCS, SOS, PM, APC: answers of the terminal, which nothing here has asked for."""
_STRING_END = re.compile("\x1b\\\\|\x07|\x9c|(?=[\x00-\x06\x0e-\x1f])|\\Z")
"""ST, BEL, or a control that stands in no string."""


class Received:
    """Holds back what is not complete, until the rest of it comes or is given up."""

    def __init__(self) -> None:
        self._rest = ""
        """What has begun."""
        self._pasted: str | None = None
        """The text of a paste that goes on."""
        self._in_string = False
        self._heard_s = 0.0

    def feed(self, text: str, now_s: float) -> list[str]:
        """The characters and sequences that are complete with this, and pastes as `PASTE` and their text."""
        self._heard_s = now_s
        text, self._rest = self._rest + text, ""
        found: list[str] = []
        at = 0
        while at < len(text):
            if self._pasted is not None:
                at = self._paste(text, at, found)
            elif self._in_string:
                at = self._string(text, at)
            else:
                at = self._key(text, at, found)
        return found

    def late(self, now_s: float) -> list[str]:
        """What has to be made of what was held back for too long: Esc is a key by now, a paste has ended."""
        silent_s = now_s - self._heard_s
        if self._pasted is not None and silent_s >= PASTE_CUT_OFF_S:
            pasted, self._pasted, self._rest = self._pasted, None, ""
            return [PASTE + pasted]
        if self._pasted is not None or silent_s < (ESC_S if self._rest == "\x1b" and not self._in_string else CUT_OFF_S):
            return []
        rest, self._rest = "" if self._in_string else self._rest, ""
        self._in_string = False
        return [rest] if 0 < len(rest) <= 2 else []  # Esc, Alt-[ or Alt-O

    def _key(self, text: str, at: int, found: list[str]) -> int:
        if text.startswith(PASTE, at):
            self._pasted = ""
            return at + len(PASTE)
        if _BEGUN.match(text, at):
            self._rest = text[at : at + MOST_HELD]
            return len(text)
        if _STRING.match(text, at):
            self._in_string = True
            return at + 2
        if whole := _WHOLE.match(text, at):
            found.append(whole[0])
            return whole.end()
        broken = _BROKEN.match(text, at)
        assert broken is not None  # all else begins with Esc
        return broken.end()

    def _string(self, text: str, at: int) -> int:
        """Its end; an Esc that comes last may be the first half of it."""
        ends = _STRING_END.search(text, at)
        assert ends is not None
        if text[ends.start() :] in ("", "\x1b"):
            self._rest = text[ends.start() :]
            return len(text)
        self._in_string = False
        return ends.end()

    def _paste(self, text: str, at: int, found: list[str]) -> int:
        ends = text.find(_END, at)
        begun = 0 if ends >= 0 else next((n for n in range(min(len(_END) - 1, len(text) - at), 0, -1) if text.endswith(_END[:n])), 0)
        part = text[at : ends if ends >= 0 else len(text) - begun]
        assert self._pasted is not None
        self._pasted += _NO_TEXT.sub("", part[:MOST_PASTED])[: MOST_PASTED - len(self._pasted)]
        if ends < 0:
            self._rest = text[len(text) - begun :]
            return len(text)
        found.append(PASTE + self._pasted)
        self._pasted = None
        return ends + len(_END)
