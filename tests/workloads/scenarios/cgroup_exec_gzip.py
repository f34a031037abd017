"""A pod whose quota suffices for its training on click logs, until somebody compresses old checkpoints in it by `kubectl exec`."""

from __future__ import annotations

import os
import subprocess
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tests.workloads import cgroup
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_SHARDS, _LINES, _COUNTS, _CATEGORIES, _BUCKETS = 6, 400, 13, 26, 1 << 20
_QUOTA_CPUS, _BATCH_CPU_S, _GPU_MS = 0.9, 0.016, 32
_CHECKPOINTS = 4


class Clicks(IterableDataset[torch.Tensor]):
    """Whole batches of hashed features; each worker streams shards of its own, for ever."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info, folder = get_worker_info(), Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
        mine = range(info.id, _SHARDS, info.num_workers)  # type: ignore[union-attr]
        lines = cycle([line for shard in mine for line in (folder / f"day_{shard}.tsv").open()])
        while True:
            until, parts = time.thread_time() + _BATCH_CPU_S, []
            while time.thread_time() < until:
                parts.append(torch.tensor([parse(next(lines)) for _ in range(20)]))
            yield torch.cat(parts)


def parse(line: str) -> list[int]:
    """The label, the counts, and the bucket of each category."""
    label, *fields = line.rstrip("\n").split("\t")
    return [int(label), *map(int, fields[:_COUNTS]), *(zlib.crc32(field.encode()) % _BUCKETS for field in fields[_COUNTS:])]


def train(trainer: Trainer) -> None:
    rows: DataLoader[object] = loader(Clicks(), workers=3, batch=None, prefetch_factor=3)  # type: ignore[arg-type]
    trainer.fit(rows, trainer.compute_ahead(_GPU_MS, every=8))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    for shard in range(_SHARDS):
        rows = (["1", *map(str, os.urandom(_COUNTS)), *(os.urandom(4).hex() for _ in range(_CATEGORIES))] for _ in range(_LINES))
        (running.folder / f"day_{shard}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    (running.folder / "epoch.pt").write_bytes(os.urandom(8 << 20))
    with cgroup.group("cpu", running.name) as pod:
        running.env["GPUTOP_WORKLOAD_CGROUP"] = str(pod)
        cgroup.limit_cpu(pod, _QUOTA_CPUS)
        yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    files = [str(running.folder / "epoch.pt")] * 2000
    enter = f'echo $$ > {running.env["GPUTOP_WORKLOAD_CGROUP"]}/cgroup.procs; exec prlimit --cpu={int(running.seconds) + 5} gzip -9 -c "$@"'
    with ExitStack() as stack:
        for _ in range(_CHECKPOINTS):
            gzip = stack.enter_context(running.child(["sh", "-c", enter, "sh", *files], stdout=subprocess.DEVNULL))
            running.blame(gzip.pid, "gzip")
        yield
        running.account()


_LABEL = Label("input-bound", "cgroup-throttle", frozenset({"gzip"}))
SCENARIO = Scenario(_LABEL, train, disturb, prepare, needs=lambda: cgroup.missing("cpu"))
