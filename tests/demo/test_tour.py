"""The tour shows each caption, presses keys that do what it says, and ends when the user quits."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

import pytest

from gputop.commands import demo
from gputop.stream.session import Session
from gputop.tui.app import GputopApp
from gputop.tui.draw.view import View
from gputop.tui.feed import ScreenSettings, live_context
from tests.pty.conftest import GPUTOP, clean
from tests.pty.terminal import Terminal
from tests.require import require
from tests.tui import scene
from tests.tui.conftest import Silence


def _app() -> GputopApp:
    session = Session()
    for item in scene.frames(100):
        session.ingest(item)
    return GputopApp(live_context(session, View(), Silence, Silence(), ScreenSettings(remote=True)))


async def test_each_step_finds_the_screen_it_speaks_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "STEPS", tuple((caption, keys, 0.3) for caption, keys, _ in demo.STEPS))
    app, seen = _app(), set()
    async with app.run_test(size=(120, 40)) as pilot:
        walking = asyncio.create_task(demo.guide(pilot))
        while not walking.done():
            seen.add(type(app.screen).__name__)
            seen.add("back in time" if app.context.view.at_ns is not None else "now")
            await asyncio.sleep(0.02)
        await walking
        assert type(app.screen).__name__ == "DashboardScreen"
    assert seen >= {"DashboardScreen", "WhyScreen", "StacksScreen", "back in time", "now"}


async def test_quitting_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "STEPS", (("a caption", (), 600.0),))
    app = _app()
    began = time.monotonic()

    async def leave() -> None:
        await asyncio.sleep(0.5)
        app.exit(0)

    leaving = asyncio.create_task(leave())
    await app.run_async(headless=True, size=(120, 40), auto_pilot=demo.guide)
    await leaving
    assert time.monotonic() - began < 60


def test_nothing_is_drawn_over_a_caption(tmp_path: Path) -> None:
    """The dashboard paints past the compositor, which must not know of it where a caption lies over the screen."""
    words = demo.STEPS[0][0].split()[:4]
    env = clean(dict(os.environ), tmp_path)
    with Terminal([GPUTOP, "demo", "tour", "--no-ebpf"], columns=80, lines=24, env=env, cwd=tmp_path) as terminal:
        terminal.wait_for(lambda: " ".join(words) in terminal.text(), "the first caption", 30.0)
        drawn, until = set(), time.monotonic() + 2.5
        while time.monotonic() < until:
            drawn.add(" ".join(words) in terminal.text())
            time.sleep(0.05)
        terminal.send("q")
        assert terminal.exit_code() == 0
    assert drawn == {True}


@pytest.mark.parametrize(("columns", "lines", "flags"), [(80, 24, ["--no-ebpf"]), (160, 48, [])])
def test_the_first_seconds_fill_every_lane_and_say_what_happens(columns: int, lines: int, flags: list[str], tmp_path: Path) -> None:
    """The simulated CUDA's synchronize calls are known by the probes, and without them too."""
    if not flags:
        require("ebpf")
    env = clean(dict(os.environ), tmp_path)
    with Terminal([GPUTOP, "demo", *flags], columns=columns, lines=lines, env=env, cwd=tmp_path) as terminal:
        seen = r"SIM 0 util +\d+ .*SIM 0 power +\d+ .*SIM sync p99 +[\d.]+ .*run-queue( p99)? +[\d.]+ .* ▶ 1/4 "
        terminal.wait_for(lambda: re.search(seen, terminal.text(), re.DOTALL), "four lanes and the caption", 30.0)
        if not flags:
            terminal.wait_for(lambda: "eBPF ✓" in terminal.text(), "the probes")
        terminal.send("q")
        assert terminal.exit_code() == 0
