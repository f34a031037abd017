"""Write screenshots/ and README's answer of `gputop explain` from the bundled recording, one of a real GPU and one of an inference server:
`make screenshots`. Each run writes the same bytes (see `apps`).

With ``--check`` nothing is written; the exit code is 1 if a file is out of date.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import apps
import story
from rich.console import Console
from rich.segment import Segment, Segments
from rich.terminal_theme import DEFAULT_TERMINAL_THEME as LIGHT_TERMINAL
from rich.terminal_theme import SVG_EXPORT_THEME

from gputop.tui.app import GputopApp

FOLDER = Path(__file__).resolve().parent.parent / "screenshots"
README = FOLDER.parent / "README.md"
_BEGIN, _END = "<!-- explain: `make screenshots` writes this -->\n", "<!-- /explain -->"


@dataclass(frozen=True, slots=True)
class Shot:
    """The screen ``at_s`` seconds into the recording, after ``keys``."""

    at_s: float
    size: tuple[int, int]
    keys: tuple[str, ...] = ()
    theme: str = "gputop-dark"
    replay: bool = False
    path: str = ""
    """Another recording than the bundled one."""
    parts: tuple[str, ...] = ()
    """The panels, by name, that are in the picture, one below the other; empty: the whole screen."""
    gpus: int = 0
    """GPUs of a hand-made node in place of a recording; 0: a recording."""


SHOTS = {
    "h200": Shot(43.5, (168, 38), path=str(FOLDER.parent / "tests" / "device" / "data" / "story.gputop")),
    "live": Shot(24, (140, 36)),
    "starving": Shot(31, (140, 30), ("plus", "plus", "b")),
    "why": Shot(24, (120, 32), ("e",)),
    "stacks": Shot(24, (120, 36), ("s",)),
    "flame": Shot(24, (110, 24), ("s", "g", "down", "down"), theme="gputop-night"),
    "replay": Shot(37, (140, 36), replay=True),
    "80x24": Shot(24, (80, 24)),
    "light": Shot(24, (140, 36), theme="gputop-light"),
    "serving": Shot(11.5, (150, 34), path=str(FOLDER / "serving.gputop")),
    "serving-why": Shot(11.5, (120, 30), ("e",), path=str(FOLDER / "serving.gputop")),
    # the parts of docs/screen.md, in its order
    "part-verdict": Shot(24, (110, 34), parts=("header", "verdict")),
    "part-gpus": Shot(43.5, (110, 34), path=str(FOLDER.parent / "tests" / "device" / "data" / "story.gputop"), parts=("gpus",)),
    "part-many-gpus": Shot(0, (110, 34), parts=("gpus",), theme="gputop-night", gpus=8),
    "part-lanes": Shot(24, (100, 30), parts=("lanes",)),
    "part-processes": Shot(24, (110, 34), parts=("procs",)),
    "part-keys": Shot(24, (110, 34), parts=("keys",)),
    "part-lane": Shot(24, (90, 24), ("z",)),
    "part-replay": Shot(37, (110, 34), replay=True, parts=("scrub", "keys")),
}


async def picture(name: str) -> str:
    """The SVG of one shot."""
    shot = SHOTS[name]
    if shot.replay:
        async with apps.replayed(shot.at_s, shot.size, shot.theme) as (replay, _):
            return export(replay, name, shot.parts)
    app = apps.live(apps.session_of(shot.gpus) if shot.gpus else apps.session_at(shot.at_s, shot.path), shot.theme)
    async with app.run_test(size=shot.size) as pilot:
        await pilot.pause()
        await pilot.press(*shot.keys)
        await pilot.pause()
        return export(app, name, shot.parts)


def export(app: GputopApp, name: str, parts: tuple[str, ...]) -> str:
    """The screen, or panels of it, as SVG, in a terminal with a light or a dark background; Textual's own export knows dark ones only."""
    update: Any = app.screen._compositor.render_update(full=True, screen_stack=app._background_screens)
    regions = [app.screen.query_one(f"#{part}").region for part in parts]
    rows = [y for region in regions for y in range(region.y, region.bottom)] if parts else range(app.size.height)
    lines = [[segment for strip in update.strips[y] for segment in strip] for y in rows]
    width, height = app.size.width, len(lines)
    console = Console(
        width=width, height=height, file=io.StringIO(), force_terminal=True, color_system="truecolor", record=True, legacy_windows=False
    )  # fmt: skip
    ends = [[Segment.line()]] * (height - 1) + [[]]
    console.print(Segments([segment for line, end in zip(lines, ends, strict=True) for segment in (*line, *end)]))
    theme = LIGHT_TERMINAL if app.theme.endswith("light") else SVG_EXPORT_THEME
    return console.export_svg(title=f"gputop: {name}", theme=theme)


async def readme() -> str:
    """README.md with the parts of the answer that a first look needs: the verdict, the way there, the first fix, the lane."""
    environ = {**os.environ, "COLUMNS": "100", "LC_ALL": "C.UTF-8"}
    command = [sys.executable, "-m", "gputop", "explain", apps.sample()]
    told = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    verdict, ledger = told.split("\n\n")[:2]
    first = re.split(r"\n  (?:or |why)   ", verdict)[0]
    lane = verdict[verdict.index("\n  lane ") : verdict.index("\n  step ")]
    lost = ledger.partition("\n")[0]
    shown = "\n".join(["$ gputop explain run.gputop", first + lane, "", lost])
    before, _, rest = README.read_text(encoding="utf-8").partition(_BEGIN)
    return f"{before}{_BEGIN}```text\n{shown}\n```\n{_END}{rest.partition(_END)[2]}"


FILES: dict[str, Callable[[], Coroutine[Any, Any, str]]] = {
    **{f"{name}.svg": partial(picture, name) for name in SHOTS}, "demo.cast": story.cast, "demo.svg": story.moving_picture,
    "../README.md": readme,
}  # fmt: skip


def main(check: bool, wanted: list[str]) -> int:
    """Write or check the ``wanted`` files, all if none is named; the exit code."""
    stale = []
    for name in wanted or FILES:
        path, text = FOLDER / name, asyncio.run(FILES[name]())
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if not check:
                FOLDER.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    if stale:
        print(f"{'stale' if check else 'written'}: {', '.join(stale)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:], [argument for argument in sys.argv[1:] if not argument.startswith("-")]))
