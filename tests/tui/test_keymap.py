"""The user's own keys, and the names of keys."""

from __future__ import annotations

import pytest

from gputop.tui.widgets import Scrolled
from tests.tui.conftest import MakeApp
from tests.tui.test_dashboard import main, part


@pytest.mark.parametrize(
    ("mapped", "wrong"),
    [
        ({"pause": "space,d"}, ""),
        ({"pause": "q", "quit": "ctrl+q"}, ""),
        ({"nosuch": "x"}, "there is no action nosuch; there are quit, explain,"),
        ({"pause": "q"}, "q would be the key of both quit and pause"),
        ({"pause": "?"}, "question_mark would be the key of both help and pause"),
        ({"pause": "ctrl+c"}, "ctrl+c would be the key of both quit and pause"),
        ({"faster": "space"}, ""),
    ],
)
async def test_mistakes_are_told(make_app: MakeApp, mapped: dict[str, str], wrong: str) -> None:
    said = make_app().use_keys(mapped)
    assert said.startswith(wrong)
    assert bool(said) == bool(wrong)


async def test_the_users_keys_work_and_are_named(make_app: MakeApp) -> None:
    app = make_app()
    assert app.use_keys({"pause": "d"}) == ""
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("d")
        assert "PAUSED" in part(app, "header")[0]
        named = {command.title: command.help for command in app.get_system_commands(main(app))}
        assert named["Pause or follow; on a selected trainer: fold its family"] == "key d"
        assert named["Back to now"] == "key End or `"
        assert named["Filter"] == "key /"
        assert "Next GPU" in named
        assert "Theme" in named
        assert not any("widget" in text for text in named.values())
        await pilot.press("question_mark")
        await pilot.pause()
        lines = app.screen.query_one(Scrolled).text.split("\n")
        assert next(line for line in lines if "pause or follow" in line).split()[0] == "d"


async def test_only_families_have_the_sign_of_one(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        assert "▾ train.py" in "".join(part(app, "procs"))
        await pilot.press("t")
        assert "▾" not in "".join(part(app, "procs"))
