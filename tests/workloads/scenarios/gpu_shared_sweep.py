"""A colleague's training starts on the same GPU, which has no work left to give: both make half of their steps from then on.

Truth: each waits for kernels of the other. It has one GPU, on which time slices go round, and a worker with batches to spare.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_OTHER = Path(__file__).parents[1] / "plain_train.py"


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=1), workers=1), trainer.compute(60, kernels=30))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    load = {"--workers": 1, "--cpu-ms": 1, "--gpu-ms": 60, "--seconds": running.seconds + 60}
    command = [sys.executable, str(_OTHER), *(str(word) for flag in load.items() for word in flag)]
    with running.child(command, stdout=-1) as other:
        assert other.stdout is not None
        other.stdout.readline()  # it trains steadily
        running.blame(other.pid, "plain_train.py")
        yield
        running.account()


SCENARIO = Scenario(Label("wait-heavy", "gpu-shared", frozenset({"plain_train.py"})), train, disturb)
