"""How soon: first data after Enter, `--once --json`, key to screen."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from random import Random

from tests.bench.figures import spread, table
from tests.bench.live_cost import GPUTOP, TOOLS, Scene, set_up
from tests.pty.terminal import Terminal

SCENE = Scene(8, 20)
BOXES = {"e": "severity", "w": "took CPU", "z": "source:", "?": "keys and signs"}
"""Key and words of the box that it opens."""
_GPU_VALUES = re.compile(r"\d\s?%.*\d\s?[MG]i?B|[MG]i?B.*\d\s?%")
"""A row that has both a percentage and an amount of memory: no tool shows one before NVML has answered."""


def start_up(command: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Seconds from exec to the first byte, and to GPU values on screen."""
    with Terminal(command, env=env) as terminal:
        terminal.wait_for(lambda: any(_GPU_VALUES.search(row) for row in terminal.rows()), "GPU values")
        return terminal.bursts[0][0] - terminal.started, time.monotonic() - terminal.started


def once_json(env: dict[str, str]) -> float:
    """Wall seconds of `gputop --once --json`."""
    started = time.monotonic()
    subprocess.run([*GPUTOP, "--once", "--json"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True, timeout=30)
    return time.monotonic() - started


def at_any_phase(env: dict[str, str], presses: int) -> Iterator[tuple[Terminal, int]]:
    """A running screen, and the number of the press that is due: at any phase of the beat."""
    chance = Random(7)
    with Terminal(GPUTOP, env=env) as terminal:
        terminal.wait_text("LIVE")
        time.sleep(3)
        for press in range(presses):
            time.sleep(0.2 + chance.random() / 5)
            yield terminal, press


def answered(terminal: Terminal, key: str, condition: Callable[[], bool], what: str) -> float:
    """Milliseconds from a key to what it brings about."""
    sent = time.monotonic()
    terminal.send(key)
    terminal.wait_for(condition, what)
    return 1000 * (time.monotonic() - sent)


def key_to_screen(env: dict[str, str], presses: int = 40) -> list[float]:
    """Milliseconds from presses of the space bar to PAUSED on, or off, the screen."""

    def one(terminal: Terminal, paused: bool) -> float:
        return answered(terminal, " ", lambda: ("PAUSED" in terminal.text()) is paused, f"paused: {paused}")

    return [one(terminal, press % 2 == 0) for terminal, press in at_any_phase(env, presses)]


def key_to_box(env: dict[str, str], key: str, shown: str, presses: int) -> list[float]:
    """Milliseconds from a key to the box that it opens."""
    latencies = []
    for terminal, _ in at_any_phase(env, presses):
        latencies.append(answered(terminal, key, lambda terminal=terminal: shown in terminal.text(), f"the box of {key}"))
        answered(terminal, "\x1b", lambda terminal=terminal: shown not in terminal.text(), "the dashboard")
    return latencies


def report(runs: int = 7) -> Iterator[str]:
    """The tables."""
    first: dict[str, list[float]] = {name: [] for name in TOOLS}
    values: dict[str, list[float]] = {name: [] for name in TOOLS}
    with set_up(SCENE) as env:
        for _ in range(runs):
            for name, command in TOOLS.items():
                byte, data = start_up(command, env)
                first[name].append(byte)
                values[name].append(data)
        once = [once_json(env) for _ in range(runs)]
        keys = key_to_screen(env)
        boxes = {key: key_to_box(env, key, shown, 4 * runs) for key, shown in BOXES.items()}
    yield f"## Start ({SCENE}, {runs} runs, seconds from exec, min/median/max)"
    yield table(["tool", "first byte", "GPU values on screen"], [[n, spread(first[n], 3), spread(values[n], 3)] for n in TOOLS])
    yield f"## Response ({SCENE}, min/median/max)"
    rows = [["`gputop --once --json`, s", spread(once, 3)], [f"key to screen, ms ({len(keys)} presses)", spread(keys)]]
    rows += [[f"key `{key}` to its box, ms ({len(found)} presses)", spread(found)] for key, found in boxes.items()]
    yield table(["what", "measured"], rows)
