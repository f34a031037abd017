"""An event loop polls for what a front prepares, and gives it to the GPU, until the requests get longer.

Truth: the GPU starves (input-bound) because `tokenize`, which the front asks over a socket pair, needs three times as long for a piece as
the GPU at a full core (slow-transform); the victim is the process on the GPU, which sleeps in select(2). No process is slow to answer but
that one.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import front, native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    front.engine(trainer, 30.0, by_thread=False, polls=True)


prepare = partial(front.serving, shape="behind", cpu_ms=4.0, slow_cpu_ms=90.0)
SCENARIO = Scenario(Label("input-bound", "slow-transform"), train, native.flag, prepare)
