"""A vLLM whose API server keeps up, with half a core, until a neighbour's tasks take the CPUs.

Truth: the GPU starves (input-bound), because `VLLM::APIServer` is ready to run and seldom gets a CPU (cpu-contention); the culprits are the
tasks `bowtie2`. More API servers would not fix it: they would stand in line, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from tests.workloads import served
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_TASK, _TASKS_EACH_CPU = "bowtie2", 6


def train(trainer: Trainer) -> None:
    served.engine(trainer, pass_ms=12.0, tokenize_ms=(25.0, 25.0))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    """The tasks, each in a session of its own."""
    with ExitStack() as tasks:
        for _ in range(_TASKS_EACH_CPU * cpus()):
            tasks.enter_context(hogs(running, {_TASK: 1}))
        yield


SCENARIO = Scenario(
    Label("input-bound", "cpu-contention", frozenset({_TASK})), train, disturb, partial(served.asked, clients=8, answer=8)
)
