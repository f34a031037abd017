"""A chat server under steady load: eight clients stream answers of 120 tokens, and each asks again as soon as it has one.

Truth: healthy. The scheduler has requests in each step; tokenizing, detokenizing and streaming take a tenth of a CPU in other processes. No
step waits for any of them (lost: 0.05, the host's part of a step). Nobody is a victim or to blame; only a faster GPU would serve faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.workloads import chat
from tests.workloads.scenario import HEALTHY, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer


def train(_trainer: Trainer) -> None:
    chat.serve(chat.Chat(step_ms=28.0, clients=8, tokens=120))


SCENARIO = Scenario(HEALTHY, train, prepare=chat.asked)
