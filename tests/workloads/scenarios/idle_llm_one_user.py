"""A chat server in a small office: one user asks for a line of ten tokens, reads it, and asks again after a second or so.

Truth: idle, none. The GPU works on a tenth of the time, at once whenever it is asked; scheduler, detokenizer and server sleep, each for the
one before it, and the server for its client. Nothing is lost, nobody is a victim or to blame: only more requests would make it work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.workloads import chat
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer


def train(_trainer: Trainer) -> None:
    chat.serve(chat.Chat(step_ms=13.0, clients=1, tokens=10, think_s=1.1))


SCENARIO = Scenario(Label("idle", "none"), train, prepare=chat.asked)
