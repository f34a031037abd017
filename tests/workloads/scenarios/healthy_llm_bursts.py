"""An LLM engine whose clients begin to come in bursts: all ask at once, and again only some time after the last has its answer.

Truth: healthy. In a burst prompts queue before the tokenizer and before the engine, and the GPU works on one after the other without a gap;
between bursts it waits a moment for the clients, as it should. Tokenizing takes a sixth of the GPU's time. Nobody is a victim or to blame,
and there is nothing to fix.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import llm, native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_CPU_MS, _PROMPT_MS = 6.0, 40.0
_CLIENTS = 56


def train(trainer: Trainer) -> None:
    llm.engine(trainer, _PROMPT_MS)


prepare = partial(llm.serving, cpu_ms=_CPU_MS, clients=_CLIENTS)
SCENARIO = Scenario(HEALTHY, train, partial(native.flag, name="bursts"), prepare)
