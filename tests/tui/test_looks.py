"""What Textual's compositor sends looks the same with the changes of the look alone, and is shorter."""

from __future__ import annotations

import pyte
import pytest
from pyte.screens import Char

from gputop.tui.looks import compact

SIZE = 24, 4


def segment(text: str, *parameters: str) -> str:
    """A text as Textual's compositor sends it."""
    return f"\x1b[{';'.join(parameters)}m{text}\x1b[0m"


NIGHT = "48;2;30;30;46"
SENT = {
    "colours of each kind": [segment("one", "31"), segment("two", "38;5;203", NIGHT), segment("three", "92"), segment("4", "38;2;1;2;3")],
    "attributes": [segment("one", "1"), segment("two", "1", "4"), segment("three", "7"), "four", segment("five", "4")],
    "blanks": [segment("one", "31", NIGHT), segment("  ", "32", NIGHT), segment("two", "31", NIGHT), segment("  ", "7", "31")],
    "lines of blanks": [segment("one", "31"), segment("  ", "4", "32"), segment("two", "31")],
    "moves": ["\x1b[2;3H", segment("one", "31"), "\x1b[3;1H", segment("two", "31"), "\r\n", segment("  ", NIGHT)],
    "none": ["one", "\x1b[2;3H", "two"],
    "a look that is not known": [segment("one", "31"), segment("two", "3"), segment("three", "31")],
    "a look over another": ["\x1b[31mone\x1b[1mtwo\x1b[0m"],
}  # fmt: skip


def seen(screen: pyte.Screen) -> list[Char]:
    """What is seen of each cell: the colour of a blank is not, unless it fills the cell or is its line's."""
    cells = [screen.buffer[y][x] for y in range(SIZE[1]) for x in range(SIZE[0])]
    return [cell if cell.data != " " or cell.reverse or cell.underscore else cell._replace(fg="", bold=False) for cell in cells]


@pytest.mark.parametrize("sent", SENT.values(), ids=SENT.keys())
def test_the_changes_alone_look_the_same(sent: list[str]) -> None:
    text = "".join(sent)
    whole, brief = pyte.Screen(*SIZE), pyte.Screen(*SIZE)
    pyte.Stream(whole).feed(text)
    pyte.Stream(brief).feed(compact(text))
    assert seen(brief) == seen(whole)
    assert (brief.cursor.x, brief.cursor.y, brief.cursor.attrs) == (whole.cursor.x, whole.cursor.y, whole.cursor.attrs)
    assert len(compact(text)) <= len(text)


def test_a_look_that_stays_is_sent_once() -> None:
    sent = "".join(f"\x1b[{y};1H{segment('▁▂', '38;5;111', NIGHT)}{segment('  ', '38;5;203', NIGHT)}" for y in range(1, 5))
    assert compact(sent).count("m") == 2
