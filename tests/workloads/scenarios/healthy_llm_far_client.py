"""A chat server with six clients, of which one gets onto a bad line: it reads a chunk now and then, and the server keeps the rest for it.

Truth: healthy. The slow client's answer is made as fast as the others' and waits in the server; the scheduler goes on with the five others,
whose requests fill each step as before (lost: 0.05). Nobody is a victim or to blame.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import chat, native
from tests.workloads.scenario import HEALTHY, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer


def train(_trainer: Trainer) -> None:
    chat.serve(chat.Chat(step_ms=32.0, clients=6, tokens=150))


SCENARIO = Scenario(HEALTHY, train, partial(native.flag, name="far"), chat.asked)
