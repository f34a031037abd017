"""The tour shows each caption, presses keys that do what it says, and ends when the user quits."""

from __future__ import annotations

import asyncio
import time

import pytest

from gputop.demo import tour
from gputop.session import Session
from gputop.tui.app import GputopApp
from gputop.tui.app import Look
from gputop.tui.view import View
from tests.tui import scene
from tests.tui.conftest import Silence


def _app() -> GputopApp:
    session = Session()
    for item in scene.frames(100):
        session.ingest(item)
    return GputopApp(session, View(), Silence, Silence(), Look(remote=True))


async def test_each_step_finds_the_screen_it_speaks_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tour, "STEPS", tuple((caption, keys, 0.3) for caption, keys, _ in tour.STEPS))
    app, seen = _app(), set()
    async with app.run_test(size=(120, 40)) as pilot:
        walking = asyncio.create_task(tour.guide(pilot))
        while not walking.done():
            seen.add(type(app.screen).__name__)
            seen.add("back in time" if app.view.at_ns is not None else "now")
            await asyncio.sleep(0.02)
        await walking
        assert type(app.screen).__name__ == "MainScreen"
    assert seen >= {"MainScreen", "WhyScreen", "StacksScreen", "back in time", "now"}


async def test_quitting_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tour, "STEPS", (("a caption", (), 600.0),))
    app = _app()
    began = time.monotonic()

    async def leave() -> None:
        await asyncio.sleep(0.5)
        app.exit(0)

    leaving = asyncio.create_task(leave())
    await app.run_async(headless=True, size=(120, 40), auto_pilot=tour.guide)
    await leaving
    assert time.monotonic() - began < 60
