"""SGLang whose clients begin to ask for the twenty likeliest alternatives of each token, as text.

Truth: the GPU starves (input-bound), because `sglang::detokenizer`, one process, runs all the time (frontend-bound): it needs 70 ms for the
tokens of a pass of 12 ms. The scheduler does not wait for it, for their socket keeps what is not read yet; but answers end late, and with
twelve clients who wait for theirs, nobody asks for more. Alternatives as numbers would fix it, and so would more such processes; more
tokenizers would not.
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
    program.become_command(deployed.sglang_command("--tp-size 1 --log-level warning"), serve)


def serve() -> None:
    deployed.sglang(Plan(pass_ms=12.0), detokenize_ms=(1.0, 70.0))


prepare = partial(asking.asked, ask=Ask(clients=12, first=Text(answer=12, characters=500)), tokenizer=tokens.Slow)
SCENARIO = Scenario(Label("input-bound", "frontend-bound"), train, native.flag, prepare, needs=tokens.missing)
