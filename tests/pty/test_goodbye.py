"""The goodbye on the terminal when a screen, a recording or a demo ends, and nowhere else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gputop.system.install import OWN_NODE
from tests.pty.conftest import GPUTOP, Launch
from tests.pty.terminal import ALTERNATE_SCREEN
from tests.wait import PATIENCE_S

LOST = "GPU time lost: "
WATCHED = re.compile(r"was watched for \d+ s")


def watched(launch: Launch, *flags: str) -> str:
    """What a terminal shows after `q`, once the screen had judged something."""
    terminal = launch("--no-ebpf", *flags)
    terminal.wait_for(lambda: "LIVE" in terminal.text() and "LOOKING" not in terminal.text(), "a verdict")
    terminal.send("q")
    assert terminal.exit_code() == 0
    assert ALTERNATE_SCREEN not in terminal.modes
    return terminal.text()


def test_q_shows_what_was_lost_and_what_comes_next(launch: Launch) -> None:
    text = watched(launch)
    assert WATCHED.search(text)
    assert LOST in text
    assert "\nnext " in text
    assert "gputop record" in text


def test_quiet_leaves_it_out(launch: Launch, tmp_path: Path) -> None:
    assert not WATCHED.search(watched(launch, "--quiet"))
    path = tmp_path / ".config" / "gputop" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("quiet = true\n")
    text = watched(launch)
    assert not WATCHED.search(text)
    assert LOST not in text


@pytest.mark.parametrize("flags", [(), ("--quiet",)])
def test_after_a_recording_it_names_the_file(launch: Launch, tmp_path: Path, flags: tuple[str, ...]) -> None:
    path = tmp_path / "a run.gputop"
    terminal = launch("record", "--no-ebpf", "-o", str(path), "--duration", "4", *flags)
    assert terminal.exit_code() == 0
    assert (f"gputop replay '{path}'" in terminal.text(), LOST in terminal.text()) == (not flags, not flags)


def test_after_a_demo_it_has_the_cause_its_cost_and_the_way_home(launch: Launch) -> None:
    for duration_s in ("12", "40"):  # on a busy machine the stage fills later
        terminal = launch("demo", "memcpy-bottleneck", "--plain", "--no-ebpf", "--duration", duration_s, "--price", "3600EUR/h")
        assert terminal.exit_code() == 0
        text = terminal.text()
        assert "[SIMULATED GPU]" in text
        if found := re.search(r"GPU time lost: ([\d.]+) of [\d.]+ GPU seconds \(\d+ %, ([\d.]+) EUR\)", text):
            break
    assert found, text
    assert float(found[2]) == pytest.approx(float(found[1]), abs=0.06), "3600 an hour: one a second"
    assert re.search(rf"^next +{OWN_NODE} +the same on your own GPU server$", text, re.MULTILINE)


@pytest.mark.parametrize(
    "arguments", [["record", "--duration", "4", "-o", "a.gputop"], ["demo", "queue-full-healthy", "--plain", "--duration", "5"]],
    ids=["record", "demo"],
)  # fmt: skip
def test_a_pipe_gets_none_of_it(env: dict[str, str], tmp_path: Path, arguments: list[str]) -> None:
    command = [GPUTOP, *arguments, "--no-ebpf"]
    outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, timeout=PATIENCE_S, check=True, **outputs)  # type: ignore[call-overload]
    assert LOST not in done.stdout
    assert "next:" not in done.stdout


def test_the_output_of_a_recorded_command_is_its_own(launch: Launch, tmp_path: Path) -> None:
    command = f"{GPUTOP} record --no-ebpf -o run.gputop -- {sys.executable} -c 'import time; time.sleep(4); print(7)' >{tmp_path / 'out'}"
    terminal = launch("-c", command, command="sh")
    assert terminal.exit_code() == 0
    assert (tmp_path / "out").read_text() == "7\n"
    assert LOST in terminal.text()
