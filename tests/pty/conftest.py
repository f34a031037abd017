"""`launch`: the installed `gputop`, as a user starts it, in a terminal of its own with two simulated GPUs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bench.stage import stage
from tests.pty.terminal import ALTERNATE_SCREEN, CURSOR, FOCUS, MOUSE, PASTE, Terminal
from tests.require import require
from tests.wait import at_this_load

GPUTOP = str(Path(sys.executable).parent / "gputop")

Launch = Callable[..., Terminal]


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment with a home of its own and an NVML stub of two GPUs, with this process on them."""
    require("cc")
    with stage(2, [os.getpid()]) as staged:
        yield clean(staged, tmp_path)


def clean(staged: dict[str, str], home: Path) -> dict[str, str]:
    """``staged`` without variables of another terminal (xdist sets COLUMNS)."""
    left_out = ("NO_COLOR", "COLORTERM", "COLUMNS", "LINES")
    kept = {k: v for k, v in staged.items() if k not in left_out and not k.startswith(("XDG_", "TMUX"))}
    return kept | {"HOME": str(home), "TERM": "xterm-256color", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


@pytest.fixture
def launch(env: dict[str, str], tmp_path: Path) -> Iterator[Launch]:
    """Starts `gputop ARGUMENTS…` in an empty folder and ends it afterwards; without ``probes`` it does not compile them, which takes a
    second of a CPU."""
    terminals: list[Terminal] = []

    def start(*arguments: str, command: str = GPUTOP, probes: bool = False, **options: object) -> Terminal:
        extra = {"GPUTOP_NO_EBPF": "0" if probes else "1", **options.pop("env", {})}  # type: ignore[dict-item]
        terminal = Terminal([command, *arguments], env={**env, **extra}, cwd=tmp_path, **options)  # type: ignore[dict-item]
        terminals.append(terminal)
        return terminal

    yield start
    for terminal in terminals:
        terminal.close()


def assert_left_as_found(terminal: Terminal) -> None:
    """The line settings are what they were, and no mode is left on."""
    assert terminal.termios_now() == terminal.termios_before
    assert CURSOR in terminal.modes
    assert not terminal.modes & (MOUSE | {ALTERNATE_SCREEN, PASTE, FOCUS})


def assert_nothing_left(terminal: Terminal, family: list[int], timeout_s: float = 2.0) -> None:
    """All processes of ``family`` end within ``timeout_s`` (longer on a loaded machine)."""

    def left() -> list[str]:
        terminal.process.poll()
        return [f"{pid} {name}" for pid in family if (name := _running(pid))]

    deadline = time.monotonic() + at_this_load(timeout_s)
    while left() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left() == []


def _running(pid: int) -> str:
    """Its command line and state, empty once it is gone."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return f"{command} {Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2][:3]}"
    except OSError:
        return ""
