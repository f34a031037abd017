"""A vLLM with a small model, whose requests begin to ask for log-probabilities, which are computed on the CPU between two passes.

Truth: `VLLM::EngineCore` computes longer between two passes than the GPU does in one, while requests run (scheduler-bound). Fewer
log-probabilities, or scheduling beside the pass, would fix it; more API servers would not.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native, served
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    served.engine(trainer, pass_ms=12.0, schedule_ms=(0.4, 30.0))


SCENARIO = Scenario(Label("wait-heavy", "scheduler-bound"), train, native.flag, partial(served.asked, clients=12, answer=40))
