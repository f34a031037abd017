"""Grain-like spawned workers with batches in shared memory, put in order by the trainer: the shard of one of four is on a slow disk."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import RawArray
from pathlib import Path

from tests.workloads import cgroup, slow_disk
from tests.workloads.data import decode
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_WORKERS, _SLOTS = 4, 3
_BATCH, _SAMPLE_BYTES = 8, 128 << 10
_BATCH_BYTES = _BATCH * _SAMPLE_BYTES
_SHARD_BYTES = slow_disk.FILE_BYTES // _WORKERS
_SLOW_BYTES_PER_S = 5 << 20


def work(worker: int, path: Path, memory: object, trainer: Connection) -> None:
    """Every n-th batch, from this worker's shard into its next slot once that is free."""
    batch = worker
    with slow_disk.opened(path, os.O_RDONLY) as file, memoryview(memory).cast("B") as slots:  # type: ignore[arg-type]
        while True:
            trainer.recv()
            for sample in range(_BATCH):
                at = worker * _SHARD_BYTES + (batch * _BATCH + sample) * _SAMPLE_BYTES % _SHARD_BYTES
                to = batch // _WORKERS % _SLOTS * _BATCH_BYTES + sample * _SAMPLE_BYTES
                slots[to : to + _SAMPLE_BYTES] = os.pread(file, _SAMPLE_BYTES, at)
                os.posix_fadvise(file, at, _SAMPLE_BYTES, os.POSIX_FADV_DONTNEED)  # the data set is larger than memory
                decode(0.3)
            trainer.send(batch)
            batch += _WORKERS


def batches(folder: Path) -> Iterator[bytes]:
    """In order: a batch that comes too early stays in its slot."""
    spawn = multiprocessing.get_context("spawn")
    memories = [RawArray("B", _SLOTS * _BATCH_BYTES) for _ in range(_WORKERS)]
    pipes = [spawn.Pipe() for _ in range(_WORKERS)]
    workers = [own for own, _ in pipes]
    for worker, (own, other) in enumerate(pipes):
        process = spawn.Process(target=work, args=(worker, folder / "samples", memories[worker], other), daemon=True)
        process.start()
        (folder / f"worker-{worker}").write_text(str(process.pid))
        for slot in range(_SLOTS):
            own.send(slot)
    batch, early = 0, set[int]()
    while True:
        while batch not in early:
            for ready in wait(workers):
                assert isinstance(ready, Connection)
                early.add(ready.recv())
        early.remove(batch)
        worker, slot = batch % _WORKERS, batch // _WORKERS % _SLOTS
        yield bytes(memoryview(memories[worker])[slot * _BATCH_BYTES : (slot + 1) * _BATCH_BYTES])
        workers[worker].send(slot)
        batch += 1


def train(trainer: Trainer) -> None:
    trainer.fit(batches(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])), trainer.compute(25))


@contextmanager
def throttle(running: Running) -> Iterator[None]:
    """The disk of the last worker's shard becomes slow."""
    with cgroup.group("blkio", running.name) as group:
        cgroup.limit_reads(group, cgroup.device_of(running.folder / "samples"), _SLOW_BYTES_PER_S)
        cgroup.add(group, [int((running.folder / f"worker-{_WORKERS - 1}").read_text())])
        yield


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, throttle, prepare=slow_disk.file, needs=slow_disk.missing)
