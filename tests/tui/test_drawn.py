"""What a panel sends to the terminal past the compositor turns the old picture into the new one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pyte
import pytest
from pyte.screens import Char
from rich.color import ColorSystem
from rich.style import Style
from textual.app import App, ComposeResult

from gputop.tui.colours import palette
from gputop.tui.draw import Line
from gputop.tui.widgets import KEY, Drawn, Painter, Row, cells_of

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


COLOURED: list[list[tuple[str, str]]] = [
    [("cpu  ", ""), ("   ", "title"), ("▁▂▃▄", "lane"), ("▅▆", "warn@"), ("  ", "@"), ("▇", "crit@")],
    [("cpu  ", ""), ("  1", "crit"), ("▂▃▄", "lane"), ("▅▆", "warn@"), ("  ", "@"), ("▇", "crit@"), ("▁", "lane@")],
    [("cpu  ", ""), ("  1", "crit"), ("▃▄", "lane"), ("▅▆", "warn@"), ("  ", "@"), ("▇", "crit@"), ("▁", "lane@"), (" ", "")],
    [("cpu  ", "selected"), (" 22", "title"), ("▄", "lane"), ("▅▆", "warn@"), ("  ", "@"), ("▇", "crit@"), ("▁▁", "lane@"), (" ", "")],
]
"""A lane that moves left by a cell with each line, in and out of an incident."""


def seen(cell: Char) -> Char:
    """What is seen of a cell: the colour of a blank is not."""
    return cell._replace(fg="", bold=False) if cell.data == " " else cell


class Filling(pyte.Screen):
    """A terminal that fills what it deletes with the background in force, as xterm does."""

    def delete_characters(self, count: int | None = None) -> None:
        super().delete_characters(count)
        for x in range(self.columns - (count or 1), self.columns):
            self.buffer[self.cursor.y][x] = self.cursor.attrs._replace(data=" ")


@pytest.mark.parametrize("base", [None, Style.parse("#cdd6f4 on #1e1e2e")], ids=["terminal's", "painted"])
@pytest.mark.parametrize("fills", [True, False])
def test_changes_end_in_the_look_that_a_whole_drawing_has(base: Style | None, fills: bool) -> None:
    kind, painter = Filling if fills else pyte.Screen, Painter(palette("gputop-night"), ColorSystem.TRUECOLOR, base)
    screen = kind(LANE + 10, 1)
    stream, shown = pyte.Stream(screen), cells_of([("x" * 18, "crit")], LANE + 10)
    for i, line in enumerate(COLOURED):
        new = cells_of(line, LANE + 10)
        painter.begin()
        stream.feed(painter.change(0, 0, shown, new, LANE, int(i > 0)) + painter.end())
        whole = pyte.Screen(LANE + 10, 1)
        anew = Painter(palette("gputop-night"), ColorSystem.TRUECOLOR, base)
        pyte.Stream(whole).feed(anew.change(0, 0, cells_of([("x" * 18, "crit")], 18), new, 0, 0))
        assert [seen(screen.buffer[0][x]) for x in range(18)] == [seen(whole.buffer[0][x]) for x in range(18)]
        shown = new
    assert screen.cursor.attrs == pyte.Screen(1, 1).cursor.attrs, "the terminal draws plain text again"


def test_a_look_is_sent_once_for_texts_that_follow_each_other() -> None:
    painter, blank = Painter(palette("gputop-dark"), ColorSystem.TRUECOLOR), cells_of([], 8)
    painter.begin()
    sent = "".join(painter.change(0, y, blank, cells_of([("▁▂", "lane")], 8), 0, 0) for y in range(5)) + painter.end()
    assert sent.count("m") == 2


def row_of(name: str, lane: str) -> Row:
    return Row(cells_of([(f"{name:<{KEY}}", "title"), (lane, "lane")], KEY + 8), KEY, 0)


def drawn_on(screen: pyte.Screen, painter: Painter, rows: list[Row]) -> None:
    """Draw rows on a screen whatever is there."""
    painter.begin()
    unlike = cells_of([("x" * (KEY + 8), "crit")], KEY + 8)
    pyte.Stream(screen).feed("".join(painter.change(0, y, unlike, row.cells, 0, 0) for y, row in enumerate(rows)) + painter.end())


@pytest.mark.parametrize("seed", range(40))
def test_rows_that_come_go_and_move_end_in_the_new_screen(seed: int) -> None:
    chance, count = Random(seed), 12
    kind, painter = Filling if seed % 2 else pyte.Screen, Painter(palette("gputop-night"), ColorSystem.TRUECOLOR)
    names = chance.choices("abcdefghijklmnopqr", k=count) if seed % 3 else chance.sample("abcdefghijklmnopqr", k=count)
    old = [row_of(name, "▁▂▃▄▅▆▇█") for name in names]
    kept = [one for one in names if chance.random() > 0.3]
    for name in chance.choices("stuvwxyz", k=count - len(kept)):
        kept.insert(chance.randrange(len(kept) + 1), name)
    new = [row_of(name, "▂▃▄▅▆▇█" + chance.choice("▁▂▃")) for name in kept]
    screen, whole = kind(KEY + 8, count), kind(KEY + 8, count)
    drawn_on(screen, painter, old)
    painter.begin()
    pyte.Stream(screen).feed(painter.rearrange(old, new, 1) + painter.end())
    drawn_on(whole, painter, new)
    assert screen.display == whole.display
    assert [[seen(screen.buffer[y][x]) for x in range(KEY + 8)] for y in range(count)] == [
        [seen(whole.buffer[y][x]) for x in range(KEY + 8)] for y in range(count)
    ]


def test_a_row_that_comes_above_others_costs_little_more_than_itself() -> None:
    painter = Painter(palette("gputop-night"), ColorSystem.TRUECOLOR)
    rows = [row_of(str(number), "▁▂▃▄▅▆▇█") for number in range(20)]
    painter.begin()
    sent = painter.rearrange([*rows, row_of("last", "")], [row_of("first", "▁▂▃▄▅▆▇█"), *rows], 0)
    assert len(sent) < 120
