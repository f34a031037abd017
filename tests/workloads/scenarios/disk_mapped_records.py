"""Records of one mapped file, page by page without read-ahead, as LMDB reads with ``readahead=False``: each page is a major fault."""

from __future__ import annotations

import mmap
import os
from functools import partial
from pathlib import Path

import torch

from tests.workloads import slow_disk
from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_RECORD_BYTES, _READ_BYTES_PER_S = 96 << 10, 6 << 20


class Records(Images):
    """Samples sliced out of a mapping that each worker keeps."""

    _pages: mmap.mmap | None = None
    _file = -1

    def __getitem__(self, index: int) -> torch.Tensor:
        pages, at = self._map(), index * 7919 % (slow_disk.FILE_BYTES // _RECORD_BYTES) * _RECORD_BYTES
        bytes(pages[at : at + _RECORD_BYTES])
        pages.madvise(mmap.MADV_DONTNEED, at, _RECORD_BYTES)
        os.posix_fadvise(self._file, at, _RECORD_BYTES, os.POSIX_FADV_DONTNEED)  # only what nobody maps is dropped
        return decode(self.cpu_ms)

    def _map(self) -> mmap.mmap:
        if self._pages is None:
            self._file = os.open(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples", os.O_RDONLY)
            self._pages = mmap.mmap(self._file, 0, prot=mmap.PROT_READ)
            self._pages.madvise(mmap.MADV_RANDOM)
        return self._pages


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Records(0.3), workers=3), trainer.compute(25))


_slow = partial(slow_disk.throttle, bytes_per_s=_READ_BYTES_PER_S)
SCENARIO = Scenario(Label("input-bound", "disk-io"), train, _slow, slow_disk.file, needs=slow_disk.missing)
