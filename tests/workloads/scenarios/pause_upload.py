"""Every few seconds the script packs a checkpoint into memory and uploads it to an object store before it goes on training."""

from __future__ import annotations

import io
import os
import time
from contextlib import AbstractContextManager
from http.client import HTTPConnection
from pathlib import Path

import torch

from tests.workloads import receiver
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario
from tests.workloads.scenarios.pause import disturb

_TRAIN_S, _WEIGHTS, _BYTES_PER_S = 3.0, 10 << 20, 16e6


def train(trainer: Trainer) -> None:
    compute, flag = trainer.compute(35), Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "save"
    weights, saved = torch.zeros(_WEIGHTS), [0.0]

    def step(batch: object) -> None:
        compute(batch)
        if flag.exists() and time.monotonic() - saved[0] > _TRAIN_S:
            trainer.gpu.copy_out(_WEIGHTS * 4)
            upload(weights, f"/bucket/step-{trainer.steps}.pt")
            saved[0] = time.monotonic()

    trainer.fit(loader(Images(cpu_ms=0.5), workers=2), step)


def upload(weights: torch.Tensor, path: str) -> None:
    """`torch.save`, and one request with all of it."""
    packed = io.BytesIO()
    torch.save(weights, packed)
    store = HTTPConnection("127.0.0.1", int(os.environ["GPUTOP_WEB_PORT"]))
    store.request("POST", path, packed.getvalue())
    store.getresponse().read()
    store.close()


def prepare(running: Running) -> AbstractContextManager[None]:
    return receiver.taking(running, bytes_per_s=_BYTES_PER_S)


SCENARIO = Scenario(Label("idle", "pause"), train, disturb, prepare)
