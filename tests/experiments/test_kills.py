"""A hundred times gputop, its guardian or both are killed at a random moment of an experiment: all is put back."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from tests.experiments.processes import ROOT
from tests.wait import PATIENCE_S

ROUNDS = 40  # more of them: `make kills ARGS=1000`


@pytest.mark.soak
@pytest.mark.flaky(reruns=0)
def test_whoever_is_killed_all_is_put_back() -> None:
    """The seed stands in what it prints. A round that failed is never tried again."""
    command = [sys.executable, "-m", "tests.experiments.kills", str(ROUNDS), str(random.randrange(1 << 30))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S + 20.0 * ROUNDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
