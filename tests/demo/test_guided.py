"""`gputop demo` in a terminal: its first seconds, and its keys pressed as the guide asks for them, up to the cure and the goodbye."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gputop.commands.guide import steps_of
from gputop.demo.scenarios import SCENARIOS, cpus
from gputop.system.install import FROM_HERE, OWN_NODE
from tests.pty.conftest import GPUTOP, clean
from tests.pty.terminal import Terminal
from tests.require import require

_TURN_S = 150.0  # s for a step: ten times what a quiet machine takes from one act's begin to the cure


@pytest.mark.parametrize(("columns", "lines", "flags"), [(80, 24, ["--no-ebpf"]), (160, 48, [])])
def test_the_first_seconds_fill_every_lane_and_say_what_happens(columns: int, lines: int, flags: list[str], tmp_path: Path) -> None:
    """The simulated CUDA's synchronize calls are known by the probes, and without them too."""
    if not flags:
        require("ebpf")
    env = clean(dict(os.environ), tmp_path)
    with Terminal([GPUTOP, "demo", *flags], columns=columns, lines=lines, env=env, cwd=tmp_path) as terminal:
        seen = (r"SIM 0 util +\d+ ", r"SIM 0 power +\d+ ", r"SIM sync p99 +[\d.]+ ", r"run-queue( p99)? +[\d.]+ ", r" ▶ .e .x .u .← ")
        terminal.wait_for(lambda: all(re.search(one, terminal.text()) for one in seen), "four lanes and the guide", _TURN_S)
        if not flags:
            terminal.wait_for(lambda: "eBPF ✓" in terminal.text(), "the probes")
        terminal.send("q")
        assert terminal.exit_code() == 0


def _gain(terminal: Terminal) -> float:
    """How many times as fast the job is with the fix, as the line tells it; 0 while that is not known."""
    found = re.search(r"✓ applied .*→ [\d.]+ steps/s, ([\d.]+)×", terminal.text())
    return float(found[1]) if found else 0.0


CURED = [name for name, scenario in SCENARIOS.items() if scenario.turns]
SOON, LATER = "pinned", "slow-disk"
"""One in `make test` and one in `make soak`: the keys are the same, and the others fill the CPUs for half a minute each. GPUTOP_DEMOS=1
plays all of them, as for a release."""
PLAYED = [name for name in CURED if name in (SOON, LATER) or os.environ.get("GPUTOP_DEMOS")]


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == SOON else pytest.mark.soak) for name in PLAYED])
def test_its_keys_lead_from_the_trouble_to_the_cure(name: str, tmp_path: Path) -> None:
    """Each key is pressed when it is asked for. The fix ends what disturbs, measured in steps a second."""
    scenario = SCENARIOS[name]
    if (scenario.quota or scenario.file) and os.geteuid() != 0:
        pytest.skip("a limit of a control group needs root")
    if scenario.pins and cpus() < 2:
        pytest.skip("one CPU")
    env = clean(dict(os.environ), tmp_path)
    with Terminal([GPUTOP, "demo", name, "--duration", "10m"], columns=120, lines=35, env=env, cwd=tmp_path) as terminal:
        def shows(pattern: str) -> None:
            terminal.wait_for(lambda: re.search(pattern, terminal.text()), pattern, _TURN_S)

        shows("press e")
        terminal.send("e")
        shows("✓e.*Esc closes")
        terminal.send("\x1b")
        shows("press x")
        terminal.press("x", "Apply this fix", _TURN_S)
        terminal.press("y", r"applied \d+ s ago", _TURN_S)
        terminal.wait_for(lambda: _gain(terminal) > 1.05, "the job is faster", _TURN_S)
        shows("✓x.*press u")
        terminal.send("u")
        shows("✓u.*press ←")
        terminal.send("\x1b[D")
        shows(re.escape(OWN_NODE))
        terminal.send("q")
        assert terminal.exit_code() == 0
        assert OWN_NODE in terminal.text()
        assert FROM_HERE in terminal.text()


def test_keys_of_code_are_for_reading_and_copying() -> None:
    keys = [[step.key for step in steps_of(scenario)] for scenario in SCENARIOS.values() if not scenario.turns]
    assert keys
    assert not any("x" in some for some in keys)
