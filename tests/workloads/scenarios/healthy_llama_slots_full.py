"""`llama-server` with six slots and, from some moment on, three times as long questions of fourteen users: eight always wait for a slot.

Truth: nothing is wrong. The GPU computes one pass after the other, on all its SMs, for six requests each; threads that take requests and
make tokens of them need a tenth of a CPU. That users wait is what a full server looks like: only a faster GPU would serve them faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.workloads import asking, llama, native, tokens
from tests.workloads.asking import Ask, Text
from tests.workloads.scenario import HEALTHY, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running


def train(_trainer: Trainer) -> None:
    native.become(llama.command("-np 6 -cb"))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """The program, and its users."""
    running.env["PASS_MS"] = "26"
    first, then = Text(answer=40, characters=500), Text(answer=40, characters=1500)
    ask = Ask(clients=14, first=first, then=then, path="/completion", called="chat-ui")
    with llama.built(running), asking.asked(running, ask):
        yield


SCENARIO = Scenario(HEALTHY, train, native.flag, prepare, needs=lambda: native.missing() or tokens.missing())
