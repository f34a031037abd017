"""A vLLM with as many requests as it can compute: its API server and its scheduler are far from a full core, and there is room.

Truth: nothing is wrong: a queue alone is no fault.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import served
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario


def train(trainer: Trainer) -> None:
    served.engine(trainer, pass_ms=30.0, most=8)


SCENARIO = Scenario(HEALTHY, train, prepare=partial(served.asked, clients=16, answer=40))
