"""A learner that polls the hub of its two actors: each plays three short episodes every three seconds, when there is a game.

Truth: idle, none. Actors, hub and learner wait for the next game; the CPUs idle.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import lulls
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer


def train(_trainer: Trainer) -> None:
    lulls.consume(20.0, "polls")


prepare = partial(lulls.serving, producers=2, jobs=3, cpu_ms=8.0, pause_s=3.0)
SCENARIO = Scenario(Label("idle", "none"), train, prepare=prepare)
