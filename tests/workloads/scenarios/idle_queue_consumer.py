"""A consumer of a queue of jobs: its main thread sleeps at the broker's socket, and four jobs come every two seconds.

Truth: idle, none. Broker and producer sleep as well between the jobs; nobody is to blame.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import lulls
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer


def train(_trainer: Trainer) -> None:
    lulls.consume(25.0, "reads")


prepare = partial(lulls.serving, producers=1, jobs=4, cpu_ms=1.0, pause_s=2.0)
SCENARIO = Scenario(Label("idle", "none"), train, prepare=prepare)
