"""TGI that classifies texts, with one validation worker; the texts become whole documents.

Truth: the GPU starves (input-bound), because the one thread of the router that makes tokens runs all the time (frontend-bound), 60 ms a
document, for an answer of two tokens. The router's event loop, the launcher and the shard have time; so has a CPU. More validation workers
would fix it; more shards would not.
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
    program.become_command(deployed.tgi_command("--validation-workers 1"), serve)


def serve() -> None:
    deployed.tgi(Plan(pass_ms=10.0), validation_workers=1)


_ASK = Ask(clients=6, first=Text(answer=2, cpu_ms=2.0), then=Text(answer=2, cpu_ms=60.0), path="/generate_stream", called="k6")
SCENARIO = Scenario(Label("input-bound", "frontend-bound"), train, native.flag, partial(asking.asked, ask=_ASK), needs=tokens.missing)
