"""What a key costs: CPU time of the screen's thread from a key until what it brings about stands in a pseudo-terminal, the first time and
later, over a recording that stands still. `response` measures the same by the clock, live, where the machine's load and the beat count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import table
from tests.bench.live_cost import GPUTOP
from tests.pty.terminal import Terminal

BAR_MS = 20.0  # ms of CPU that a key may take: felt as at once, with room for the terminal (a choice)
READ_S = 3.0  # s that a screen stands before the first key, in which it prepares what keys need
STILL_S = 0.3  # s without output after which a key has done its work
BOXES = {"e": "why", "s": "stacks", "?": "help", "z": "one lane large", "\x1bOQ": "columns", "v": "lanes", "\x10": "palette"}
KEYS = {"n": "next incident", "o": "sort", "b": "bystanders", "j": "select"}
"""Key -> what it brings about."""
CLEARED = (*BOXES, "o", "j")  # keys with Escape after each: it closes a box, and lets a sort order, or a selection, begin anew
_NAMES = {"\x1bOQ": "F2", "\x10": "^p"}


def cpu_ms(pid: int) -> float:
    """CPU time of a process's main thread so far, by the scheduler."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e6


def costs(presses: int) -> dict[str, list[float]]:
    """Milliseconds of each press of each key."""
    found: dict[str, list[float]] = {}
    with Terminal([*GPUTOP, "replay", "--sample"], env=dict(os.environ), columns=160, lines=48) as terminal:
        terminal.wait_text("REPLAY")
        time.sleep(READ_S)
        terminal.send(" ")
        terminal.wait_still(2 * STILL_S)
        for key in {**BOXES, **KEYS}:
            for _ in range(presses):
                found.setdefault(key, []).append(_pressed(terminal, key))
                if key in CLEARED:
                    _pressed(terminal, "\x1b")
    return found


def _pressed(terminal: Terminal, key: str) -> float:
    seen, before = len(terminal.bursts), cpu_ms(terminal.pid)
    terminal.send(key)
    terminal.wait_for(lambda: len(terminal.bursts) > seen, f"what {key!r} brings")
    terminal.wait_still(STILL_S)
    return cpu_ms(terminal.pid) - before


def report(presses: int = 7) -> Iterator[str]:
    """The table."""
    found = costs(presses)
    yield f"## Keys (a recording that stands still, 160×48, ms of CPU of the screen's thread; at most {BAR_MS:g})"
    rows = []
    for key, what in {**BOXES, **KEYS}.items():
        first, *later = found[key]
        rows.append([f"`{_NAMES.get(key, key)}`", what, f"{first:.1f}", f"{sorted(later)[len(later) // 2]:.1f}" if later else "–"])
    yield table(["key", "brings", "the first time", "later, median"], rows)
