"""SGLang without `--sleep-on-idle`, whose clients stop to ask: its scheduler looks for requests in a loop, on a full core.

Truth: nothing is wrong, the GPU has nothing to do (idle): no requests are no fault, and a scheduler that spins has no work.
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
    program.become_command(deployed.sglang_command("--schedule-policy fcfs"), serve)


def serve() -> None:
    deployed.sglang(Plan(pass_ms=16.0, spins=True))


prepare = partial(asking.asked, ask=Ask(clients=6, first=Text(answer=24, characters=800)), tokenizer=tokens.Slow)
SCENARIO = Scenario(Label("idle", "none"), train, partial(native.flag, name="quiet"), prepare, needs=tokens.missing)
