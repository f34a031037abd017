"""A consumer of batches that one tokenizer behind a broker makes without a pause, at a full core.

Truth: the GPU starves (input-bound): a batch takes the tokenizer 45 ms and the GPU 12 ms (slow-transform). The broker only hands on.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import lulls
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer


def train(_trainer: Trainer) -> None:
    lulls.consume(12.0, "reads")


prepare = partial(lulls.serving, producers=1, jobs=1, cpu_ms=45.0, pause_s=0.0)
SCENARIO = Scenario(Label("input-bound", "slow-transform"), train, prepare=prepare)
