"""Dense kernels take a GPU to its power limit: the driver says so and holds the clock 7 % below the maximum, as under any full load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads.data import Images
from tests.workloads.loop import Trainer
from tests.workloads.loop import loader
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY
from tests.workloads.scenario import Scenario

_SW_POWER_CAP = 0x4


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=1), workers=2), trainer.compute(60, kernels=24))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    control = running.folder / "nvml"
    control.write_text(f"throttle {_SW_POWER_CAP}\nsm_clock 1845\ntemp 66\nmem_temp 74\n")
    running.env["GPUTOP_NVML_CONTROL"] = str(control)
    yield


SCENARIO = Scenario(HEALTHY, train, prepare=prepare)
