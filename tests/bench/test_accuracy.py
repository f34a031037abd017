"""The accuracy bench counts what it should, and a labelled run goes all the way from processes to verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.bench import accuracy, judging
from tests.bench.judging import Outcome
from tests.require import require
from tests.workloads.scenario import Label

HOGS = Label("input-bound", "cpu-contention", frozenset({"agent"}))
RIGHT = Outcome("hogs", HOGS, "/proc", "input-bound", "cpu-contention", 1.0, 1.5, 1, {7: ("agent", 9.6)}, {7: ("agent", 10.0)})
WRONG = replace(RIGHT, cause="slow-transform", live_share=0.0, delay_s=None, culprits={})
CALM = Outcome("calm", Label("healthy", "none"), "/proc", "healthy", "none", 1.0, 0.5, 0, {}, {})


def test_symptom_and_cause_must_both_be_right() -> None:
    assert RIGHT.right
    assert not WRONG.right
    assert not replace(RIGHT, symptom="wait-heavy").right


def test_culprits_are_right_by_pid_name_and_cpu_seconds() -> None:
    assert RIGHT.culprits_right is True
    assert replace(RIGHT, culprits={8: ("agent", 10.0)}).culprits_right is False
    assert replace(RIGHT, culprits={7: ("other", 10.0)}).culprits_right is False
    assert replace(RIGHT, culprits={7: ("agent", 8.0)}).culprits_right is False
    assert replace(RIGHT, culprits={7: ("agent", None)}).culprits_right is False
    assert CALM.culprits_right is None


def test_a_label_that_blames_somebody_is_not_right_without_a_culprit() -> None:
    assert replace(RIGHT, true_culprits={}, culprits={}).culprits_right is False


def test_the_table_says_what_was_said_instead() -> None:
    row = accuracy.table([RIGHT, WRONG, CALM]).splitlines()[2]
    assert row == "| hogs | input-bound | cpu-contention | 1/2 | 1/2 | 50% | input-bound/slow-transform ×1 |"


def test_the_summary_counts_right_runs_culprits_and_false_alarms() -> None:
    text = accuracy.summary([RIGHT, WRONG, CALM, replace(CALM, loud=2)])
    assert "75 % (3 of 4) symptom and cause right" in text
    assert "culprits 50 % (1 of 2)" in text
    assert "1 of 2 healthy runs with an incident of medium severity or above" in text


def test_a_stopped_worker_is_found_from_real_processes(tmp_path: Path) -> None:
    require("torch", "cc")
    runs = judging.record("hung-worker", 7.0, {"/proc": ["--no-ebpf"]}, tmp_path)
    assert runs == judging.recorded(tmp_path)
    outcome = judging.judge(runs[0], tmp_path)
    assert (outcome.symptom, outcome.cause) == ("input-bound", "hung-worker")
    assert outcome.delay_s is not None
    assert outcome.sources["procfs"] == "ok"
    assert outcome.sources["nvml"] == "ok"


def test_ranks_of_which_one_was_through_early_are_told_to_hang(tmp_path: Path) -> None:
    require("torch", "cc")
    [run] = judging.record("straggler-through-early", 8.0, {"/proc": ["--no-ebpf"]}, tmp_path)
    outcome = judging.judge(run, tmp_path)
    assert (outcome.symptom, outcome.cause, outcome.culprits_right) == ("straggler", "straggler-rank", True)
