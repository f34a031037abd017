"""A trainer that goes on as a program in C is ready, disturbed and logged like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.require import require
from tests.wait import PATIENCE_S, until
from tests.workloads import runner

_SLOW_FRAME_S = 0.13
"""CPU time of a frame in the slow part of `slow-transform-av1-decoder`; a step takes 0.04 s before."""
_IN_THE_PIPE, _STEPS = 4, 8


def test_steps_of_a_native_trainer_are_logged_and_as_far_apart_as_its_decoder_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    require("torch", "cc")
    monkeypatch.setenv("GPUTOP_STEP_LOG", "1")
    with runner.started("slow-transform-av1-decoder", PATIENCE_S) as running:
        assert Path(f"/proc/{running.trainer_pids[0]}/comm").read_text() == "upscale\n"
        assert len(running.named("ffmpeg")) == 1
        log = running.folder / "steps-0"
        before = log.read_text().splitlines()
        assert len(before) >= 5
        with running.disturbed():
            until(lambda: len(log.read_text().splitlines()) >= len(before) + _IN_THE_PIPE + _STEPS)
            at = [float(line) for line in log.read_text().splitlines()][-_STEPS:]
    assert (at[-1] - at[0]) / (_STEPS - 1) > 0.6 * _SLOW_FRAME_S


def test_a_pipe_that_already_has_the_number_which_the_program_reads_survives_its_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a log of steps the pipe is the first file that the trainer opens."""
    require("torch", "cc")
    monkeypatch.delenv("GPUTOP_STEP_LOG", raising=False)
    with runner.started("idle-live-camera", PATIENCE_S) as running:
        assert Path(f"/proc/{running.trainer_pids[0]}/comm").read_text() == "deepstream-app\n"
        assert Path(f"/proc/{running.trainer_pids[0]}/fd/3").readlink().name.startswith("pipe:")
