"""The GPU gets too hot: its clock drops to 40 %, and each step takes 2.5 times as long."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.workloads import nvml_control
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_SW_THERMAL_SLOWDOWN = 0x20


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=0.5), workers=2), nvml_control.held(trainer.compute(30), trainer.compute(75)))


def disturb(running: Running) -> AbstractContextManager[None]:
    return nvml_control.saying(running, f"throttle {_SW_THERMAL_SLOWDOWN}\nsm_clock 790\ntemp 88\n")


SCENARIO = Scenario(Label("compute-bound", "gpu-throttle"), train, disturb, nvml_control.from_the_start())
