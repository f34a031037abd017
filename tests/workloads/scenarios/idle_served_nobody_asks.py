"""A vLLM whose clients leave: it has no requests any more.

Truth: nothing is wrong, the GPU has nothing to do (idle): no requests are no fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import served
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    served.engine(trainer, pass_ms=15.0)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    """The clients ask no more."""
    (running.folder / "quiet").touch()
    yield


SCENARIO = Scenario(Label("idle", "none"), train, disturb, partial(served.asked, clients=8, answer=20))
