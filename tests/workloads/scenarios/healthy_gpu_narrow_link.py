"""A card in a PCIe x1 riser trains on what lies in its memory: hardly a byte crosses the link, and none is missed."""

from __future__ import annotations

from tests.workloads import nvml_control
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=1), workers=2), trainer.compute(50, bytes_in=1 << 12))


SCENARIO = Scenario(
    HEALTHY, train, prepare=nvml_control.from_the_start("pcie_gen 3\npcie_width 1\n"), env={"GPUTOP_CUDA_GBPS": "0.8"}
)
