"""`gputop prove` as people type it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gputop.commands.schema import shape
from gputop.model.frame import Mark
from gputop.recording.parts import open_recording
from tests.experiments import place
from tests.experiments.processes import ROOT
from tests.require import require
from tests.wait import PATIENCE_S, until
from tests.workloads import runner

GPUTOP = str(Path(sys.executable).parent / "gputop")
HERE = [sys.executable, "-m", "tests.experiments.command"]  # `gputop` in the place of the test


def prove(*arguments: str, env: dict[str, str] | None = None, seconds: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    """Without a terminal."""
    return subprocess.run(
        [*HERE, "prove", *arguments], env=env, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds,
        check=False,
    )  # fmt: skip


def marks(path: str) -> list[Mark]:
    """The markers of a recording that may still grow."""
    with open_recording([path]) as recording:
        return recording.marks


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--cause", "bad-luck"], 2, "there are cpu-contention, "),
        (["--cause", "none"], 2, "no cause"),
        (["--readonly", "--keep"], 2, "--readonly changes nothing"),
        (["--undo", "--json"], 2, "--undo goes alone"),
        (["--others"], 2, "--others goes with --yes"),
        (["--seconds", "0.1"], 2, "is no time from"),
        (["--pairs", "0"], 2, "is no number from 1 on"),
    ],
)
def test_wrong_usage_is_told_in_one_line(arguments: list[str], code: int, told: str) -> None:
    done = prove(*arguments)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1)
    assert told in done.stderr


def test_nothing_left_behind_is_nothing_to_put_back() -> None:
    done = prove("--undo")
    assert (done.returncode, done.stdout) == (0, "nothing to put back\n")


def test_a_process_that_does_not_train_is_told_so() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            done = prove(str(sleeper.pid), "--json", "--no-ebpf")
        finally:
            sleeper.kill()
    found = msgspec.json.decode(done.stdout)
    assert (done.returncode, found["schema"], found["result"], found["pairs"], found["kept"]) == (1, 1, None, [], False)
    assert f"process {sleeper.pid} is no trainer" in found["reason"]


@pytest.mark.soak
def test_a_stopped_worker_goes_on_is_proved_and_is_stopped_again_afterwards(tmp_path: Path) -> None:
    """Real processes, a simulated GPU; the job stands still without the change. A recorder beside it hears of the result."""
    require("torch", "cc")
    kept = str(tmp_path / "kept.gputop")
    with runner.started("hung-worker", 60.0) as running, running.disturbed():
        pid, env = running.trainer_pids[0], {**running.env, place.VARIABLE: os.environ[place.VARIABLE]}
        with subprocess.Popen([GPUTOP, "record", "--no-ebpf", "-o", kept], env=env, stdout=subprocess.DEVNULL) as recorder:
            until(lambda: os.path.exists(kept))
            done = prove(str(pid), "--seconds", "1.5", "--yes", "--json", "--no-ebpf", env=env)
            until(lambda: any(mark.experiment for mark in marks(kept)))
            recorder.send_signal(signal.SIGINT)
        stats = [Path(f"/proc/{worker}/stat").read_text() for worker in running.workers()]
    found = msgspec.json.decode(done.stdout)
    msgspec.json.decode(done.stdout, type=shape("prove"))
    assert (done.returncode, found["result"], found["cause"], found["trainer_pid"]) == (0, "proved", "hung-worker", pid), done.stderr
    assert (found["intervention"], found["metric"], found["kept"]) == ("continue", "gpu_work", False)
    assert found["gpu_work_on"] > 10 * found["gpu_work_off"]
    assert (found["gain_pct"], found["missing"]["gain_pct"]) == (None, "the job gave its GPUs no work without the change")
    assert found["gain_low_pct"] > 5.0
    assert found["missing"]["steps_per_min"].startswith("needs the eBPF probes")
    assert [pair["order"] for pair in found["pairs"]][:2] in (["off-on", "on-off"], ["on-off", "off-on"])
    assert [stat.rpartition(")")[2].split()[0] for stat in stats].count("T") == 1
    both = subprocess.run([GPUTOP, "diff", kept, kept, "--json"], capture_output=True, check=True).stdout
    [ended] = msgspec.json.decode(both)["experiments"]["before"]
    assert ended["text"].startswith("proved, GPU work ")
    assert ended["text"].endswith(f": {found['says']}")
    text = subprocess.run([GPUTOP, "diff", kept, kept], capture_output=True, text=True, check=True).stdout
    assert text.count("experiments in ") == 2
