"""Home-made workers stream tars, each through a `cat` of its own, from a volume that is slow all along; batches come in bunches."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue
from pathlib import Path

from tests.workloads import slow_disk
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_SHARDS, _SHARD_BYTES, _RECORD_BYTES, _BATCH = 8, 12 << 20, 60_000, 12
_READ_BYTES_PER_S = 11 << 20


def stream(shards: list[Path], ready: Queue[int]) -> None:
    """Batch after batch out of the tars, for ever; one has left the page cache when it comes again."""
    while True:
        for shard in shards:
            with subprocess.Popen(["cat", str(shard)], stdout=subprocess.PIPE) as cat:
                assert cat.stdout is not None
                while batch := cat.stdout.read(_BATCH * _RECORD_BYTES):
                    ready.put(len(batch))
            with slow_disk.opened(shard, os.O_RDONLY) as file:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def train(trainer: Trainer) -> None:
    shards, fork = sorted(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]).glob("*.tar")), multiprocessing.get_context("fork")
    ready: Queue[int] = fork.Queue(6)
    for number in range(2):
        fork.Process(target=stream, args=(shards[number::2], ready), daemon=True).start()
    trainer.fit(iter(ready.get, None), trainer.compute(32, kernels=7, bytes_in=_BATCH * _RECORD_BYTES))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """The tars, out of the page cache, and the volume's limit, which the trainer is born with."""
    content = os.urandom(_SHARD_BYTES)
    for number in range(_SHARDS):
        slow_disk.put(running.folder / f"{number:02}.tar", content)
    with slow_disk.from_birth(running, _READ_BYTES_PER_S):
        yield


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, prepare=prepare, needs=slow_disk.missing)
