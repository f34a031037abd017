"""An LLM engine whose tokenizer keeps up, with half a core, until a neighbour's nightly indexing takes the CPUs.

Truth: the engine's GPU starves (input-bound) because `VLLM::Tokenizer` is ready to run but seldom gets a CPU (cpu-contention); the culprits
are `lucene`, `zstd` and `pigz`, which have nothing to do with the service, the victims the tokenizer, `VLLM::EngineCore` and the clients.
Moving the neighbours elsewhere, or a reserved CPU for the tokenizer, would fix it; a faster tokenizer is not what it lacks.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial

from tests.workloads import llm
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_CPU_MS, _PROMPT_MS = 22.0, 40.0


def train(trainer: Trainer) -> None:
    llm.engine(trainer, _PROMPT_MS)


def disturb(running: Running) -> AbstractContextManager[None]:
    """Seven threads that always want to run for each CPU."""
    return hogs(running, {"lucene": 3 * cpus(), "zstd": 2 * cpus(), "pigz": 2 * cpus()})


_LABEL = Label("input-bound", "cpu-contention", frozenset({"lucene", "zstd", "pigz"}))
SCENARIO = Scenario(_LABEL, train, disturb, partial(llm.serving, cpu_ms=_CPU_MS))
