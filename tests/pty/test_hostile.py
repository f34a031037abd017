"""Processes whose names try to draw on the screen."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.stage import stage
from tests.pty.conftest import clean
from tests.pty.terminal import Terminal
from tests.pty.test_usage import run
from tests.require import require

NAME = "\x1b[2J[red]"
RENAME = f"import time; open('/proc/self/comm', 'w').write({NAME!r}); print('named', flush=True); time.sleep(600)"


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A GPU with a process called ``\\x1b[2J[red]`` whose command line is 64 KiB long and full of escapes."""
    require("cc")
    arguments = [sys.executable, "-c", RENAME, "\x1b[31m\x1b]0;owned\x07" + "A" * (64 << 10), "[bold]", "\x9b2J", "\u202e"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as hostile:
        assert hostile.stdout is not None
        hostile.stdout.readline()
        try:
            with stage(2, [hostile.pid]) as staged:
                yield clean(staged, tmp_path) | {"HOSTILE": str(hostile.pid)}
        finally:
            hostile.kill()


@pytest.mark.parametrize("size", [(160, 48), (80, 24)])
def test_screen_stays_whole(env: dict[str, str], launch, size: tuple[int, int]) -> None:  # type: ignore[no-untyped-def]
    terminal: Terminal = launch(columns=size[0], lines=size[1])
    terminal.wait_text("LIVE", env["HOSTILE"])
    assert "owned" not in terminal.screen.title
    rows = [row for row in terminal.rows() if env["HOSTILE"] in row]
    assert all("[2J" not in row or "[red]" in row for row in rows), "markup is shown, not obeyed"
    terminal.send("q")
    assert terminal.exit_code() == 0


def test_once_text_has_no_escapes(env: dict[str, str]) -> None:
    text = run(env, "--once").stdout
    assert env["HOSTILE"] in text
    assert "\x1b" not in text
    assert "\x9b" not in text


def test_json_keeps_it_as_data(env: dict[str, str]) -> None:
    raw = run(env, "--once", "--json").stdout
    assert "\x1b" not in raw
    (proc,) = [p for p in json.loads(raw)["procs"] if p["pid"] == int(env["HOSTILE"])]
    assert len(json.dumps(proc)) < 64 << 10
