"""The sum of the losses is a tensor, so each step's graph stays on the GPU: some megabytes more after every step of a large model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads.data import Images
from tests.workloads.gpu import KERNELS
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_MODEL_BYTES = 118 << 30  # with its optimizer's states, of the simulated GPU's 140 GiB
_GRAPH_BYTES = 4 << 20  # of a step; 33 of them a second


def train(trainer: Trainer) -> None:
    trainer.gpu.allocate(_MODEL_BYTES)
    compute, flag = trainer.compute(30), Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "keep"

    def step(batch: object) -> None:
        if flag.exists():
            trainer.gpu.allocate(_GRAPH_BYTES)
        compute(batch)

    trainer.fit(loader(Images(0.3), workers=2), step)


@contextmanager
def keep(running: Running) -> Iterator[None]:
    (running.folder / "keep").touch()
    yield


SCENARIO = Scenario(
    Label("healthy", "none", beside="gpu-memory-growth"), train, keep, least_s=42.0,
    needs=lambda: "it is made for the simulated GPU's memory" if KERNELS else "",
)  # fmt: skip
