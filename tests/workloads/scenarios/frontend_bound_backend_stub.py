"""Triton with a reranker behind a model of its Python backend that makes tokens, one instance of it; queries in another script come.

Truth: the GPU starves (input-bound), because `triton_python_backend_stub`, the one process that makes tokens, in pure Python, runs all the
time (frontend-bound): 60 ms a pair of texts, for which the GPU works 12 ms. The server's own threads wait, and a CPU idles. More instances
of that model (`instance_group`), or a fast tokenizer, would fix it; more instances of the reranker would not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import asking, deployed, native, program, tokens
from tests.workloads.asking import Ask, Text
from tests.workloads.scenario import Label, Scenario
from tests.workloads.serving import Plan

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer


def train(_trainer: Trainer) -> None:
    program.become_command(deployed.triton_command("--log-verbose=0"), serve)


def serve() -> None:
    deployed.triton(Plan(pass_ms=12.0, most=4))


_ASK = Ask(clients=8, first=Text(answer=1, cpu_ms=2.0), then=Text(answer=1, cpu_ms=60.0, kind="logs"), path="/v2/models/reranker/infer")
prepare = partial(asking.asked, ask=_ASK, tokenizer=tokens.Slow)
SCENARIO = Scenario(Label("input-bound", "frontend-bound"), train, native.flag, prepare, needs=tokens.missing)
