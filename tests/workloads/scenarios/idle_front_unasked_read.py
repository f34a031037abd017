"""A model whose main thread reads requests itself, from the UNIX socket of a front of another session, until nobody asks any more.

Truth: the GPU idles (idle) and nothing is wrong (none): model, front and the process that tokenizes for it wait to be asked.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import front, native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    front.engine(trainer, 25.0, by_thread=False)


prepare = partial(front.serving, shape="behind", cpu_ms=3.0)
SCENARIO = Scenario(Label("idle", "none"), train, partial(native.flag, name="quiet"), prepare)
