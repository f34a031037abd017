"""A model behind a front whose clients ask in bursts, a second of requests and a second and a half of none.

Truth: nothing is wrong; between two bursts nobody asks, which is no pause of the model's own.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import front, native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    front.engine(trainer, 25.0)


prepare = partial(front.serving, shape="alone", cpu_ms=3.0)
SCENARIO = Scenario(Label("idle", "none"), train, partial(native.flag, name="bursts"), prepare)
