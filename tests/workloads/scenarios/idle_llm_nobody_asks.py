"""An LLM engine that serves at full load until its clients have all they wanted: afterwards nobody asks.

Truth: the GPU idles (idle) and nothing is wrong (none): engine, tokenizer and API server sleep, each waiting for the one before it, and the
API server for requests. Nobody is a victim or to blame; only more requests would make the GPU work.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import llm, native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_CPU_MS, _PROMPT_MS = 5.0, 30.0


def train(trainer: Trainer) -> None:
    llm.engine(trainer, _PROMPT_MS)


disturb = partial(native.flag, name="quiet")
SCENARIO = Scenario(Label("idle", "none"), train, disturb, partial(llm.serving, cpu_ms=_CPU_MS))
