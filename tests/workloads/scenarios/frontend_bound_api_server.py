"""A vLLM whose API server, one process, is fast until prompts come for which it has no fast way to make tokens.

Truth: the GPU starves (input-bound), because `VLLM::APIServer` runs all the time and takes far longer for a prompt than the engine for its
answer (frontend-bound). More API servers would fix it; more room for keys and values, or a larger batch, would not.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native, served
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    served.engine(trainer, pass_ms=6.0, tokenize_ms=(2.0, 120.0))


SCENARIO = Scenario(Label("input-bound", "frontend-bound"), train, native.flag, partial(served.asked, clients=8, answer=10))
