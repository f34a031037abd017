"""A consumer of a queue of jobs with a thread that reads ahead: six jobs come every two and a half seconds.

Truth: idle, none. The main thread sleeps at its own queue, that thread at the broker's socket, broker and producer as well.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import lulls
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer


def train(_trainer: Trainer) -> None:
    lulls.consume(20.0, "thread")


prepare = partial(lulls.serving, producers=1, jobs=6, cpu_ms=1.0, pause_s=2.5)
SCENARIO = Scenario(Label("idle", "none"), train, prepare=prepare)
