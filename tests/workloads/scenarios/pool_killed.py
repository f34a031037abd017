"""A `multiprocessing.Pool` whose process is killed (as for lack of memory): a new one takes its place, its batch never comes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from tests.workloads import handmade
from tests.workloads.data import decode
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario


def sample(_index: int) -> torch.Tensor:
    """Once the flag is up, whoever sees it first is killed in the middle of a batch."""
    with suppress(FileNotFoundError):
        (Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "kill").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return decode(1)


def train(trainer: Trainer) -> None:
    trainer.fit(handmade.pooled(sample, workers=3), trainer.compute(30))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "kill").touch()
    yield


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb)
