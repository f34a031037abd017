"""SGLang with a model that has no fast tokenizer; its users ask short questions, until they paste pages of logs for it to sort.

Truth: the GPU starves (input-bound), because the main process, one event loop that takes requests and makes tokens of them in pure Python,
runs all the time (frontend-bound): identifiers that it has never met take 70 ms a paste, an answer of some tokens 20 ms. The scheduler
waits to be asked, and the detokenizer for it. Tokenizer workers, or a fast tokenizer, would fix it; more memory or another GPU would not.
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
    program.become_command(deployed.sglang_command("--skip-server-warmup"), serve)


def serve() -> None:
    deployed.sglang(Plan(pass_ms=7.0))


_ASK = Ask(clients=8, first=Text(answer=8, characters=600), then=Text(answer=4, cpu_ms=70.0, kind="logs"))
prepare = partial(asking.asked, ask=_ASK, tokenizer=tokens.Slow)
SCENARIO = Scenario(Label("input-bound", "frontend-bound"), train, native.flag, prepare, needs=tokens.missing)
