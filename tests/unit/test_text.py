"""Text for a terminal: columns that stay, and what stands for characters that it has not."""

from __future__ import annotations

import pytest

from gputop.text import ascii_text
from gputop.text import cell_width
from gputop.text import cut


@pytest.mark.parametrize("name", ["train_imagenet.py", "学習データを読む.py"])
def test_a_cut_in_ascii_is_not_the_mark_of_an_inferred_state(name: str) -> None:
    shown = ascii_text(cut(name, 10))
    assert shown.isascii()
    assert ">" in shown
    assert "~" not in shown
    assert cell_width(shown) == 10


def test_what_goes_on_in_ascii_ends_in_a_full_stop() -> None:
    assert ascii_text("taking stacks …") == "taking stacks ."
