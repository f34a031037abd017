"""Each worker of an IterableDataset reads its shard over and over; one shard is replaced by a named pipe that nobody writes.

An export job makes its shard anew through a pipe and dies before it opens it. The worker whose shard this is opens the path at its next
round and stays in `open` for ever, without an error and without a timeout. The DataLoader keeps the order of its workers, so
the main thread waits for this one although the others have full queues, and training stands. A worker that hangs is the cause.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tests.workloads.data import decode
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_WORKERS, _RECORDS, _RECORD_BYTES = 3, 48, 20_000


class Shards(IterableDataset[torch.Tensor]):
    """The records of one shard for each worker, in an endless round."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        assert info is not None
        path = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / f"shard-{info.id}.rec"
        while True:
            with path.open("rb") as shard:
                while shard.read(_RECORD_BYTES):
                    yield decode(0.5)


def train(trainer: Trainer) -> None:
    batches = DataLoader(
        Shards(), batch_size=8, num_workers=_WORKERS, persistent_workers=True, multiprocessing_context="forkserver"
    )  # fmt: skip
    trainer.fit(batches, trainer.compute(25))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    for number in range(_WORKERS):
        (running.folder / f"shard-{number}.rec").write_bytes(os.urandom(_RECORD_BYTES) * _RECORDS)
    yield


@contextmanager
def replaced(running: Running) -> Iterator[None]:
    """The pipe takes the place of the second worker's shard; who has the old file open reads it to its end."""
    pipe = running.folder / "shard.new"
    os.mkfifo(pipe)
    pipe.rename(running.folder / "shard-1.rec")
    yield


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, replaced, prepare)
