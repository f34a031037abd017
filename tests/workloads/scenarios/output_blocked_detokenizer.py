"""A chat server whose clients begin to ask for the probabilities of all alternatives: the one detokenizer process cannot keep up.

Truth: the GPU has nothing to do most of the time (input-bound) because the scheduler blocks in its send to the detokenizer, whose socket is
full (output-blocked); the culprit `sglang::detok` runs at a full core, 95 ms of Python for a step of 25 ms. The victims are the scheduler
`sglang::schedul`, which has eight requests under way all the time, the server and its clients. Lost: 0.74 of the GPU's time. More
detokenizer processes, or less of them in Python, would fix it; more requests or a faster tokenizer would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.workloads import chat, native
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running


def train(_trainer: Trainer) -> None:
    chat.serve(chat.Chat(step_ms=25.0, clients=8, tokens=200, cpu_ms=3.0, slow_cpu_ms=95.0))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    [detokenizer] = running.named(chat.DETOKENIZER)
    running.blame(detokenizer, chat.DETOKENIZER)
    with native.flag(running):
        yield
    running.account()


SCENARIO = Scenario(Label("input-bound", "output-blocked", frozenset({chat.DETOKENIZER})), train, disturb, chat.asked)
