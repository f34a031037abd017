"""Traces that are taken by themselves: of which incident, how often, of whom, and never beside others."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gputop.findings.verdict import Incident
from gputop.model.trace import TracedJob
from gputop.stream import autotrace, traced
from gputop.stream.autotrace import GAP_NS, LASTS_NS, AutoTrace, AutoTracing
from gputop.system.errors import UserError
from gputop.traces.environment import PREFIX, make_folder
from gputop.traces.taking import Taken, Wanted
from tests.traces.made import kineto, training
from tests.traces.test_taking import job
from tests.unit.diagnosis.causes_gpu import sync_storm
from tests.unit.diagnosis.scene import Scene

NOW_NS = 1000 * 10**9


def incident(cause: str = "sync-storm", pid: int | None = 100, lasts_ns: int = LASTS_NS, lost_s: float = 9.0, **fields: Any) -> Incident:
    plain: dict[str, Any] = {
        "id": 1, "start_ns": NOW_NS - lasts_ns, "end_ns": None, "symptom": "wait-heavy", "cause": cause, "severity": "high",
        "confidence": 1.0, "trainer_pid": pid, "gpu": 0, "lost_s": lost_s, "headline": "", "detail": "", "victims": [],
        "culprits": [], "evidence": [], "fixes": [],
    }  # fmt: skip
    return Incident(**plain | fields)


@pytest.mark.parametrize(("one", "is_due"), [
    (incident(), True), (incident("small-kernels"), True), (incident("unexplained"), True),
    (incident("unexplained", symptom="input-bound"), False),  # it waits for data, of which torch knows no more
    (incident("cpu-contention"), False), (incident(lasts_ns=LASTS_NS - 1), False), (incident(end_ns=NOW_NS), False),
    (incident(pid=None), False),
])  # fmt: skip
def test_a_trace_is_due_once_trouble_on_the_gpus_side_lasts(one: Incident, is_due: bool) -> None:
    assert (AutoTrace().due([one], NOW_NS) is one) == is_due


def test_each_job_has_one_an_hour_and_the_dearest_comes_first() -> None:
    policy, ones = AutoTrace(), [incident(pid=1, lost_s=3.0), incident(pid=2, lost_s=30.0)]
    assert policy.due(ones, NOW_NS) is ones[1]
    policy.taken([2, 3], NOW_NS)
    assert policy.due(ones, NOW_NS) is ones[0]
    policy.taken([1], NOW_NS + 1)
    assert policy.due([*ones, incident(pid=3)], NOW_NS + GAP_NS - 1) is None
    assert policy.due(ones, NOW_NS + GAP_NS) is ones[1]
    policy.taken([2], NOW_NS + GAP_NS)
    policy.put_off([2])
    assert policy.due(ones, NOW_NS + GAP_NS) is ones[1]


class Taking:
    """A stormy training of half a minute, and what is asked of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, askable: Callable[[list[int]], list[int]] = list) -> None:
        self.asked: list[tuple[list[int], Wanted]] = []
        self.delivered: list[TracedJob] = []
        self.folder = folder
        self.scene: Scene = sync_storm().play(LASTS_NS / 1e9 + 8, 0.5)
        assert self.scene.engine.verdict.cause == "sync-storm"
        monkeypatch.setattr(autotrace, "can_be_asked", askable)
        monkeypatch.setattr(traced, "take", self._take)
        self.tracing = AutoTracing(self.delivered.extend, lambda: str(folder))

    def _take(self, pids: list[int], wanted: Wanted, name_of: Callable[[int], str], _notify: object) -> list[Taken]:
        self.asked.append((list(pids), wanted))
        for pid in pids:
            Path(name_of(pid)).write_text(kineto(training()))
        return [Taken(pid, name_of(pid), 1.0) for pid in pids]

    def step(self) -> bool:
        """One look; waits until what it began has ended."""
        began = self.tracing.step(self.scene.board, self.scene.engine)
        if self.tracing._taking is not None:
            self.tracing._taking.join(60.0)
            assert not self.tracing._taking.is_alive()
        return began


def test_a_trace_is_taken_once_and_says_who_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taking = Taking(tmp_path, monkeypatch)
    assert [taking.step() for _ in range(3)] == [True, False, False]
    [(pids, wanted)] = taking.asked
    assert (pids, wanted.with_stack) == ([100], True)  # a storm's line is found by stacks alone
    [job] = taking.delivered
    assert (job.by, job.pid) == ("gputop", 100)
    assert job.reading is not None
    assert os.path.dirname(job.reading.file) == str(tmp_path)
    assert {one.part for one in job.checks} >= {"loader", "sync"}
    assert all(one.gputop_pct is not None for one in job.checks)


def test_nobody_is_asked_who_cannot_be_and_nobody_beside_another_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taking = Taking(tmp_path, monkeypatch, askable=lambda _: [])
    assert taking.step()
    assert (taking.asked, taking.delivered, taking.step()) == ([], [], False)
    other = Taking(tmp_path, monkeypatch)
    with traced.alone():
        assert other.step()
    assert other.asked == []
    assert other.step()  # it was put off, and comes now
    assert len(other.asked) == len(other.delivered) == 1


def test_who_waits_to_be_asked_can_be_and_no_other(tmp_path: Path) -> None:
    folder = make_folder(f"/tmp/gputop-test-{os.getpid()}-{uuid.uuid4().hex[:6]}")
    try:
        with job(folder, str(tmp_path / "none")) as one:
            assert autotrace.can_be_asked([os.getpid(), one.pid, 1 << 22]) == [one.pid]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taking = Taking(tmp_path, monkeypatch)
    monkeypatch.setattr(autotrace, "MOST_BYTES", 1)
    assert taking.step()
    taking.tracing._policy.put_off([100])
    assert not taking.step()


def test_where_nothing_is_recorded_the_newest_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotrace.config, "state_folder", lambda: str(tmp_path))
    folder = Path(autotrace.own_folder())
    assert folder.stat().st_mode & 0o777 == 0o700
    for i in range(12):
        (folder / f"{PREFIX}{i}-101010.json").write_text("")
        os.utime(folder / f"{PREFIX}{i}-101010.json", (i, i))
    (folder / "mine.txt").write_text("")
    assert Path(autotrace.own_folder()) == folder
    left = {path.name for path in folder.iterdir()}
    assert left == {"mine.txt", *(f"{PREFIX}{i}-101010.json" for i in range(12 - autotrace.MOST_FILES + 1, 12))}
    monkeypatch.setattr(autotrace.config, "state_folder", lambda: str(folder / "mine.txt"))
    with pytest.raises(UserError):
        autotrace.own_folder()
