"""Dense kernels take a GPU to its power limit: the driver says so and holds the clock 7 % below the maximum, as under any full load."""

from __future__ import annotations

from tests.workloads import nvml_control
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario

_SW_POWER_CAP = 0x4


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=1), workers=2), trainer.compute(60, kernels=24))


SCENARIO = Scenario(
    HEALTHY, train, prepare=nvml_control.from_the_start(f"throttle {_SW_POWER_CAP}\nsm_clock 1845\ntemp 66\nmem_temp 74\n")
)
