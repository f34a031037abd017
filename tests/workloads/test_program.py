"""Programs in Python without torch are ready, disturbed and logged like any trainer; what they wait for is what their scenario says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.require import require
from tests.wait import PATIENCE_S, until
from tests.workloads import runner

_SLOW_STEP_S = 0.095
"""CPU time of a step's tokens in the slow part of `output-blocked-detokenizer`; a step takes 0.027 s before."""
_ON_THE_WAY, _STEPS = 8, 6


@pytest.fixture(autouse=True)
def _logged(monkeypatch: pytest.MonkeyPatch) -> None:
    require("torch")
    monkeypatch.setenv("GPUTOP_STEP_LOG", "1")


def test_steps_go_at_the_pace_of_the_reader_that_a_program_waits_for() -> None:
    with runner.started("output-blocked-detokenizer", PATIENCE_S) as running:
        log = running.folder / "steps-0"
        before = len(log.read_text().splitlines())
        with running.disturbed():
            assert list(running.culprits.values()) == ["sglang::detok"]
            until(lambda: len(log.read_text().splitlines()) >= before + _ON_THE_WAY + _STEPS)
            at = [float(line) for line in log.read_text().splitlines()][-_STEPS:]
    assert (at[-1] - at[0]) / (_STEPS - 1) > 0.7 * _SLOW_STEP_S


def test_a_program_has_left_torch_behind_and_waits_for_jobs() -> None:
    with runner.started("idle-render-queue", PATIENCE_S) as running:
        [pid] = running.trainer_pids
        assert Path(f"/proc/{pid}/comm").read_text() == "celery-worker\n"
        assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
        log = running.folder / "steps-0"
        steps = len(log.read_text().splitlines())
        until(lambda: len(log.read_text().splitlines()) >= steps + 8)
