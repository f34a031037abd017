"""The callbacks in the real Lightning and the real Trainer of Hugging Face: what their loggers get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.require import require

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def logged(starving: str) -> dict[str, Any]:
    """What `tests/api/trainings.py` prints: one process, for torch takes seconds to import."""
    require("torch", "trainers")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "tests.api.trainings", starving]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("trainer", ["lightning", "hugging"])
@pytest.mark.soak
def test_loggers_get_the_numbers(logged: dict[str, Any], trainer: str) -> None:
    numbers = logged[trainer]
    assert 0.1 < numbers["gputop/lost_share"] < 0.8
    assert numbers["gputop/lost/cpu-contention"] > 0.6 * numbers["gputop/lost_share"]
    assert 0.1 < numbers["gputop/lost_share_now"] < 1.0


@pytest.mark.soak
def test_the_verdict_is_logged_in_words_once(logged: dict[str, Any]) -> None:
    assert [text.split(":")[0] for text in logged["texts"]] == ["input-bound · cpu-contention"]
    assert logged["history"][0]["gputop/verdict"].startswith("input-bound · cpu-contention: ")
    levels = [line.split()[0] for line in logged["log"]]
    assert levels == ["WARNING", "INFO", "WARNING", "INFO"], "the verdict and the whole, of each training"
