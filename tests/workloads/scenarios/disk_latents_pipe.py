"""Diffusion on latents made beforehand: workers stream packed shards, each through a `gzip -dc`, from a volume that is slow all along."""

from __future__ import annotations

import os
import random
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tests.workloads import slow_disk
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_RECORD_BYTES = 2 * (4 * 64 * 64 + 77 * 768)  # a latent and its prompt
_SHARDS, _RECORDS, _PACKED_AT_ONCE = 9, 128, 32
_BATCH, _SHUFFLED = 16, 48
_READ_BYTES_PER_S = 18 << 20


class Latents(IterableDataset[torch.Tensor]):
    """This worker's shards in any order and for ever, through a shuffle buffer; a shard has left the page cache when it comes again."""

    def __init__(self, folder: Path) -> None:
        self.shards = sorted(folder.glob("latents-*.gz"))

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker, buffer = get_worker_info(), list[torch.Tensor]()
        assert worker is not None
        for record in self.records(self.shards[worker.id :: worker.num_workers]):
            buffer.append(torch.frombuffer(bytearray(record), dtype=torch.float16))
            if len(buffer) > _SHUFFLED:
                yield buffer.pop(random.randrange(len(buffer)))

    def records(self, shards: list[Path]) -> Iterator[bytes]:
        """Record after record."""
        while True:
            shard = random.choice(shards)
            with subprocess.Popen(["gzip", "-dc", str(shard)], stdout=subprocess.PIPE) as gzip:
                yield from iter(lambda pipe=gzip.stdout: pipe.read(_RECORD_BYTES), b"")  # type: ignore[misc]
            with slow_disk.opened(shard, os.O_RDONLY) as file:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)  # the data set is larger than memory


def train(trainer: Trainer) -> None:
    latents = Latents(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]))
    step = trainer.compute(40, kernels=5, bytes_in=_BATCH * _RECORD_BYTES)
    trainer.fit(loader(latents, workers=3, start="spawn", batch=_BATCH, prefetch_factor=3), step)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """The shards, on disk and out of the page cache, and the volume's limit, which the trainer is born with."""
    packer = zlib.compressobj(1, wbits=31)
    packed = packer.compress(os.urandom(_PACKED_AT_ONCE * _RECORD_BYTES)) + packer.flush()
    for number in range(_SHARDS):
        slow_disk.put(running.folder / f"latents-{number:02}.gz", packed, _RECORDS // _PACKED_AT_ONCE)
    with slow_disk.from_birth(running, _READ_BYTES_PER_S):
        yield


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, prepare=prepare, needs=slow_disk.missing)
