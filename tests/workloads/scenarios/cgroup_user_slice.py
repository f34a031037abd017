"""A login node: every user's slice has a quota (systemd's CPUQuota=), and the job runs in a session below it."""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.utils.data import Dataset

from tests.workloads import cgroup
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_STEP_MS, _BATCH, _LOSS_EVERY = 5.0, 16, 5
_QUOTA_CPUS = 0.36
_BUCKETS = 1 << 18
_EVENT = json.dumps({"user": 71532, "item": "B00X4WHP5E", "path": ["home", "search", "detail"], "dwell_s": 12.75, "device": "tablet"})


class Clicks(Dataset[torch.Tensor]):
    """Histories of click events in JSON, hashed into feature buckets; ``cpu_ms`` each."""

    def __init__(self, cpu_ms: float) -> None:
        self.cpu_ms = cpu_ms

    def __len__(self) -> int:
        return 1 << 19

    def __getitem__(self, index: int) -> torch.Tensor:
        until, features = time.thread_time() + self.cpu_ms / 1e3, torch.zeros(64, dtype=torch.int64)
        for row in range(1 << 20):
            event = json.loads(_EVENT)
            words = [f"{key}={value}" for key, value in event.items()]
            features[row % 64] = hash((index, *words)) % _BUCKETS
            if time.thread_time() >= until:
                break
        return features


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Clicks(cpu_ms=1.6 / _BATCH), 3, "fork", _BATCH), _logging_step(trainer))


def _logging_step(trainer: Trainer) -> Callable[[object], None]:
    """A step that is not waited for, except the few whose loss is logged, after `torch.cuda.synchronize()`."""
    cuda = ctypes.CDLL("libcudart.so.12")

    def step(_batch: object) -> None:
        trainer.gpu.copy_in(1 << 16, pinned=True)
        for share in (0.25, 0.5, 0.25):
            trainer.gpu.launch(share * _STEP_MS)
        if trainer.steps % _LOSS_EVERY == 0:
            cuda.cudaDeviceSynchronize()

    return step


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with cgroup.pod("cpu", running, "other-session") as user_slice:
        cgroup.limit_cpu(user_slice, _QUOTA_CPUS)
        yield


SCENARIO = Scenario(Label("input-bound", "cgroup-throttle"), train, prepare=prepare, needs=lambda: cgroup.missing("cpu"))
