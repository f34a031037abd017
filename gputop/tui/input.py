"""Reads typed input: cut into whole keys, sequences and pastes, and delivered one after the other.

Textual's parser takes an Esc inside a paste for a key, spells out each answer of the terminal that it does not know as keys, and waits for
ever for the end of a paste that was cut off. It gets one whole thing at a time instead.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from textual.events import Event, Key, Paste

if TYPE_CHECKING:
    from textual.app import App
    from textual.message_pump import MessagePump

PASTE = "\x1b[200~"  # begins a paste (bracketed paste, DECSET 2004)
MOST_PASTED = 4096  # characters of a paste; the rest is dropped: no line of the screen is longer
MOST_HELD = 4096  # characters of an unfinished sequence; no sequence of a terminal has a hundred
ESC_S = 0.1  # s after which an Esc alone is the key (Textual's default for ESCDELAY)
CUT_OFF_S = 0.5  # s of silence after which an unfinished sequence is given up
PASTE_CUT_OFF_S = 1.0  # s of silence after which a paste has ended: its end may be lost, and keys must work again
LOOK_S, LOOKS = 0.05, 100  # s between looks, and looks, whether a screen or widget has taken its messages
MOST_WAITING = 1000  # keys that wait: no user types more at once
_END = "\x1b[201~"
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
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
)  # a complete key or sequence (ECMA-48)
_BEGUN = re.compile(r"\x1b(?:\[M[^\x00-\x1f]{0,2}|\[\[|\[[0-?]*[ -/]*|O[0-9;]*)?\Z")  # an unfinished sequence
_BROKEN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O[0-9;]*)?")  # a sequence that is broken off by a character that begins something else
_STRING = re.compile(r"\x1b[\]PX^_]")  # OSC, DCS, SOS, PM, APC: answers of the terminal that gputop did not ask for
_STRING_END = re.compile("\x1b\\\\|\x07|\x9c|(?=[\x00-\x06\x0e-\x1f])|\\Z")  # ST, BEL, or a control character that no string contains


# cutting


class Received:
    """Cuts text from the terminal; holds back what is unfinished until the rest comes or is given up."""

    def __init__(self) -> None:
        self._rest = ""  # the unfinished key or sequence
        self._pasted: str | None = None  # the text of an unfinished paste
        self._in_string = False
        self._heard_s = 0.0

    def feed(self, text: str, now_s: float) -> list[str]:
        """The characters and sequences that this text completes; a paste is `PASTE` and its text."""
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
        """Input that was held back for too long: an Esc is a key now, a paste has ended."""
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
        assert broken is not None  # what is left begins with Esc
        return broken.end()

    def _string(self, text: str, at: int) -> int:
        """Skip to the end of the string; a trailing Esc may be the first half of the end."""
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


# delivery


class KeyQueue:
    """Delivers each key and paste once the one before has done its work.

    A key goes from the focused widget up to the application, where its action may ask for another focus or screen, all by messages. The
    next key of the same read (of a paste without brackets, a program, a slow line) would overtake that: letters of a filter would be
    commands.
    """

    def __init__(self, app: App[int]) -> None:
        self._app = app
        self._waiting: deque[Event] = deque()
        self._current: Event | None = None  # the event under way
        self._delivery: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        """True if all keys have done what they do."""
        return self._delivery is None or self._delivery.done()

    @property
    def is_full(self) -> bool:
        """True if the queue is full, so that no more can wait."""
        return len(self._waiting) >= MOST_WAITING

    def holds(self, event: Event) -> bool:
        """True if the event has to wait; it is posted again when its time comes."""
        if event is self._current or event.is_forwarded or not isinstance(event, (Key, Paste)):
            return False
        if isinstance(event, Key) and event.key == "ctrl+c":
            self._waiting.clear()  # ending the program waits for no other key
        if not self.is_full:
            self._waiting.append(event)
        if self.is_done:
            self._delivery = asyncio.create_task(self._deliver(), name="typed")
        return True

    async def _deliver(self) -> None:
        while self._waiting:
            self._current = self._waiting.popleft()
            self._app.post_message(self._current)
            await self._settle()

    async def _settle(self) -> None:
        """Wait until the key's action is done, then until the action's messages are."""
        await self._pass(self._app)
        for _ in range(2):
            for pump in (self._app.focused or self._app.screen).ancestors_with_self:
                await self._pass(pump)

    async def _pass(self, pump: MessagePump) -> None:
        """Wait until a message pump has taken the messages that it has now."""
        passed = asyncio.Event()
        if pump.call_later(passed.set):
            for _ in range(LOOKS):
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(passed.wait(), LOOK_S)
                if passed.is_set() or not pump.is_running:
                    return
