"""Two things begin at once: the volume with the replay segments becomes slow, and an agent starts to collect metrics.

Forked readers read segments that are larger than memory, so each read is a miss, and send them through pipes. The volume gives 10
MB/s from the onset on, a quarter of what the GPU needs. The agent takes a third of a CPU, at low priority, on a machine whose CPUs
have nothing else to do: it is innocent, and the disk is the cause.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tests.workloads import cgroup, slow_disk
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running, descendants
from tests.workloads.scenario import Label, Scenario

_READERS, _SEGMENT_BYTES, _SEGMENTS, _GPU_MS, _BYTES_PER_S = 2, 256 << 10, 4, 25, 10 << 20
_AGENT = """
import time
while True:
    until = time.monotonic() + 0.03
    while time.monotonic() < until: sorted(range(2000), key=lambda i: -i)
    time.sleep(0.06)
"""


def _read(path: Path, reader: int, out: Connection) -> None:
    file, number = os.open(path, os.O_RDONLY), reader
    while True:
        batch = b""
        for _ in range(_SEGMENTS):
            at = number * 7919 % (slow_disk.FILE_BYTES // _SEGMENT_BYTES) * _SEGMENT_BYTES
            batch += os.pread(file, _SEGMENT_BYTES, at)
            os.posix_fadvise(file, at, _SEGMENT_BYTES, os.POSIX_FADV_DONTNEED)
            number += _READERS
        out.send_bytes(batch)


def _batches(path: Path) -> Iterator[object]:
    fork, pipes = get_context("fork"), []
    for reader in range(_READERS):
        end, out = fork.Pipe(duplex=False)
        fork.Process(target=_read, args=(path, reader, out), daemon=True).start()
        pipes.append(end)
    while True:
        for pipe in wait(pipes):
            assert isinstance(pipe, Connection)
            yield pipe.recv_bytes()


def train(trainer: Trainer) -> None:
    trainer.fit(_batches(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples"), trainer.compute(_GPU_MS))


@contextmanager
def slow_volume_and_agent(running: Running) -> Iterator[None]:
    with cgroup.group("blkio", running.name) as group, running.child(["nice", "-n", "10", sys.executable, "-c", _AGENT]):
        cgroup.limit_reads(group, cgroup.device_of(running.folder / "samples"), _BYTES_PER_S)
        cgroup.add(group, [*running.trainer_pids, *descendants(running.trainer_pids)])
        yield


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, slow_volume_and_agent, slow_disk.file, needs=slow_disk.missing)
