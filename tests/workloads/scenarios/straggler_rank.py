"""Two ranks meet in an all-reduce at each step; rank 1 prepares longer, so rank 0's GPU spins and waits for it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

RANKS = 2


class Ring:
    """How many steps each rank has brought to the all-reduce, in memory the ranks share."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self.arrived = (ctypes.c_uint64 * RANKS).from_buffer(mmap.mmap(file.fileno(), 8 * RANKS))

    def peer(self, rank: int) -> ctypes.c_uint64:
        """The counter of the other rank."""
        return ctypes.c_uint64.from_buffer(self.arrived, 8 * (1 - rank))


def train(trainer: Trainer) -> None:
    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    ring, gpu, rank = Ring(folder / "ring"), trainer.gpu, trainer.rank

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20)
        if rank == 1 and (folder / "straggle").exists():
            decode(40)
        gpu.launch(25)
        ring.arrived[rank] = trainer.steps + 1
        gpu.all_reduce(ring.peer(rank), trainer.steps + 1)
        gpu.synchronize()

    trainer.fit(loader(Images(cpu_ms=0.3), workers=1), step)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    (running.folder / "ring").write_bytes(bytes(8 * RANKS))
    yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "straggle").touch()
    running.blame(running.trainer_pids[1], "train.py")
    yield
    running.account()
    (running.folder / "straggle").unlink()


SCENARIO = Scenario(Label("straggler", "straggler-rank", frozenset({"train.py"})), train, disturb, prepare, ranks=RANKS, devices=RANKS)
