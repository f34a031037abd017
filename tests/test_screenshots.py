"""The pictures and the session in screenshots/ show the present screen."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pyte
import pytest

from tests.pty.terminal import Emulated

ROOT = Path(__file__).resolve().parent.parent
CAST, FILM = (ROOT / "screenshots" / name for name in ("demo.cast", "demo.svg"))


@pytest.mark.soak
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
    wanted = {
        "": "$ uvx gputop-ebpf demo", "healthy": "HEALTHY", "found": "● STARVING", "e: why": "chrt --idle", "s: stacks": "decode_image",
        "proof": "proved, ", "fixed": "the trouble is over",
    }  # fmt: skip
    assert list(chapters) == list(wanted)
    for chapter, text in wanted.items():
        assert any(text in screen for screen in chapters[chapter]), chapter
    assert all(len(screen.splitlines()) == head["height"] for screen in chapters["healthy"])


def test_the_moving_picture_stands_alone() -> None:
    """It plays in an <img>, which runs no script and loads no other file."""
    text = FILM.read_text(encoding="utf-8")
    assert len(text.encode()) < 2_000_000
    root = ElementTree.fromstring(text)
    shown = {"".join(one.itertext()).replace("\u00a0", " ") for one in root.iter("{http://www.w3.org/2000/svg}text")}
    for told in ("$ uvx gputop-ebpf demo", "● STARVING", "SIM sync p99", "chrt --idle"):
        assert any(told in one for one in shown), told
    assert not re.search(r"<script|href|url\(|@import", text)
    end_s = float(re.search(r"animation-duration:([\d.]+)s", text)[1])  # type: ignore[index]
    assert 20 < end_s <= 60


def test_the_first_frame_of_the_moving_picture_is_the_verdict() -> None:
    """A page shows it until the story has begun; who wants no motion sees it for good."""
    text = FILM.read_text(encoding="utf-8")
    first, still = list[str](), list[str]()
    for row, body in re.findall(r'<g class="s r(\d+)">(.*?)</g>', text):
        moving = re.search(rf"@keyframes k{row}{{0.00%{{transform:translateX\((-?[\d.]+)px", text)
        fixed = re.search(rf"\.r{row}{{transform:translateX\((-?[\d.]+)px", text)
        assert moving
        assert fixed
        for place, words in ((moving, first), (fixed, still)):
            left = -float(place[1])
            shown = re.findall(r'<text[^>]* x="([\d.]+)"[^>]*>([^<]*)</text>', body)
            words += [word.replace("\u00a0", " ") for x, word in shown if left <= float(x) < left + 100 * 8.4]
    assert any("INPUT-BOUND" in word for word in first), first
    assert not any("uvx gputop-ebpf demo" in word for word in first)
    assert first == still
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"!\[[^]]*\]\(([^)]+)\)", readme)[0] == "screenshots/demo.svg"


def test_pictures_of_parts_are_small_and_shown() -> None:
    """Eight that anybody who clones takes along: 160 kB in all."""
    parts = sorted((ROOT / "screenshots").glob("part-*.svg"))
    page = (ROOT / "docs/screen.md").read_text(encoding="utf-8")
    assert len(parts) >= 8
    assert [path.name for path in parts if f"](../screenshots/{path.name})" not in page] == []
    assert sum(path.stat().st_size for path in parts) < 160_000


def _screens(head: dict[str, int], events: list[tuple[float, str, str]]) -> dict[str, list[str]]:
    """Chapter -> what a terminal shows after each of its events."""
    terminal = Emulated(head["width"], head["height"])
    stream, chapters = pyte.Stream(terminal), {"": [""]}
    for _, kind, data in events:
        if kind == "m":
            chapters[data] = []
        else:
            stream.feed(data)
            chapters[list(chapters)[-1]].append("\n".join(terminal.display))
    return chapters
