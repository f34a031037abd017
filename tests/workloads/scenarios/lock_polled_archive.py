"""Audio clips in one zip, which `filelock` (as Hugging Face libraries do it) gives to one worker at a time; the others poll for it."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from filelock import FileLock
from torch.utils.data import IterableDataset, get_worker_info

from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_CLIPS, _CLIP_BYTES = 96, 256 << 10
_FRAME = 400


class Clips(IterableDataset[torch.Tensor]):
    """Each worker goes round its share of the clips; the archive is opened, read and closed under the lock."""

    def __init__(self, archive: Path) -> None:
        self.archive = archive

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        assert worker is not None
        lock = FileLock(self.archive.with_suffix(".lock"))
        while True:
            for number in range(worker.id, _CLIPS, worker.num_workers):
                with lock, zipfile.ZipFile(self.archive) as archive:
                    raw = archive.read(f"{number}.pcm")
                sound = torch.frombuffer(bytearray(raw), dtype=torch.int16)
                yield sound.unfold(0, _FRAME, _FRAME).float().square_().mean(1).log1p_()


def train(trainer: Trainer) -> None:
    clips = Clips(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "clips.zip")
    trainer.fit(loader(clips, workers=5, start="forkserver", batch=120, prefetch_factor=2), trainer.compute(50, kernels=5))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with zipfile.ZipFile(running.folder / "clips.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(_CLIPS):
            archive.writestr(f"{number}.pcm", os.urandom(_CLIP_BYTES // 8) * 8)
    yield


SCENARIO = Scenario(Label("input-bound", "lock-contention"), train, prepare=prepare)
