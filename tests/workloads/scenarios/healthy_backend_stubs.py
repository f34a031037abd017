"""Triton with a reranker and two instances of a model of its Python backend that make tokens; texts get longer.

Truth: nothing is wrong. The GPU computes one batch of two after the other, and requests wait for it; both stubs together need less than
half a CPU, also for the longer texts.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import asking, deployed, native, program, tokens
from tests.workloads.asking import Ask, Text
from tests.workloads.scenario import HEALTHY, Scenario
from tests.workloads.serving import Plan

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer


def train(_trainer: Trainer) -> None:
    program.become_command(deployed.triton_command("--log-info=0"), serve)


def serve() -> None:
    deployed.triton(Plan(pass_ms=36.0, most=2), stubs=2)


_TEXTS = Text(answer=1, cpu_ms=3.0), Text(answer=1, cpu_ms=5.0)
_ASK = Ask(10, *_TEXTS, path="/v2/models/reranker/infer", called="perf_client")
prepare = partial(asking.asked, ask=_ASK, tokenizer=tokens.Slow)
SCENARIO = Scenario(HEALTHY, train, native.flag, prepare, needs=tokens.missing)
