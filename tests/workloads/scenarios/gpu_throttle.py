"""The GPU gets too hot: its clock drops to 40 %, and each step takes 2.5 times as long."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads.data import Images
from tests.workloads.loop import Trainer
from tests.workloads.loop import loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label
from tests.workloads.scenario import Scenario

_SW_THERMAL_SLOWDOWN = 0x20


def train(trainer: Trainer) -> None:
    hot = Path(os.environ["GPUTOP_NVML_CONTROL"])
    cool_step, hot_step = trainer.compute(30), trainer.compute(75)
    trainer.fit(loader(Images(cpu_ms=0.5), workers=2), lambda batch: (hot_step if hot.stat().st_size else cool_step)(batch))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    control = running.folder / "nvml"
    control.touch()
    running.env["GPUTOP_NVML_CONTROL"] = str(control)
    yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    draft = running.folder / "nvml.new"
    draft.write_text(f"throttle {_SW_THERMAL_SLOWDOWN}\nsm_clock 790\ntemp 88\n")
    draft.replace(running.folder / "nvml")
    yield
    draft.touch()
    draft.replace(running.folder / "nvml")


SCENARIO = Scenario(Label("compute-bound", "gpu-throttle"), train, disturb, prepare)
