"""A labelled run goes all the way from processes through a kept file to the verdict."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest

from gputop.model.frame import Header
from tests.corpus import runs
from tests.corpus.judging import judge, judge_file
from tests.require import require
from tests.workloads.environment import ROOT

PROC = {"/proc": ["--no-ebpf"]}
pytestmark = pytest.mark.soak


def test_a_stopped_worker_is_found_from_real_processes_and_from_a_kept_file_without_others_names(tmp_path: Path) -> None:
    require("torch", "cc")
    run = runs.record("hung-worker", 7.0, PROC)
    runs.save(runs.neutral(run), tmp_path / "hung-worker.xz")
    [kept] = judge_file(tmp_path / "hung-worker.xz")
    for outcome in (judge(run, "/proc"), kept):
        assert (outcome.symptom, outcome.cause, outcome.victims_right) == ("input-bound", "hung-worker", True)
        assert outcome.delay_s is not None
        assert outcome.sources["procfs"] == "ok"
        assert outcome.sources["nvml"] == "ok"
    header, *frames = runs.load(tmp_path / "hung-worker.xz").items("/proc")
    assert isinstance(header, Header)
    assert header.boot_id == ""
    text = msgspec.json.encode([header, *frames]).decode()
    for name in ("/home/me/gputop/tests/workloads/train.py", "pt_data_worker"):
        assert f'"{name}' in text
    for name in (str(ROOT), "pytest", socket.gethostname()):
        assert f'"{name}' not in text


def test_ranks_of_which_one_was_through_early_are_told_to_hang() -> None:
    require("torch", "cc")
    outcome = judge(runs.record("straggler-through-early", 8.0, PROC), "/proc")
    assert (outcome.symptom, outcome.cause, outcome.culprits_right) == ("straggler", "straggler-rank", True)
