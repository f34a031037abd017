"""A click model reads its rows from a CSV file through a DataLoader with `num_workers=0`, the default.

`__getitem__` reads a line, and the collate function parses the batch with `csv.DictReader`, scales numbers and hashes
categories, all in Python and in the thread that launches the kernels. The file lies in the page cache, the other CPUs idle, and
the GPU waits while the main thread parses. Workers would hide nearly all of that: preprocessing in the main thread is the cause.
"""

from __future__ import annotations

import csv
import io
import os
import random
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_LINES, _BATCH = 30_000, 768
_NUMBERS = [f"n{i}" for i in range(13)]
_CATEGORIES = [f"c{i}" for i in range(26)]


class Lines(Dataset[str]):
    """Lines of a file by number."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._starts = array("q", [0])
        for line in self._file:
            self._starts.append(self._starts[-1] + len(line))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> str:
        start = self._starts[index]
        return os.pread(self._file.fileno(), self._starts[index + 1] - start, start).decode()  # workers share the file's offset


def collate(lines: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers and hashed categories of a batch."""
    rows = list(csv.DictReader(io.StringIO("".join(lines)), fieldnames=[*_NUMBERS, *_CATEGORIES]))
    numbers = torch.tensor([[float(row[name] or "nan") / 100 for name in _NUMBERS] for row in rows])
    buckets = torch.tensor([[zlib.crc32(f"{name}={row[name]}".encode()) % 10_007 for name in _CATEGORIES] for row in rows])
    return numbers.nan_to_num(), buckets


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    lines = Lines(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "clicks.csv")
    trainer.fit(DataLoader(lines, batch_size=_BATCH, shuffle=True, collate_fn=collate), trainer.compute(10))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    chance = random.Random(3)
    row = lambda: ",".join([*map(str, chance.choices(range(9999), k=13)), *map(hex, chance.choices(range(1 << 24), k=26))])  # noqa: E731
    (running.folder / "clicks.csv").write_text("".join(f"{row()}\n" for _ in range(_LINES)))
    yield


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train, prepare=prepare)
