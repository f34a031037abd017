"""Bytes from a terminal, in any pieces, become keys, pastes and reports, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterable
from random import Random

import pytest
from textual.events import Key, Paste, Resize
from textual.message import Message

from gputop.tui import terminal as terminal_module
from gputop.tui.input import MOST_PASTED, PASTE_CUT_OFF_S
from gputop.tui.terminal import MOST_COLUMNS, MOST_LINES, TerminalInput
from tests.tui import typist


class Clock:
    """A clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(terminal_module.time, "monotonic", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def told(messages: Iterable[Message]) -> list[str]:
    """Keys by their characters or names, pastes by their text, all else by its class."""
    return [_told(one) for one in messages]


def _told(message: Message) -> str:
    if isinstance(message, Key):
        return message.character if message.character and message.character.isprintable() and "+" not in message.key else message.key
    return f"<{message.text}>" if isinstance(message, Paste) else type(message).__name__


def heard(clock: Clock, pieces: Iterable[bytes]) -> list[str]:
    """The messages of these pieces and of the silence after them."""
    terminal, messages = TerminalInput(), list[Message]()
    for piece in pieces:
        messages += terminal.feed(piece)
    for _ in range(3):
        clock.now_s += PASTE_CUT_OFF_S
        messages += terminal.tick()
    return told(messages)


SENT = [
    (b"a", ["a"]), ("é".encode(), ["é"]), ("€".encode(), ["€"]), ("🚀".encode(), ["🚀"]), (b"\x1b", ["escape"]), (b"\x1b[A", ["up"]),
    (b"\x1bOP", ["f1"]), (b"\x1b[[A", ["f1"]), (b"\x1b[1;5C", ["ctrl+right"]), (b"\x1b[97;5u", ["ctrl+a"]), (b"\x1bx", ["alt+x"]),
    (b"\x1b[200~one\x1b[2J\r\ttwo\x9b\x1b\x1b[201~q", ["<one[2J\r\ttwo\ufffd>", "q"]), (b"\x1b[I", ["AppFocus"]), (b"\x00", ["ctrl+@"]),
    (b"\x1b[200~" + b"x" * 9000 + b"\x1b[201~", [f"<{'x' * MOST_PASTED}>"]), (b"\x1b[<0;3;4M", ["MouseDown"]), (b"\x1b[M !\xffz", ["z"]),
    (b"\x1b[M !!z", ["z"]), (b"\x1b[200~un\x1b[200~ended", ["<un[200~ended>"]), (b"\x1b[32;10;20Mz", ["z"]),
    (b"\x1b[12\x05z", ["ctrl+e", "z"]),
    (b"\x1b[1114112u?", ["?"]), (b"\x1b[97:65;2u?", ["?"]), (b"\x1b[55296u?", ["?"]),
    (b"\x1b]11;rgb:1/2/3\x05z", ["ctrl+e", "z"]), (b"\xe9?", ["\ufffd", "?"]), (b"\xc3?", ["\ufffd", "?"]),
    (b"\x1b[48;0;0;0;0t?", ["?"]), (b"\x1b[" + b"9" * 500 + b"u?", ["?"]),
    *((answer.encode() + b"z", ["z"]) for answer in typist.ANSWERS if answer[-1] not in "yRS"),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "meant"), SENT, ids=lambda value: repr(value)[:40])
def test_it_means_the_same_in_whatever_pieces_it_comes(clock: Clock, sent: bytes, meant: list[str]) -> None:
    assert heard(clock, [sent]) == meant
    for at in range(1, min(len(sent), 60)):
        assert heard(clock, [sent[:at], sent[at:]]) == meant, at
    assert heard(clock, [sent[at : at + 1] for at in range(len(sent))]) == meant


def test_keys_work_again_after_a_paste_that_never_ends(clock: Clock) -> None:
    terminal = TerminalInput()
    assert told(terminal.feed(b"\x1b[200~half")) == []
    clock.now_s += PASTE_CUT_OFF_S / 2
    assert told(terminal.tick()) == []
    clock.now_s += PASTE_CUT_OFF_S
    assert told(terminal.tick()) == ["<half>"]
    assert told(terminal.feed(b"q\x1b[201~q")) == ["q", "q"]


def test_a_sequence_that_is_cut_off_is_no_key(clock: Clock) -> None:
    for cut in (b"\x1b[<35;10", b"\x1b]11;rgb", b"\x1bP1+r", b"\xe2\x82", b"\x1b[1;"):
        assert heard(clock, [cut]) == [], cut


def test_a_flood_costs_nothing_but_ctrl_c_is_heard() -> None:
    terminal = TerminalInput()
    began = time.process_time()
    met = [one for _ in range(250) for one in terminal.feed(b"j" * 4096, only_urgent=True)]
    assert met == []
    assert time.process_time() - began < 10  # a megabyte; a hundredth of that otherwise
    assert told(terminal.feed(b"jj\x03jj", only_urgent=True)) == ["ctrl+c"]


def test_a_flood_of_paste_is_not_kept() -> None:
    terminal = TerminalInput()
    assert list(terminal.feed(b"\x1b[200~")) == []
    for _ in range(1000):
        assert list(terminal.feed(b"x" * 4096)) == []
    (paste,) = terminal.feed(b"\x1b[201~")
    assert isinstance(paste, Paste)
    assert len(paste.text) == MOST_PASTED


def test_whatever_comes_the_next_key_is_a_key(clock: Clock) -> None:
    for seed in range(1200 * typist.TIMES):
        random = Random(seed)
        terminal = TerminalInput()
        for piece in typist.typed(random, 6):
            for message in terminal.feed(piece):
                check(message)
            if random.random() < 0.2:
                clock.now_s += random.random()
            for message in terminal.tick():
                check(message)
        for _ in range(3):
            clock.now_s += PASTE_CUT_OFF_S
            list(terminal.tick())
        list(terminal.feed(b" "))  # it ends half a character
        assert told(terminal.feed(b"?")) == ["?"], seed


def check(message: Message) -> None:
    """Text that can be sent on and written to a terminal."""
    if isinstance(message, Key):
        (message.key + (message.character or "")).encode()
    if isinstance(message, Resize):
        assert 0 < message.size.width <= MOST_COLUMNS
        assert 0 < message.size.height <= MOST_LINES
    if isinstance(message, Paste):
        message.text.encode()
        assert len(message.text) <= MOST_PASTED
