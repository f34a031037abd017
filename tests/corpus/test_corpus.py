"""The corpus: its halves, the verdicts on the half `learn`, how it is recorded and counted."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from gputop.findings.verdict import GPU_LOST, OWN_CAUSES, Fix, PathStep
from gputop.model.frame import Frame, Header, SourceState
from gputop.model.trace import TraceCheck
from gputop.recording import columns
from gputop.stream.following import Following
from tests.corpus import accuracy, calm, runs, split
from tests.corpus.conservation import Audit, audited
from tests.corpus.judging import SAID, SURE, Outcome
from tests.device.labels import KEPT
from tests.require import require
from tests.workloads import runner, scenario
from tests.workloads.scenario import Label

MOST_UNBOOKED = 0.19  # of the loss in the mean, at leaves that no row of the table takes
HOGS = Label("input-bound", "cpu-contention", frozenset({"agent"}))
RIGHT = Outcome(
    "affinity", HOGS, "/proc", "input-bound", "cpu-contention", delay_s=1.5, loud=1,
    culprits={7: ("agent", 9.6)}, true_culprits={7: ("agent", 10.0)}, victims={5}, family={4, 5},
)  # fmt: skip
WRONG = replace(RIGHT, cause="slow-transform", delay_s=None, culprits={}, victims=set())
CALM = Outcome("affinity", Label("healthy", "none"), "/proc", "healthy", "none", 0.5)


@pytest.fixture(scope="module")
def learned() -> list[tuple[list[Outcome], Audit]]:
    """Each recording of the half `learn` is judged once for all tests."""
    return accuracy.of_each(accuracy.paths(half=split.LEARN), audited)


@pytest.mark.soak
def test_no_verdict_on_the_half_learn_got_worse(learned: list[tuple[list[Outcome], Audit]]) -> None:
    """`make accuracy ARGS=--accept` writes better figures down."""
    outcomes = [one for told, _ in learned for one in told]
    found, floor = accuracy.figures(outcomes), json.loads(accuracy.FLOOR.read_text())
    for mode, known in floor.items():
        now = found[mode]
        said = "\n".join(accuracy.wrong(outcomes))
        assert now["judged"] >= known["judged"], "recordings are missing"
        assert now["right"] >= known["right"], said
        assert now["false_alarms"] <= known["false_alarms"], said
        assert now["advice_harms"] <= known["advice_harms"], said
        for what in ("victims_right", "culprits_right", "end_right", "advice_right"):
            assert now[what] >= known[what], said
        assert now[f"said_right_{SURE}"] >= SURE * now[f"said_{SURE}"] > 0.0, said
    assert {one.workload: one.contradictions for one in outcomes if one.contradictions} == {}
    assert {one.workload: one.unkept for one in outcomes if one.unkept} == {}, "a text that is no template of ours is lost in a recording"


@pytest.mark.soak
def test_the_leaves_hold_all_the_loss_and_causes_most_of_it(learned: list[tuple[list[Outcome], Audit]]) -> None:
    assert [fault for _, audit in learned for fault in audit.faults] == []
    unbooked = [share for _, audit in learned for share in audit.unbooked]
    assert len(unbooked) > 1000
    assert min(unbooked) > -1e-6, "no cause holds what another one holds"
    assert sum(unbooked) / len(unbooked) <= MOST_UNBOOKED


def test_each_workload_and_each_kept_recording_is_in_one_half() -> None:
    drawn = Counter(name for one in split.drawn()["round"] for half in split.HALVES for name in one[half])
    kept = {path.stem for path in accuracy.DEVICE.glob("*.gputop")}
    assert set(drawn.values()) == {1}
    assert kept == {*KEPT, "story"}
    assert kept <= set(drawn) <= {*kept, *scenario.names()}
    assert {split.half_of(name) for name in scenario.names()} == set(split.HALVES)
    assert all(split.half_of(name) == split.half_of(f"unprobed-{name}") for name in kept if f"unprobed-{name}" in kept)


def test_a_workload_that_came_later_keeps_its_half() -> None:
    assert [split.half_of(f"new-{i}") for i in range(4)] == ["hold-out", "hold-out", "hold-out", "learn"]


def test_what_the_repository_holds_is_small_and_belongs_to_workloads() -> None:
    files = list(accuracy.DATA.glob("*"))
    assert {path.suffix for path in files} <= {".xz"}
    assert {path.stem for path in files} <= set(scenario.names())
    assert sum(path.stat().st_size for path in files) <= accuracy.MOST_BYTES


def test_a_run_has_the_label_that_its_workload_has_today() -> None:
    """Record it anew where it has not: `make accuracy ARGS="--record --only NAME"`."""
    require("torch")
    for path in accuracy.DATA.glob("*.xz"):
        assert runs.load(path).label == scenario.load(path.stem).label, path.stem


def test_each_cause_has_a_workload() -> None:
    """But those that only hardware has (lost GPUs, two sockets, links that err), one that takes minutes, and one that stands for all that
    no rule knows."""
    require("torch")
    labels = [scenario.load(name).label for name in scenario.names()]
    without = {*OWN_CAUSES} - {label.cause for label in labels} - {label.beside for label in labels}
    without_one = {GPU_LOST, "numa-remote", "link-errors", "slower-than-usual", "unexplained"}
    assert without == without_one, "write one that really has the problem: CONTRIBUTING.md, A workload"


@pytest.mark.parametrize(("name", "size_bytes", "ranks"), [("slow-wire-gradients", 2 << 20, 2), ("healthy-gloo-ranks", 512 << 10, 3)])
def test_what_gloo_sends_in_a_step_is_seen_from_outside(name: str, size_bytes: int, ranks: int) -> None:
    """A ring sends each rank's part round twice, but for its own: 2 (n - 1) / n of what is summed."""
    following, found = Following(), list[float]()
    for _ in following.through(runs.load(accuracy.DATA / f"{name}.xz").items("eBPF")):
        facts = following.engine.facts
        for one in following.engine.standing.values() if facts is not None and facts.seconds >= 2.0 else ():
            used, step = facts.wires.get(one.job.trainer.pid), one.job.step
            if used is not None and step is not None and step.per_s:
                found.append(used.sent_bytes_per_s / step.per_s)
    assert median(found) == pytest.approx(2 * (ranks - 1) / ranks * size_bytes, rel=0.1)


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


def test_victims_are_of_the_workload_and_not_to_blame() -> None:
    assert RIGHT.victims_right is True
    assert replace(RIGHT, victims=set()).victims_right is False
    assert replace(RIGHT, victims={5, 9}).victims_right is False
    assert replace(RIGHT, family={5, 7}, victims={5, 7}).victims_right is False
    assert CALM.victims_right is None


def test_a_verdict_counts_in_the_bin_of_its_confidence() -> None:
    wrong = [replace(WRONG, confidence=pct / 100) for pct in (70, 90)]
    said = [RIGHT, replace(RIGHT, confidence=0.5), *wrong, replace(RIGHT, confidence=0.95)]
    counts = accuracy.figures(said)["/proc"]
    assert [(counts[f"said_{name}"], counts[f"said_right_{name}"]) for name in SAID] == [(1, 1), (1, 0), (2, 1)]


def test_only_a_job_that_is_not_slowed_can_have_a_false_alarm() -> None:
    idle = replace(CALM, label=Label("idle", "pause"), loud=1)
    assert [one.false_alarm for one in (RIGHT, CALM, replace(CALM, loud=2), idle)] == [None, False, True, True]


def test_shares_of_traces_stand_beside_gputops_own_where_a_recording_has_any() -> None:
    checks = [TraceCheck("loader", 57.0, 55.0, True), TraceCheck("sync", 30.0, 5.0, False), TraceCheck("copy", 9.0, None, None)]
    [*_, title] = accuracy.tables([RIGHT, replace(RIGHT, checks=checks)])
    rows = title.splitlines()
    assert "1 of 2 shares agree" in rows[0]
    assert [row.split("|")[2].strip() for row in rows[-2:]] == ["loader", "sync"]
    assert "traces" not in accuracy.tables([RIGHT])[-1]


def test_a_lost_share_is_compared_with_the_gpus_own_log() -> None:
    logged = [replace(RIGHT, true_lost=0.6, lost=lost) for lost in (0.52, 0.75, None)]
    assert [one.lost_right for one in (*logged, RIGHT)] == [True, False, False, None]
    for symptom in ("idle", "straggler"):
        assert replace(logged[0], label=Label(symptom, "none")).lost_right is None


def test_a_path_leads_to_the_culprit_if_a_step_is_or_waits_for_one() -> None:
    by_agent = PathStep(7, "agent", 1.0, "runs", "", True)
    behind_agent = PathStep(5, "worker 0", 1.0, "runnable", "agent (7)", True)
    other = PathStep(8, "agent", 1.0, "runnable", "agent (77)", True)
    assert [replace(RIGHT, path=path).end_right for path in ((by_agent,), (behind_agent,), (other,), ())] == [True, True, False, False]
    assert CALM.end_right is None


def test_a_first_fix_is_sensible_for_the_right_cause_and_harms_where_it_changes_the_innocent() -> None:
    own, other = (replace(RIGHT, fix=Fix("End it", "kill 7"), fix_pids=frozenset({pid})) for pid in (7, 8))
    assert [(one.advice_right, one.advice_harms) for one in (own, other)] == [(True, False), (False, True)]
    assert (RIGHT.advice_right, RIGHT.advice_harms) == (False, None), "nothing is advised"
    assert replace(own, cause="slow-transform").advice_right is False
    assert replace(own, contradictions=["more of them, and fewer"]).advice_right is False
    unasked = replace(CALM, fix=own.fix)
    assert (CALM.advice_right, CALM.advice_harms, unasked.advice_harms) == (None, None, True)


def test_what_is_said_beside_the_cause_is_counted_by_half() -> None:
    sure = replace(RIGHT, confidence=0.95, true_lost=0.6, lost=0.6)
    rows = accuracy.tables([sure, WRONG, replace(sure, workload="dead-worker", true_lost=None), CALM])[-1].splitlines()
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in rows[4:]] == [
        ["learn, /proc", "–", "–", "1 of 1", "1 of 1", "0 of 2", "0 of 1", "0 of 2", "–"],
        ["hold-out, /proc", "–", "–", "1 of 1", "–", "0 of 1", "–", "0 of 1", "–"],
    ]


def test_tables_count_by_half_mode_and_cause() -> None:
    outcomes = [RIGHT, WRONG, CALM, replace(CALM, loud=2), replace(WRONG, workload="dead-worker", mode="eBPF")]
    learn, hold_out, both, _ = accuracy.tables(outcomes)
    assert learn.startswith("## learn, /proc: 3 of 4 right (75 %)")
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in learn.splitlines()[4:]] == [
        ["cpu-contention", "1", "1", "", "1/2", "1/2", "never", "never"],
        ["healthy", "2", "0", "1/2", "", "", "0.5", "0.5"],
        ["**all**", "3", "1", "1/2", "1/2", "1/2", "1.5", "never"],
    ]
    assert hold_out.startswith("## hold-out, eBPF: 0 of 1 right (0 %)")
    assert both.startswith("## both halves: 3 of 5 right (60 %)")


def test_what_was_said_of_the_half_hold_out_is_not_listed() -> None:
    outcomes = [WRONG, replace(WRONG, workload="dead-worker")]
    assert accuracy.wrong(outcomes) == ["affinity, /proc, input-bound / cpu-contention: said input-bound / slow-transform"]
    assert len(accuracy.wrong(outcomes, reveal=True)) == 2


def run_of(name: str, others_cpus: float = 0.1, ebpf: str = "ok") -> runs.Run:
    """A run without processes."""
    states = [SourceState("ebpf", "partial"), SourceState("ebpf", ebpf)]
    frames = [Frame(seq, seq, key=not seq, sources=[state]) for seq, state in enumerate(states)]
    return runs.Run(name, "idle", "none", {}, [], [], {"eBPF": (Header(), columns.ColumnEncoder().encode(frames))}, others_cpus=others_cpus)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Folders for what is recorded and packed, and a host that is always calm."""
    data, into = tmp_path / "data", tmp_path / "into"
    data.mkdir()
    monkeypatch.setattr(accuracy, "DATA", data)
    monkeypatch.setattr(accuracy, "ROOT", tmp_path)
    monkeypatch.setattr(accuracy, "RECORDED", into)
    monkeypatch.setattr(calm, "wait", lambda *_: True)
    monkeypatch.setattr(runs, "neutral", lambda run: run)
    return argparse.Namespace(only=["disk-io", "pause", "hung-worker"], into=into, record=True, pack=False, seconds=9.0, others=0.6)


def test_recording_goes_on_where_it_was_cut_short(folders: argparse.Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    require("torch")
    asked: list[str] = []

    def record(name: str, *_: object) -> runs.Run:
        asked.append(name)
        if asked == ["disk-io", "pause"]:
            raise KeyboardInterrupt
        return run_of(name)

    monkeypatch.setattr(runs, "record", record)
    with pytest.raises(KeyboardInterrupt):
        accuracy._record(folders)
    assert not list(accuracy.DATA.iterdir())
    assert accuracy._record(folders) == 0
    assert asked == ["disk-io", "pause", "pause", "hung-worker"]
    assert sorted(path.name for path in accuracy.DATA.iterdir()) == ["disk-io.xz", "hung-worker.xz", "pause.xz"]
    assert runs.load(accuracy.DATA / "pause.xz").definition == runs.definition("pause", 9.0)
    assert not list(folders.into.iterdir())


def test_a_disturbed_run_is_repeated_and_nothing_is_packed_while_one_is_missing(
    folders: argparse.Namespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require("torch")
    asked: list[str] = []

    def record(name: str, *_: object) -> runs.Run:
        asked.append(name)
        if asked == ["disk-io", "disk-io"]:
            raise runner.NotReady("no worker came")
        disturbed, unprobed = name == "pause" or len(asked) == 1, asked[-2:] == ["pause", "hung-worker"]
        return run_of(name, 1.5 if disturbed else 0.1, "partial" if unprobed else "ok")

    monkeypatch.setattr(runs, "record", record)
    assert accuracy._record(folders) == 1
    assert asked == [*["disk-io"] * 3, *["pause"] * 3, *["hung-worker"] * 2]
    said = capsys.readouterr().err
    assert "pause left out: others took 1.5 CPUs" in said
    assert "1 left out: run it again, or --pack without them: pause" in said
    assert not list(accuracy.DATA.iterdir())
    folders.record, folders.pack = False, True
    assert accuracy._record(folders) == 0
    assert {path.stem for path in accuracy.DATA.iterdir()} == {"disk-io", "hung-worker"}


def test_a_changed_workload_has_another_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    before = runs.definition("straggler-gpu", 9.0)
    assert before == runs.definition("straggler-gpu", 9.0) != runs.definition("straggler-gpu", 6.0)
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path: read(path) + ("# " if path.name == "straggler_rank.py" else ""))
    assert runs.definition("straggler-gpu", 9.0) != before  # which imports it
