"""Random input on every screen ends nothing, and keys work afterwards."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from gputop.stream.playback import Playback
from gputop.tui import dashboard
from gputop.tui.app import GputopApp
from gputop.tui.bindings import HelpScreen
from gputop.tui.box import Box, ConfirmScreen
from gputop.tui.dashboard import DashboardScreen
from gputop.tui.terminal import TerminalInput
from tests.tui import typist
from tests.tui.conftest import MakeApp
from tests.tui.minute import START
from tests.tui.minute import path as path
from tests.tui.test_replay import MakeReplay
from tests.tui.test_replay import make_replay as make_replay
from tests.wait import PATIENCE_S

SCREENS = {
    "main": "", "help": "?", "details": "\r", "why": "e", "stacks": "s", "enlarge": "z", "distribution": "zd", "contention": "w",
    "confirm": "jK", "filter": "/", "regex": "/!(a+)+", "sort": "o", "palette": "\x10", "paused": " hh", "narrow": "",
}  # fmt: skip
REPLAYED = {"replay": "", "moment": "@", "playing": " ", "step": "fF", "looking back": "((", "replay stacks": "s", "replay help": "?"}
SOON = ("main", "details", "confirm", "filter", "palette", "narrow", "replay", "moment", "playing")  # the others are `make soak`
ROUNDS, AT_ONCE = 2, 25


def sooner(names: dict[str, str]) -> list[object]:
    """All names, of which those that are not `SOON` take their time."""
    return [pytest.param(name, marks=() if name in SOON else pytest.mark.soak) for name in names]


@pytest.fixture(autouse=True)
def _harmless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Let no key end the program, signal a process or write outside of the test's folder."""

    async def stay(_app: GputopApp) -> None: ...

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(GputopApp, "action_quit", stay)
    monkeypatch.setattr(dashboard, "send_signal", lambda name, targets: f"SIG{name} {targets}")
    monkeypatch.setattr("textual.app.App.deliver_text", lambda *_args, **_more: None)
    before = threading.excepthook
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    yield
    assert failed == []
    threading.excepthook = before


async def send(pilot: Pilot[int], heard: TerminalInput, data: bytes) -> None:
    """Send bytes to the application as the driver's thread does."""
    app = pilot.app
    assert isinstance(app, GputopApp)
    assert app._driver is not None
    for message in [*heard.feed(data, app.keys.is_full), *heard.tick()]:
        app._driver.process_message(message)


async def settle(pilot: Pilot[int], seconds: float = PATIENCE_S) -> None:
    """Wait until all keys have done what they do."""
    app = pilot.app
    assert isinstance(app, GputopApp)
    deadline = time.monotonic() + seconds
    await asyncio.sleep(0)
    await pilot.pause()
    while not app.keys.is_done:
        assert time.monotonic() < deadline, "what was typed takes too long"
        await pilot.pause(0.005)
    await pilot.pause()


async def back(pilot: Pilot[int]) -> None:
    """Go back to the dashboard by Esc."""
    for _ in range(8):
        if isinstance(pilot.app.screen, DashboardScreen) and not isinstance(pilot.app.focused, Input):
            break
        await pilot.press("escape")
        await settle(pilot)
    assert isinstance(pilot.app.screen, DashboardScreen)
    assert not isinstance(pilot.app.focused, Input)


async def attack(make: Callable[[], GputopApp], keys: str, seed: int, size: tuple[int, int]) -> None:
    app = make()
    app.context.look.remote = True  # no stacks of processes of this machine
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        for n in range(ROUNDS * typist.TIMES):
            random = Random(seed * 1000 + n)
            app.context.look.remote = "K" not in keys  # signals are asked for only here
            await send(pilot, TerminalInput(), keys.encode())
            await settle(pilot)
            if n == 0 and keys[:1] in "?esz\rw" and keys:
                assert isinstance(app.screen, Box)
            if n == 0 and "K" in keys:
                assert isinstance(app.screen, ConfirmScreen)
            heard = TerminalInput()
            for piece in typist.typed(random, AT_ONCE):
                await send(pilot, heard, piece)
            await settle(pilot)
            await back(pilot)
        await pilot.press("question_mark")
        await settle(pilot)
        assert isinstance(app.screen, HelpScreen)


@pytest.mark.parametrize("name", sooner(SCREENS))
async def test_live(make_app: MakeApp, name: str) -> None:
    keys = SCREENS[name]
    await attack(make_app, keys, list(SCREENS).index(name), (30, 12) if name == "narrow" else (120, 40))


@pytest.mark.parametrize("name", sooner(REPLAYED))
async def test_replay(make_replay: MakeReplay, name: str) -> None:
    await attack(lambda: make_replay(Playback(START)), REPLAYED[name], 100 + list(REPLAYED).index(name), (120, 40))
