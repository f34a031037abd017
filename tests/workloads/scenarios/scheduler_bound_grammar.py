"""A vLLM whose requests begin to ask for answers that fit a grammar: the mask of allowed tokens is made on the CPU before each pass.

Truth: `VLLM::EngineCore` makes masks while the GPU waits (wait-heavy, scheduler-bound). Simpler grammars, or masks made during the pass,
would fix it.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native, served
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    served.engine(trainer, pass_ms=25.0, schedule_ms=(1.0, 60.0), most=32)


SCENARIO = Scenario(Label("wait-heavy", "scheduler-bound"), train, native.flag, partial(served.asked, clients=6, answer=24))
