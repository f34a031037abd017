"""A vLLM whose passes are long beside what it computes between them, with a tokenizer at a third of a core.

Truth: nothing is wrong: the GPU works all the time.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import served
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario


def train(trainer: Trainer) -> None:
    served.engine(trainer, pass_ms=60.0, tokenize_ms=(10.0, 10.0), schedule_ms=(1.0, 1.0), most=16)


SCENARIO = Scenario(HEALTHY, train, prepare=partial(served.asked, clients=32, answer=16))
