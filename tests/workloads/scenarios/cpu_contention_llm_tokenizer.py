"""An LLM engine whose tokenizer keeps up, with half a core, until tasks of a neighbour's job array take the CPUs, each in its own session.

Truth: the engine's GPU starves (input-bound) because `VLLM::Tokenizer` is ready to run but seldom gets a CPU (cpu-contention); the culprits
are the tasks `bowtie2`, which have nothing to do with the service, the victims the tokenizer, `VLLM::EngineCore` and the clients. Moving
the neighbour elsewhere, or a reserved CPU for the tokenizer, would fix it; a faster tokenizer is not what it lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from tests.workloads import llm
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_CPU_MS, _PROMPT_MS = 18.0, 40.0
_TASK, _TASKS_EACH_CPU = "bowtie2", 6


def train(trainer: Trainer) -> None:
    llm.engine(trainer, _PROMPT_MS)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with ExitStack() as tasks:
        for _ in range(_TASKS_EACH_CPU * cpus()):
            tasks.enter_context(hogs(running, {_TASK: 1}))
        yield


_LABEL = Label("input-bound", "cpu-contention", frozenset({_TASK}))
SCENARIO = Scenario(_LABEL, train, disturb, partial(llm.serving, cpu_ms=_CPU_MS))
