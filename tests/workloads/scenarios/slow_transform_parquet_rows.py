"""A tabular IterableDataset reads Parquet row groups with pyarrow, turns them into dictionaries and makes features row by row.

The row groups are divided over the workers and decoded in a moment; `to_pylist` and the Python code for each row (logarithms,
ratios, hashed crosses) take nearly all of the time. There is a worker for each CPU, and all of them run all the time, so more
workers cannot help: the transform itself is too slow and should work on columns. No disk, lock or neighbour is involved.
"""

from __future__ import annotations

import importlib.util
import math
import os
import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_ROWS, _GROUP = 48_000, 1_500
_CITIES = ("berlin", "lagos", "lima", "osaka", "pune", "turin")


def _features(row: dict[str, object]) -> list[float]:
    numbers = [float(row[f"x{i}"]) for i in range(12)]  # type: ignore[arg-type]
    logs = [math.log1p(abs(x)) for x in numbers]
    ratios = [a / (1.0 + abs(b)) for a in numbers for b in numbers[:4]]
    crosses = [zlib.crc32(f"{row['city']}|{row['device']}|{i}".encode()) % 1009 for i in range(16)]
    return [*numbers, *logs, *ratios, *map(float, crosses)]


class Table(IterableDataset[torch.Tensor]):
    """A batch for each row group, in an endless round; every worker takes its share of the groups."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        import pyarrow.parquet as pq

        file, info = pq.ParquetFile(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "train.parquet"), get_worker_info()
        assert info is not None
        while True:
            for group in range(info.id, file.num_row_groups, info.num_workers):
                yield torch.tensor([_features(row) for row in file.read_row_group(group).to_pylist()])


def train(trainer: Trainer) -> None:
    batches = DataLoader(
        Table(), batch_size=None, num_workers=cpus(), persistent_workers=True, multiprocessing_context="spawn"
    )  # fmt: skip
    trainer.fit(batches, trainer.compute(14))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = random.Random(5)
    columns: dict[str, list[object]] = {f"x{i}": [chance.gauss(0, 50) for _ in range(_ROWS)] for i in range(12)}
    columns |= {"city": chance.choices(_CITIES, k=_ROWS), "device": chance.choices(("ios", "android", "web"), k=_ROWS)}
    pq.write_table(pa.table(columns), running.folder / "train.parquet", row_group_size=_GROUP, compression="zstd")
    yield


def missing() -> str:
    """Why there can be no Parquet file, empty if there can."""
    return "" if importlib.util.find_spec("pyarrow") else "no pyarrow"


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train, prepare=prepare, needs=missing)
