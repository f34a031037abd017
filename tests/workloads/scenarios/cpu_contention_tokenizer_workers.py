"""SGLang with two tokenizer workers that keep up, until somebody's Spark job starts its executors on the same host.

Truth: the GPU starves (input-bound), because the workers `sglang::tokenizer_worker` are ready to run and seldom get a CPU (cpu-contention);
the culprits are the executors `java`, six for each CPU, two threads and a container each, which are no part of the server. Without them the
workers need two thirds of a core together for what the GPU can compute, two requests at once. Limits for that job, or CPUs of their own for
the workers, would fix it; more workers would stand in line, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import asking, deployed, program, tokens
from tests.workloads.asking import Ask, Text
from tests.workloads.hogs import hogs
from tests.workloads.scenario import Label, Scenario, cpus
from tests.workloads.serving import Plan

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_CULPRIT, _EACH_CPU, _THREADS = "java", 6, 2


def train(_trainer: Trainer) -> None:
    program.become_command(deployed.sglang_command("--tokenizer-worker-num 2 --max-running-requests 2"), serve)


def serve() -> None:
    deployed.sglang(Plan(pass_ms=12.0, most=2), workers=2)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    """The job, each executor in a session of its own."""
    with ExitStack() as executors:
        for _ in range(_EACH_CPU * cpus()):
            executors.enter_context(hogs(running, {_CULPRIT: _THREADS}))
        yield


_ASK = Ask(clients=8, first=Text(answer=8, cpu_ms=24.0, kind="logs"))
prepare = partial(asking.asked, ask=_ASK, tokenizer=tokens.Slow)
SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset({_CULPRIT})), train, disturb, prepare, needs=tokens.missing)
