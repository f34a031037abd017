"""A worker waits for an answer that never comes, from a peer that is gone, without a timeout."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import get_worker_info

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario


class Remote(Images):
    """Once the flag is up, worker 0 reads from a silent socket."""

    def __getitem__(self, index: int) -> torch.Tensor:
        worker = get_worker_info()
        if worker is not None and worker.id == 0 and (Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "silence").exists():
            ours, _theirs = socket.socketpair()
            ours.recv(1)
        return super().__getitem__(index)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Remote(1), workers=4), trainer.compute(30))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "silence").touch()
    yield


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb)
