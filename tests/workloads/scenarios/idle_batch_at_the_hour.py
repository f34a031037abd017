"""vLLM behind a scheduler of jobs: twenty clients ask for a second, and then nobody does for two and a half.

Truth: nothing is wrong. In a burst requests queue and the GPU computes one pass after the other; between two bursts nobody asks, and API
server and engine sleep. The GPU is idle for two thirds of the time (idle, none), and only more requests would change that.
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
    program.become_command(deployed.vllm_command("--max-num-seqs 8"), serve)


def serve() -> None:
    deployed.vllm(Plan(pass_ms=12.0, most=8))


_ASK = Ask(clients=20, first=Text(answer=10, characters=500), bursts=(1.0, 2.5), called="airflow")
prepare = partial(asking.asked, ask=_ASK)
SCENARIO = Scenario(Label("idle", "none"), train, partial(native.flag, name="bursts"), prepare, needs=tokens.missing)
