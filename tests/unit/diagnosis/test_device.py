"""Trainings that were recorded on a real GPU, one H200 (`tests.device.labels.KEPT`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gputop.cli import main
from gputop.recording.chunks import Decoder
from gputop.stream.following import Following
from tests.corpus.split import LEARN, half_of
from tests.device.labels import KEPT

DATA = Path(__file__).parents[2] / "device" / "data"
NAMES = [name for name in KEPT if half_of(name) == LEARN]  # the other half is only counted, by `make accuracy`


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stretch", [[], ["--last", "8s"]])
def test_a_real_training_is_explained(name: str, stretch: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(DATA / f"{name}.gputop"), "--json", *stretch]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    verdict, ledger = found["verdict"], found["ledger"]
    assert (verdict["symptom"], verdict["cause"]) == KEPT[name]
    assert {one["cause"] for one in found["incidents"]} <= {verdict["cause"]}
    others_s = ledger["gpu_lost_s"] - ledger["by_cause"].get(verdict["cause"], 0.0)
    assert others_s <= 0.1 * ledger["gpu_total_s"]
    assert ledger["gpu_total_s"] <= 10.5


@pytest.mark.parametrize("name", NAMES)
def test_nor_does_the_screen_ever_say_loudly_what_it_is_not(name: str) -> None:
    following, loud = Following(), set()
    for _ in following.through(Decoder().feed((DATA / f"{name}.gputop").read_bytes())):
        verdict = following.engine.verdict
        loud |= {verdict.cause} if verdict.severity in ("medium", "high") else set()
    assert loud <= {KEPT[name][1]}


def test_a_training_that_goes_wrong_twice_is_told_part_by_part(capsys: pytest.CaptureFixture[str]) -> None:
    """Two workers, then a new loader of fifteen, then hogs on all CPUs; well in between and in the end."""
    assert main(["explain", str(DATA / "story.gputop"), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [one["cause"] for one in found["incidents"]] == ["too-few-workers", "worker-respawn", "cpu-contention"]
    assert {who["name"] for who in found["incidents"][2]["culprits"]} == {"simulate.py"}
    assert main(["explain", str(DATA / "story.gputop"), "--json", "--from", "20s", "--until", "30s"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["cause"] == "none"


def test_nvml_calls_copies_work_and_we_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    """Copies from pinned memory at 38 GB/s: utilization says 90 % and more, and kernels ran a third of the time."""
    asked = "SELECT avg(util_pct) u, avg(gr_active_pct) g FROM gpu"
    assert main(["query", str(DATA / "pinned.gputop"), "--last", "6", "--json", asked]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["u"] > 85
    assert row["g"] < 40


def test_a_worker_that_is_ahead_is_not_waited_for() -> None:
    """The backward pass is, by a main thread that a pin thread hands its batches."""
    following, waits = Following(), list[float]()
    for _ in following.through(Decoder().feed((DATA / "gpt-checkpoints.gputop").read_bytes())):
        facts = following.engine.facts
        waits += [job.data for job in facts.jobs if job.workers] if facts is not None else []
    assert len(waits) > 20
    assert max(waits) < 0.1
