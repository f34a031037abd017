"""A notebook: its kernel runs a cell, on the GPU or a quick look at the data, and then waits for the next one while its user thinks."""

from __future__ import annotations

import selectors
import subprocess
import sys
from collections.abc import Callable

from tests.workloads.data import numbers
from tests.workloads.loop import Over, Trainer
from tests.workloads.scenario import Label, Scenario

_USER = """
import itertools, random, time
for cell in itertools.cycle(["train", "look", "train", "train"]):
    print(cell, flush=True)
    time.sleep(random.uniform(0.8, 3.0))
"""
_STEPS, _LOOK_MS = 12, 60


def train(trainer: Trainer) -> None:
    step = trainer.compute(40)
    with (
        subprocess.Popen([sys.executable, "-c", _USER], stdout=subprocess.PIPE, text=True) as user,
        selectors.DefaultSelector() as selector,
    ):
        assert user.stdout is not None
        selector.register(user.stdout, selectors.EVENT_READ)
        try:
            while selector.select():
                run(user.stdout.readline().strip(), trainer, step)
        except Over:
            user.kill()


def run(cell: str, trainer: Trainer, step: Callable[[object], None]) -> None:
    """A few steps on what is on the GPU already, or a table and a plot."""
    if cell == "look":
        numbers(_LOOK_MS)
        return
    for batch in range(_STEPS):
        step(batch)
        trainer.tick()


SCENARIO = Scenario(Label("idle", "none"), train)
