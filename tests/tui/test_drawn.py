"""What a panel sends to the terminal past the compositor turns the old picture into the new one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pyte
import pytest
from textual.app import App, ComposeResult

from gputop.tui.draw import Line
from gputop.tui.widgets import Drawn, Painter, palette

WIDTH, HEIGHT = 24, 6
LANE = 8
PICTURES: list[list[str]] = [
    ["one", "two     ▁▂▃▄"],
    ["one", "two     ▁▂▃▄", "three   ▂▂▂▂", "日本 語"],
    ["uno", "two     ▂▃▄▅", "three   ▂▂▂▃", "日本 語", "five", "six", "behind the last line"],
    ["uno"],
    ["uno", "", "tre"],
    [],
    ["one more"],
]
"""Shown one after the other: lines come, go, change and grow."""


class OneWidget(App[None]):
    """An application of one widget."""

    CSS = f"Drawn {{ width: {WIDTH}; height: {HEIGHT}; }}"

    def compose(self) -> ComposeResult:
        yield Drawn()


def lines_of(picture: list[str]) -> list[Line]:
    return [[(text[:LANE], "title"), (text[LANE:], "")] for text in picture]


def told_of(shown: str) -> list[str]:
    """The rows of a terminal after it was sent ``shown``."""
    screen = pyte.Screen(WIDTH, HEIGHT)
    pyte.Stream(screen).feed(shown)
    return list(screen.display)


def steps() -> Iterator[tuple[list[str], list[str]]]:
    yield from pairwise(PICTURES)
    yield from pairwise(PICTURES[::-1])


@pytest.mark.parametrize("moved", [0, 1])
async def test_what_is_sent_makes_the_old_picture_the_new_one(moved: int) -> None:
    app = OneWidget()
    async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
        widget, painter = app.query_one(Drawn), Painter(palette(""), None)
        for old, new in steps():
            widget.show(lines_of(old))
            await pilot.pause()
            stood = "\r\n".join(old[:HEIGHT])
            sent = widget.show(lines_of(new), painter, LANE, moved)
            assert bool(old) != widget._repaint_required, "only where nothing is known to stand there Textual draws"
            if old:
                assert told_of(stood + sent) == told_of("\r\n".join(new[:HEIGHT])), (old, new)
            assert [widget.line_text(y) for y in range(len(new))] == new
            await pilot.pause()
