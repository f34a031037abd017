"""Text for a terminal: columns that stay, and what stands for characters that it has not."""

from __future__ import annotations

import sys
from itertools import chain

import pytest
from rich.cells import cell_len

from gputop.system.text import ascii_text, cell_width, clean, cut, even


@pytest.mark.parametrize("name", ["train_imagenet.py", "学習データを読む.py"])
def test_a_cut_in_ascii_is_not_the_mark_of_an_inferred_state(name: str) -> None:
    shown = ascii_text(cut(name, 10))
    assert shown.isascii()
    assert ">" in shown
    assert "~" not in shown
    assert cell_width(shown) == 10


def test_what_goes_on_in_ascii_ends_in_a_full_stop() -> None:
    assert ascii_text("taking stacks …") == "taking stacks ."


def test_of_every_character_we_draw_as_many_columns_as_the_screen_counts() -> None:
    """Of all planes with characters, and of one in a hundred code points of those without."""
    assigned = chain(range(32, 0xD800), range(0xE000, 0x20000), range(0xE0000, 0xE0200))
    for code in chain(assigned, range(0x20000, sys.maxunicode + 1, 97)):
        shown = even(clean(chr(code)))
        assert cell_width(chr(code)) == cell_width(shown) == cell_len(shown), hex(code)


@pytest.mark.parametrize(("name", "shown"), [
    ("e\u0301té", "été"), ("\u1100\u1161\u11a8", "각"), ("☃\ufe0f", "☃"), ("👍🏽", "👍"), ("🇯🇵", "JP"), ("\U0010ffff", "·"), ("ที่", "ที่"),
])  # fmt: skip
def test_what_terminals_disagree_about_is_not_drawn(name: str, shown: str) -> None:
    assert even(name) == shown
