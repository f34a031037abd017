"""Four forked workers read from one ZIP archive that was opened before the fork, so they share its file position.

Without a lock they would read each other's bytes; the usual remedy is a `multiprocessing.Lock` around `ZipFile.read`, which
inflates as well. Nearly all of a sample's work is therefore done by one worker at a time, whatever their number: three of four
sleep on the semaphore, half of the machine idles, and the GPU waits. An archive handle for each worker needs no lock and is
twice as quick: waiting for the lock is the cause.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_MEMBERS, _MEMBER_BYTES = 14, 4_000_000


class Archive(Dataset[torch.Tensor]):
    """Members of the archive, one reader at a time."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path.open("rb", buffering=0))
        self._names = self._zip.namelist()
        self._lock = multiprocessing.Lock()

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        with self._lock:
            raw = self._zip.read(self._names[index % len(self._names)])
        return torch.frombuffer(bytearray(raw[:50_000]), dtype=torch.uint8).float().div_(255)


def train(trainer: Trainer) -> None:
    archive = Archive(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "images.zip")
    trainer.fit(loader(archive, workers=4, start="fork"), trainer.compute(20))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """An archive whose members inflate slowly: short matches, many literals."""
    pieces = [random.Random(seed).randbytes(48) for seed in range(400)]
    with zipfile.ZipFile(running.folder / "images.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        raw = b"".join(random.Random(1).choices(pieces, k=_MEMBER_BYTES // 48))
        for number in range(_MEMBERS):
            archive.writestr(f"{number:05}.bmp", raw)
    yield


SCENARIO = Scenario(Label("input-bound", "lock-contention"), train, prepare=prepare)
