"""Graph learning on features mapped from a file, until the object store in the same pod fills shared memory up to the pod's limit."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tests.workloads import cgroup, slow_disk, tight_memory
from tests.workloads.data import decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_WIDTH, _NEIGHBOURS = 256, 350  # float32: a row is 1 KiB
_NODES = slow_disk.FILE_BYTES // (4 * _WIDTH)
_SPARE_BYTES, _LEFT_BYTES = 48 << 20, 24 << 20
_NAME = "vineyardd"
_STORE = """
import ctypes, itertools, mmap, sys, time
ctypes.CDLL(None).prctl(15, sys.argv[1].encode())
print("up", flush=True)
size = int(sys.stdin.readline())
arena, blob = mmap.mmap(-1, size), bytes(1 << 20)
for at in range(0, size, 1 << 20):
    arena[at : at + (1 << 20)] = blob
print("full", flush=True)
for at in itertools.cycle(range(0, size, 1 << 20)):
    arena[at : at + (1 << 20)] = blob
    time.sleep(0.05)
"""


class Sampled(Dataset[torch.Tensor]):
    """A seed with its sampled neighbours' features, gathered from the mapped file."""

    def __init__(self, features: torch.Tensor) -> None:
        self.features = features

    def __len__(self) -> int:
        return _NODES

    def __getitem__(self, seed: int) -> torch.Tensor:
        neighbours = torch.randint(_NODES, (_NEIGHBOURS,))
        decode(0.3)
        return self.features[neighbours].mean(0)


def train(trainer: Trainer) -> None:
    file = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples"
    features = torch.from_file(str(file), shared=False, size=_NODES * _WIDTH).view(_NODES, _WIDTH)
    for part in features.view(torch.int32).split(4096):
        part.max()  # the check for rows that are missing; all of the file is in memory now
    ctypes.CDLL(None).madvise(ctypes.c_void_p(features.data_ptr()), ctypes.c_size_t(slow_disk.FILE_BYTES), mmap.MADV_RANDOM)
    trainer.fit(loader(Sampled(features), workers=2), trainer.compute(40))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """The features and the pod with its two containers."""
    with slow_disk.file(running), cgroup.pod("memory", running, "store"):
        yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    """The pod's limit, in which everything has its place, and the store's growth."""
    trainer = Path(running.env["GPUTOP_WORKLOAD_CGROUP"])
    with running.child([sys.executable, "-c", _STORE, _NAME], stdin=-1, stdout=-1) as store:
        assert store.stdin is not None
        assert store.stdout is not None
        cgroup.add(trainer.parent / "store", [store.pid])
        store.stdout.readline()
        held = cgroup.unreclaimable_bytes(trainer) + cgroup.unreclaimable_bytes(trainer.parent / "store")
        cgroup.limit_memory(trainer.parent, held + slow_disk.FILE_BYTES + _SPARE_BYTES)
        store.stdin.write(f"{slow_disk.FILE_BYTES + _SPARE_BYTES - _LEFT_BYTES}\n")
        store.stdin.flush()
        store.stdout.readline()
        running.blame(store.pid, _NAME)
        yield
        running.account()


SCENARIO = Scenario(Label("input-bound", "memory-pressure", frozenset({_NAME})), train, disturb, prepare, needs=tight_memory.missing)
