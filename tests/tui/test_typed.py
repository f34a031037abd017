"""Keys that arrive in one read work like keys that are typed one by one."""

from __future__ import annotations

import pytest
from textual.events import Key, Paste
from textual.keys import _character_to_key
from textual.pilot import Pilot
from textual.widgets import Input

from gputop.stream.playback import Playback
from gputop.tui.app import GputopApp
from gputop.tui.bindings import HelpScreen
from gputop.tui.box import ConfirmScreen, MomentScreen
from gputop.tui.dashboard import DashboardScreen
from tests.tui.conftest import MakeApp
from tests.tui.minute import START
from tests.tui.minute import path as path
from tests.tui.test_dashboard import main
from tests.tui.test_replay import MakeReplay, player, until
from tests.tui.test_replay import make_replay as make_replay
from tests.tui.test_signals import answer

NAMED = {"\r": "enter", "\x1b": "escape"}


async def typed(pilot: Pilot[int], keys: str, paste: str = "") -> None:
    """Send all ``keys`` and a paste in one read of the terminal, and wait until they have done what they do."""
    app, driver = pilot.app, pilot.app._driver
    assert isinstance(app, GputopApp)
    assert driver is not None
    waiting, holds = list[object](), app.keys.holds
    app.keys.holds = lambda event: holds(event) and not waiting.append(event)  # type: ignore[method-assign]
    for key in keys:
        driver.send_message(Key(NAMED.get(key) or _character_to_key(key), key))
    if paste:
        driver.send_message(Paste(paste))
    await until(pilot, lambda: len(waiting) == len(keys) + bool(paste), f"{keys} have come")
    await until(pilot, lambda: app.keys.is_done, f"{keys} are done with")
    app.keys.holds = holds  # type: ignore[method-assign]
    await pilot.pause()


@pytest.mark.parametrize(("keys", "paste"), [("/kill", ""), ("/", "kill"), ("tt/kill", "")])
async def test_what_follows_the_filters_key_is_filtered_by(make_app: MakeApp, keys: str, paste: str) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        await typed(pilot, keys, paste)
        assert main(app).query_one("#filter", Input).value == "kill"
        assert app.context.view.pattern == "kill"
        assert app.context.view.selected is None
        assert type(app.screen) is DashboardScreen


async def test_what_follows_enter_is_a_key_again(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        await typed(pilot, "/worker\r?")
        assert app.context.view.pattern == "worker"
        assert isinstance(app.screen, HelpScreen)
        await typed(pilot, "\x1bt/\x1bb")
        assert (app.context.view.pattern, app.context.view.tree, app.context.view.bystanders) == ("", False, False)


async def test_the_letter_of_a_column_may_come_at_once(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        await typed(pilot, "ocb")
        assert (app.context.view.sort, app.context.view.bystanders) == ("cpu", False)


async def test_a_time_may_be_typed_at_once(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(START, playing=False))
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: player(app).jumps, "the start is shown")
        await typed(pilot, "@50%")
        assert isinstance(app.screen, MomentScreen)
        assert app.screen.query_one("#moment", Input).value == "50%"


async def test_nobody_confirms_what_he_has_not_seen(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app()
    sent: list[object] = []

    def send(*what: object) -> str:
        sent.append(what)
        return "sent"

    monkeypatch.setattr("gputop.tui.dashboard.send_signal", send)
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        await typed(pilot, "jKy")
        assert isinstance(app.screen, ConfirmScreen)
        assert not sent
        await answer(pilot, "y")
        assert type(app.screen) is DashboardScreen
        assert len(sent) == 1
        await typed(pilot, "K")
        await answer(pilot, "n")
        assert type(app.screen) is DashboardScreen
        assert len(sent) == 1


async def test_what_is_typed_while_it_ends_is_dropped(make_app: MakeApp) -> None:
    app: GputopApp = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
    assert not app.screen_stack
    app.keys.holds = lambda _event: False  # type: ignore[method-assign] # what waited comes now
    for event in (Key("b", "b"), Paste("b")):
        await app.on_event(event)


async def test_keys_are_not_held_by_a_screen_that_is_gone(make_app: MakeApp) -> None:
    app: GputopApp = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        await typed(pilot, "e\x1bw\x1b??b")
        assert type(app.screen) is DashboardScreen
        assert not app.context.view.bystanders
