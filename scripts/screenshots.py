"""Write screenshots/*.svg from the recording that comes with gputop: `make screenshots`. Nothing of them is made by hand.

The same bytes each time: the recording stands still at a moment, clock times are UTC, and our own cost is left out. With
``--check`` nothing is written, and the exit code is 1 where a picture is not what it would be.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.pop("NO_COLOR", None)
os.environ.update(TZ="UTC", COLORTERM="truecolor")
time.tzset()

from rich.console import Console  # noqa: E402
from rich.terminal_theme import DEFAULT_TERMINAL_THEME as LIGHT_TERMINAL  # noqa: E402
from rich.terminal_theme import SVG_EXPORT_THEME  # noqa: E402

from gputop.commands.replay import sample  # noqa: E402
from gputop.frame import Frame  # noqa: E402
from gputop.frame import Header  # noqa: E402
from gputop.recording.reader import Recording  # noqa: E402
from gputop.session import Session  # noqa: E402
from gputop.stream.file import FileStream  # noqa: E402
from gputop.stream.playback import Playback  # noqa: E402
from gputop.stream.survey import Survey  # noqa: E402
from gputop.tui.app import GputopApp  # noqa: E402
from gputop.tui.app import Look  # noqa: E402
from gputop.tui.replay import ReplayApp  # noqa: E402
from gputop.tui.screens.dashboard import Dashboard  # noqa: E402
from gputop.tui.view import View  # noqa: E402

FOLDER = Path(__file__).resolve().parent.parent / "screenshots"
_SECOND = 1_000_000_000
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Shot:
    """``at_s`` seconds into the recording, after ``keys``."""

    at_s: float
    size: tuple[int, int]
    keys: tuple[str, ...] = ()
    theme: str = "gputop-dark"
    replay: bool = False


SHOTS = {
    "live": Shot(24, (140, 36)),
    "starving": Shot(31, (140, 30), ("plus", "plus", "b")),
    "why": Shot(24, (120, 32), ("e",)),
    "stacks": Shot(24, (120, 36), ("s",)),
    "replay": Shot(37, (140, 36), replay=True),
    "80x24": Shot(24, (80, 24)),
    "light": Shot(24, (140, 36), theme="gputop-light"),
}


class Silence:
    """A stream that brings nothing."""

    def __init__(self) -> None:
        self._closed = False

    def __iter__(self) -> Iterator[Header | Frame]:
        while not self._closed:
            time.sleep(0.01)
        return iter(())

    def ending(self) -> str:
        """Never shown."""
        return ""

    def close(self) -> None:
        """End the stream."""
        self._closed = True


async def picture(name: str) -> str:
    """The SVG of one shot."""
    shot = SHOTS[name]
    return await (_replayed if shot.replay else _live)(name, shot)


def export(app: GputopApp, name: str) -> str:
    """What is on the screen, as in a terminal with a light or a dark background; Textual's own export knows dark ones only."""
    width, height = app.size
    console = Console(
        width=width, height=height, file=io.StringIO(), force_terminal=True, color_system="truecolor", record=True, legacy_windows=False
    )  # fmt: skip
    console.print(app.screen._compositor.render_update(full=True, screen_stack=app._background_screens))
    theme = LIGHT_TERMINAL if app.theme.endswith("light") else SVG_EXPORT_THEME
    return console.export_svg(title=f"gputop: {name}", theme=theme)


async def _live(name: str, shot: Shot) -> str:
    session = Session()
    with Recording(sample()) as recording:
        session.ingest(recording.header)
        for frame in recording.frames(end_ns=recording.start_ns + int(shot.at_s * _SECOND)):
            session.ingest(frame)
    # As recorded: stacks come from the recording too, not from whoever has those pids now.
    app = GputopApp(session, View(), Silence, Silence(), Look(shot.theme, remote=True))
    async with app.run_test(size=shot.size) as pilot:
        await pilot.pause()
        await pilot.press(*shot.keys)
        await pilot.pause()
        return export(app, name)


async def _replayed(name: str, shot: Shot) -> str:
    file, survey = FileStream(sample()), Survey(sample())
    playback = Playback(file.recording.start_ns + int(shot.at_s * _SECOND), 1.0, playing=False)
    app = ReplayApp(View(), file, playback, survey, Look(shot.theme, remote=True, auto_stacks=False))
    try:
        async with app.run_test(size=shot.size) as pilot:
            deadline = time.monotonic() + _PATIENCE_S
            while (app.player.is_seeking or not survey.done) and time.monotonic() < deadline:
                await pilot.pause(0.05)
            await pilot.pause(1.0)
            return export(app, name)
    finally:
        survey.close()
        file.close()


def main(check: bool) -> int:
    """Write or check them all."""
    Dashboard._cost = lambda _screen: ""  # type: ignore[method-assign]
    stale = []
    for name in SHOTS:
        path, svg = FOLDER / f"{name}.svg", asyncio.run(picture(name))
        if not path.exists() or path.read_text(encoding="utf-8") != svg:
            stale.append(path.name)
            if not check:
                FOLDER.mkdir(exist_ok=True)
                path.write_text(svg, encoding="utf-8")
    if stale:
        print(f"{'stale' if check else 'written'}: {', '.join(stale)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
