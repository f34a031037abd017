"""SGLang whose detokenizer is stopped: somebody has attached a debugger to it and has gone to lunch.

Truth: answers reach nobody any more, so nobody asks for another, and the GPU has nothing to do (input-bound), because `sglang::detokenizer`
is stopped (hung-worker). The scheduler waits to be asked, the server for texts, and the clients for the server. SIGCONT, or a new start,
would fix it; no more of anything would.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import asking, deployed, program, tokens
from tests.workloads.asking import Ask, Text
from tests.workloads.scenario import Label, Scenario
from tests.workloads.serving import Plan

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_NAME = "sglang::detokenizer"


def train(_trainer: Trainer) -> None:
    program.become_command(deployed.sglang_command("--stream-interval 2"), serve)


def serve() -> None:
    deployed.sglang(Plan(pass_ms=20.0))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    """The stop, until the end."""
    [detokenizer] = running.named(_NAME[:15])
    os.kill(detokenizer, signal.SIGSTOP)
    yield
    os.kill(detokenizer, signal.SIGCONT)


prepare = partial(asking.asked, ask=Ask(clients=8, first=Text(answer=40, characters=700)), tokenizer=tokens.Slow)
SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb, prepare, needs=tokens.missing)
