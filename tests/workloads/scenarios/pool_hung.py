"""Somebody stopped the processes of a `multiprocessing.Pool` that loads."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import handmade
from tests.workloads.data import Images
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running, descendants
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(handmade.pooled(Images(cpu_ms=1).__getitem__, workers=2), trainer.compute(30))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    pool = descendants(running.trainer_pids)
    for worker in pool:
        os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        for worker in pool:
            os.kill(worker, signal.SIGCONT)


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb)
