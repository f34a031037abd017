"""Colours of the themes: what is drawn can be read on the theme's background, and has the theme's own colours."""

from __future__ import annotations

import argparse

import pytest
from rich.color import Color as RichColor
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from gputop.commands.screen import add_looks, looks_of
from gputop.system.errors import UserError
from gputop.tui.colours import CONTRAST, CONTRAST_OF_SIXTEEN, Palette, contrast, palette, readable, themes
from gputop.tui.draw.frame import FRAME
from gputop.tui.draw.lanes import SHADED
from gputop.tui.draw.view import View
from tests.tui.conftest import MakeApp
from tests.tui.test_dashboard import main

PAINTED = {theme.name: theme for theme in (*BUILTIN_THEMES.values(), themes()[-1]) if not theme.name.startswith("ansi-")}


LEAST_SEEN = 1.5  # contrast of a frame, which holds no text: it is seen, and stays behind what it is around (a choice)

# Background and the sixteen colours of terminals, as their authors publish them: XTerm-col.ad, ethanschoonover.com/solarized,
# github.com/morhetz/gruvbox, draculatheme.com/spec, github.com/primer/github-vscode-theme.
SOLARIZED = "073642 dc322f 859900 b58900 268bd2 d33682 2aa198 eee8d5 002b36 cb4b16 586e75 657b83 839496 6c71c4 93a1a1 fdf6e3"
TERMINALS = {
    "xterm": ("000000", "000000 cd0000 00cd00 cdcd00 0000ee cd00cd 00cdcd e5e5e5 7f7f7f ff0000 00ff00 ffff00 5c5cff ff00ff 00ffff ffffff"),
    "solarized-dark": ("002b36", SOLARIZED),
    "gruvbox": (
        "282828", "282828 cc241d 98971a d79921 458588 b16286 689d6a a89984 928374 fb4934 b8bb26 fabd2f 83a598 d3869b 8ec07c ebdbb2",
    ),
    "dracula": (
        "282a36", "21222c ff5555 50fa7b f1fa8c bd93f9 ff79c6 8be9fd f8f8f2 6272a4 ff6e6e 69ff94 ffffa5 d6acff ff92df a4ffff ffffff",
    ),
    "solarized-light": ("fdf6e3", SOLARIZED),
    "github-light": (
        "ffffff", "24292f cf222e 116329 4d2d00 0969da 8250df 1b7c83 6e7781 57606a a40e26 1a7f37 633c01 218bff a475f9 3192aa 8c959f",
    ),
}  # fmt: skip


def unreadable(told: Palette, back: Color, sixteen: str = "", least: float = CONTRAST) -> list[str]:
    """Meanings whose colour is no text on this background; what lies in an incident, and in the heat map, is bars alone."""
    ansi = [Color.parse(f"#{colour}") for colour in sixteen.split()]

    def seen(colour: RichColor) -> Color:
        return ansi[colour.number] if colour.number is not None and colour.number < 16 else Color.from_rich_color(colour)

    found = []
    for meaning, style in told.items():
        needed = min(least, CONTRAST_OF_SIXTEEN) if meaning.endswith(SHADED) or meaning.startswith("cell") else least
        needed = LEAST_SEEN if meaning.startswith(FRAME) else needed
        if style.color is not None and contrast(seen(style.color), seen(style.bgcolor) if style.bgcolor else back) < needed:
            found.append(meaning)
    return found


@pytest.mark.parametrize("terminal", TERMINALS)
def test_each_text_can_be_read_in_every_terminals_own_colours(terminal: str) -> None:
    back, sixteen = Color.parse(f"#{TERMINALS[terminal][0]}"), TERMINALS[terminal][1]
    named = ("gputop-light", "ansi-light") if terminal.endswith("light") else ("gputop-dark", "gputop-colour-blind", "ansi-dark")
    for name in named:
        assert unreadable(palette(name), back, sixteen) == [], name
        assert unreadable(palette(name, sixteen=True), back, sixteen, CONTRAST_OF_SIXTEEN) == [], name


def test_nothing_has_bright_black_which_is_the_background_of_some_terminals() -> None:
    for name in (*(theme.name for theme in themes()), *BUILTIN_THEMES):
        for told in (palette(name), palette(name, sixteen=True)):
            assert not any(style.color and style.color.number in (0, 8) for style in told.values())


@pytest.mark.parametrize(
    ("environ", "theme"),
    [
        ({"COLORTERM": "truecolor"}, "gputop-night"), ({"COLORTERM": "24bit"}, "gputop-night"), ({}, "gputop-dark"),
        ({"COLORTERM": "yes"}, "gputop-dark"), ({"COLORTERM": "truecolor", "NO_COLOR": "1"}, "gputop-dark"),
    ],
)  # fmt: skip
def test_night_is_the_theme_of_a_terminal_of_24_bits_unless_one_was_chosen(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], theme: str
) -> None:  # fmt: skip
    for name in ("COLORTERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
        if name in environ:
            monkeypatch.setenv(name, environ[name])
    app = make_app(theme="")
    assert (app.theme, app.chosen_theme) == (theme, "")
    assert make_app(theme="gputop-light").chosen_theme == "gputop-light"


async def test_the_search_for_a_theme_shows_the_one_it_is_on_and_escape_goes_back(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 35)) as pilot:
        app.search_themes()
        await pilot.pause()
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.theme == "gputop-dark", "the list opens on one that nobody chose"
        seen = set()
        for key in ("down", "down", "down", "up"):
            await pilot.press(key)
            await pilot.pause()
            seen.add(app.theme)
        assert len(seen) == 3
        await pilot.press("escape")
        await pilot.pause()
        assert app.theme == "gputop-dark"
        app.search_themes()
        await pilot.press(*"nord")
        await pilot.pause()
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.theme == "nord"
        await pilot.press("enter")
        await pilot.pause()
        assert app.theme == "nord"
        assert app.chosen_theme == "nord"


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


async def test_nothing_of_textuals_is_faint(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.press("slash")
        assert not main(app).filter_line.get_component_rich_style("input--placeholder").dim
        await pilot.press("escape", "ctrl+p")
        await pilot.pause()
        assert not app.screen.get_component_rich_style("command-palette--help-text").dim
