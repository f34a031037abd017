"""Colours of the themes: what is drawn can be read on the theme's background, and has the theme's own colours."""

from __future__ import annotations

import argparse

import pytest
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from gputop.commands.screen import add_looks, looks_of
from gputop.system.errors import UserError
from gputop.tui.draw.view import View
from gputop.tui.widgets import CONTRAST, Palette, contrast, palette, readable, themes

PAINTED = {theme.name: theme for theme in (*BUILTIN_THEMES.values(), themes()[-1]) if not theme.name.startswith("ansi-")}


def unreadable(colours: Palette, back: Color) -> list[str]:
    told = {meaning: style.color for meaning, style in colours.items() if style.color is not None}
    return [meaning for meaning, colour in told.items() if contrast(Color.from_rich_color(colour), back) < CONTRAST]


@pytest.mark.parametrize("name", sorted(PAINTED))
def test_each_text_can_be_read_on_a_background_that_the_theme_paints(name: str) -> None:
    back = Color.parse(PAINTED[name].to_color_system().generate()["background"])
    assert unreadable(palette(name), back) == []


def test_themes_of_textual_have_lanes_of_their_own() -> None:
    lanes = {str(palette(name)["lane"].color) for name in ("dracula", "nord", "gruvbox", "solarized-light")}
    assert len(lanes) == 4


@pytest.mark.parametrize(("colour", "back"), [("#002b36", "#002b36"), ("#ffff00", "#ffffff"), ("#777777", "#7a7a7a"), ("#000000", "#fff")])
def test_a_colour_moves_only_as_far_as_it_must(colour: str, back: str) -> None:
    shown = readable(Color.parse(colour), Color.parse(back))
    assert contrast(shown, Color.parse(back)) >= CONTRAST
    assert (shown == Color.parse(colour)) is (contrast(Color.parse(colour), Color.parse(back)) >= CONTRAST)


def test_a_theme_is_chosen_by_its_name_and_a_wrong_name_is_answered() -> None:
    parser = argparse.ArgumentParser()
    add_looks(parser)
    assert looks_of(parser.parse_args(["--theme", "dracula"]), View(), remote=False).theme == "dracula"
    with pytest.raises(UserError, match=r"no theme nosuch: there are .*gputop-night.*dracula"):
        looks_of(parser.parse_args(["--theme", "nosuch"]), View(), remote=False)
