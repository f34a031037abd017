"""An LLM engine behind an API server whose one tokenizer process is fast until prompts come in a script for which it has no fast path.

Truth: the engine's GPU starves (input-bound) because `VLLM::Tokenizer`, one process at a full core, needs three times as long for a prompt
as the GPU (slow-transform); the victims are `VLLM::EngineCore` and the clients, the API server in between only passes on. More tokenizer
processes, or the fast tokenizer, would fix it; more clients or a larger batch would not.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import llm, native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_CPU_MS, _SLOW_CPU_MS = 5.0, 130.0
_PROMPT_MS = 40.0


def train(trainer: Trainer) -> None:
    llm.engine(trainer, _PROMPT_MS)


prepare = partial(llm.serving, cpu_ms=_CPU_MS, slow_cpu_ms=_SLOW_CPU_MS)
SCENARIO = Scenario(Label("input-bound", "slow-transform"), train, native.flag, prepare)
