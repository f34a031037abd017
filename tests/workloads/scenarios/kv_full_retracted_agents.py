"""SGLang for agents that call tools, until they begin to write whole programs: answers forty times as long.

Truth: there is room for the keys and values of four or five such answers; of twelve requests the others wait, and those that came last are
retracted again and again and begin anew (kv-full). The GPU runs passes without a pause and does little in each (busy-not-working). More
memory for keys and values, or 8 bits for each, would fix it; a faster CPU would not.
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
    program.become_command(deployed.sglang_command("--mem-fraction-static 0.55"), serve)


def serve() -> None:
    deployed.sglang(Plan(pass_ms=14.0, kv_tokens=2400, blocks_each=6))


_ASK = Ask(clients=12, first=Text(answer=15, characters=600), then=Text(answer=600, characters=600), path="/generate")
prepare = partial(asking.asked, ask=_ASK, tokenizer=tokens.Slow)
SCENARIO = Scenario(Label("busy-not-working", "kv-full"), train, native.flag, prepare, needs=tokens.missing)
