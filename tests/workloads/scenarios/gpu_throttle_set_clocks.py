"""Somebody sets the GPU's clock to 44 % (nvidia-smi -ac, -lgc): each step takes 2.3 times as long, and draws little meanwhile."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.workloads import nvml_control
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_APPLICATIONS_CLOCKS = 0x2


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=0.5), workers=1), nvml_control.held(trainer.compute(44), trainer.compute(101)))


def disturb(running: Running) -> AbstractContextManager[None]:
    return nvml_control.saying(running, f"throttle {_APPLICATIONS_CLOCKS}\nsm_clock 870\npower_mw 180000\n")


SCENARIO = Scenario(Label("compute-bound", "gpu-throttle"), train, disturb, nvml_control.from_the_start())
