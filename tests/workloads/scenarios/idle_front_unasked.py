"""A model behind a front of another session, over a UNIX socket, until the front's clients ask for nothing more.

Truth: the GPU idles (idle) and nothing is wrong (none): the front waits for its clients, the model for the front; only requests are
missing.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import front, native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    front.engine(trainer, 25.0)


prepare = partial(front.serving, shape="alone", cpu_ms=3.0)
SCENARIO = Scenario(Label("idle", "none"), train, partial(native.flag, name="quiet"), prepare)
