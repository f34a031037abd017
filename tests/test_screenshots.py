"""The pictures and the session in screenshots/ show the present screen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyte

ROOT = Path(__file__).resolve().parent.parent
CAST = ROOT / "screenshots" / "demo.cast"


def test_screenshots_are_fresh() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "screenshots.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: make screenshots writes them anew"


def test_the_session_tells_its_story_in_a_terminal() -> None:
    """Asciicast v2: a header, then [time, kind, data] in order of time."""
    assert CAST.stat().st_size < 500_000
    head, *events = map(json.loads, CAST.read_text(encoding="utf-8").splitlines())
    assert head["version"] == 2
    times = [at for at, _, _ in events]
    assert times == sorted(times)
    assert times[-1] < 90
    chapters = _screens(head, events)
    assert list(chapters) == ["", "live", "e: why", "s: stacks", "replay", "e: why, then"]
    wanted = {
        "live": "● STARVING", "e: why": "chrt --idle", "s: stacks": "Gpu.synchronize", "replay": "REPLAY", "e: why, then": "cpu-contention",
    }  # fmt: skip
    for chapter, text in wanted.items():
        assert any(text in screen for screen in chapters[chapter]), chapter
    assert all(len(screen.splitlines()) == head["height"] for screen in chapters["live"])


def _screens(head: dict[str, int], events: list[tuple[float, str, str]]) -> dict[str, list[str]]:
    """Chapter -> what a terminal shows after each of its events."""
    terminal = pyte.Screen(head["width"], head["height"])
    stream, chapters = pyte.Stream(terminal), {"": [""]}
    for _, kind, data in events:
        if kind == "m":
            chapters[data] = []
        else:
            stream.feed(data)
            chapters[list(chapters)[-1]].append("\n".join(terminal.display))
    return chapters
