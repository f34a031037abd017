"""The session of screenshots/demo.cast: a training runs well, its workers starve; why; stacks; later the recording of it."""

from __future__ import annotations

from typing import Any

import apps
from asciicast import Cast
from textual.pilot import Pilot

from gputop.session.session import Session
from gputop.tui.app import GputopApp

SIZE = (110, 30)
_FROM_S, _UNTIL_S, _STEP_S = 6.0, 24.0, 0.5
_READING_S = 6.0
_REPLAY_AT_S = 40.0


async def cast() -> str:
    """The file's text."""
    out = Cast(*SIZE, "gputop: who takes the CPUs from the loader's workers")
    out.command("gputop")
    await _watch(out)
    out.command("gputop replay run.gputop")
    await _look_back(out)
    return out.text()


async def _watch(out: Cast) -> None:
    session = Session()
    seconds = apps.fed(session, _UNTIL_S)
    next(second for second in seconds if second >= _FROM_S)
    app = apps.live(session)
    async with app.run_test(size=SIZE) as pilot:
        out.marker("live")
        for now in _moments():
            next((second for second in seconds if second >= now), None)
            app.screen.drawing.redraw()  # type: ignore[attr-defined]
            await pilot.pause()
            _shoot(out, app, _STEP_S)
        out.wait(2.0)
        for key, label in (("e", "e: why"), ("s", "s: stacks")):
            await _open(out, app, pilot, key, label)


def _moments() -> list[float]:
    return [_FROM_S + _STEP_S * i for i in range(int((_UNTIL_S - _FROM_S) / _STEP_S) + 1)]


async def _open(out: Cast, app: GputopApp, pilot: Pilot[Any], key: str, label: str) -> None:
    out.marker(label)
    for pressed, seconds in ((key, _READING_S), ("escape", 1.5)):
        await pilot.press(pressed)
        await pilot.pause()
        _shoot(out, app, seconds)


async def _look_back(out: Cast) -> None:
    """Back in time by the arrow key, why at that moment, and to the begin of the incident."""
    async with apps.replayed(_REPLAY_AT_S, SIZE) as (app, pilot):
        out.marker("replay")
        _shoot(out, app, 2.0)
        for _ in range(12):
            await pilot.press("left")
            await pilot.pause()
            _shoot(out, app, 0.25)
        await _open(out, app, pilot, "e", "e: why, then")
        await pilot.press("N")
        await apps.settle(app, pilot)
        _shoot(out, app, 4.0)


def _shoot(out: Cast, app: GputopApp, seconds: float) -> None:
    """Show the present screen for ``seconds``."""
    update: Any = app.screen._compositor.render_update(full=True, screen_stack=app._background_screens)
    out.show([segment for strip in line for segment in strip] for line in update.strips)
    out.wait(seconds)
