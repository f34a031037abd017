"""Screens of recordings for pictures, equal in each run: time stands still, clocks show UTC, gputop's own cost is left out."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

os.environ.pop("NO_COLOR", None)
os.environ.update(TZ="UTC", COLORTERM="truecolor")
time.tzset()

from textual.pilot import Pilot  # noqa: E402

from gputop.commands.replay import sample  # noqa: E402
from gputop.model.frame import Frame, Header  # noqa: E402
from gputop.recording.parts import open_recording  # noqa: E402
from gputop.recording.reader import Recording  # noqa: E402
from gputop.stream.session import Session  # noqa: E402
from gputop.stream.survey import Survey  # noqa: E402
from gputop.tui.app import GputopApp  # noqa: E402
from gputop.tui.draw.view import View  # noqa: E402
from gputop.tui.feed import ScreenSettings, live_context  # noqa: E402
from gputop.tui.panels import HeaderPanel  # noqa: E402
from gputop.tui.player import Playback  # noqa: E402
from gputop.tui.replay_screen import replay_context  # noqa: E402

SECOND = 1_000_000_000
_PATIENCE_S = 30.0

HeaderPanel.cost = lambda _panel: ""  # type: ignore[method-assign]


class Silence:
    """A stream without frames."""

    def __init__(self) -> None:
        self._closed = False

    def __iter__(self) -> Iterator[Header | Frame]:
        while not self._closed:
            time.sleep(0.01)
        return iter(())

    def ending(self) -> str:
        """Why it ended: never shown."""
        return ""

    def close(self) -> None:
        """End the stream."""
        self._closed = True


def fed(session: Session, until_s: float, path: str = "") -> Iterator[float]:
    """Put a recording (default: the bundled one) into a session, frame by frame; yields the seconds since its begin."""
    with Recording(path or sample()) as recording:
        session.ingest(recording.header)
        for frame in recording.frames(end_ns=recording.start_ns + int(until_s * SECOND)):
            session.ingest(frame)
            yield (frame.t_ns - recording.start_ns) / SECOND


def session_at(at_s: float, path: str = "") -> Session:
    """A session that has seen the first ``at_s`` seconds of a recording."""
    session = Session()
    for _ in fed(session, at_s, path):
        pass
    return session


def session_of(gpus: int) -> Session:
    """A session of a hand-made node with so many GPUs, and a rank of a training on each: the one on GPU 3 holds the others."""
    from tests.tui import scene

    return scene.ranks(gpus, late=3)


def live(session: Session, theme: str = "gputop-dark") -> GputopApp:
    """The live screen of a session. Stacks come from the recording, not from the processes that have these pids now."""
    app = GputopApp(live_context(session, View(grows=True), Silence, Silence(), ScreenSettings(theme, remote=True)))
    app.context.feed._heard_s = float("inf")  # else a slow machine's screen says that no frames come
    return app


@asynccontextmanager
async def replayed(at_s: float, size: tuple[int, int], theme: str = "gputop-dark") -> AsyncIterator[tuple[GputopApp, Pilot[Any]]]:
    """The replay's screen, paused at ``at_s``."""
    file, survey = open_recording([sample()]), Survey([sample()])
    playback = Playback(file.start_ns + int(at_s * SECOND), 1.0, playing=False)
    app = GputopApp(replay_context(View(grows=True), file, playback, survey, ScreenSettings(theme, remote=True, auto_stacks=False)))
    try:
        async with app.run_test(size=size) as pilot:
            await settle(app, pilot)
            yield app, pilot
    finally:
        survey.close()
        file.close()


async def settle(app: GputopApp, pilot: Pilot[Any]) -> None:
    """Wait until a jump has arrived and the whole recording is surveyed."""
    deadline = time.monotonic() + _PATIENCE_S
    while (app.context.replay.player.is_seeking or not app.context.replay.survey.done) and time.monotonic() < deadline:
        await pilot.pause(0.05)
    await pilot.pause(1.0)
