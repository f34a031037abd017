"""All-reduces of any number of ranks, as DDP issues one for each bucket of gradients."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads.gpu import Gpu
from tests.workloads.runner import Running


class Group:
    """How many collectives each rank has entered, in memory the ranks share."""

    def __init__(self, gpu: Gpu, rank: int) -> None:
        self._gpu, self._rank, self._ranks = gpu, rank, int(os.environ["WORLD_SIZE"])
        with (Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "group").open("r+b") as file:
            self._entered = (ctypes.c_uint64 * self._ranks).from_buffer(mmap.mmap(file.fileno(), 8 * self._ranks))

    def all_reduce(self, length_ms: float = 0.5) -> None:
        """A kernel that spins until every other rank has entered this one too; returns at once."""
        self._entered[self._rank] += 1
        target, peers = self._entered[self._rank], [rank for rank in range(self._ranks) if rank != self._rank]
        for peer in peers:
            self._gpu.all_reduce(ctypes.c_uint64.from_buffer(self._entered, 8 * peer), target, length_ms / len(peers))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """The counters, in the workload's folder."""
    (running.folder / "group").write_bytes(bytes(8 * running.scenario.ranks))
    yield
