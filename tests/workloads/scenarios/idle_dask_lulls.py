"""A Dask cluster on one host that a notebook asks for a small result now and then: six partitions through a GPU worker, each two seconds.

Truth: idle, none. A round of six partitions takes 0.15 s, then the client looks at the result, and scheduler, CPU workers and GPU worker
sleep at each other's sockets for there is no task. The GPU works a twelfth of the time and nothing is lost; nobody is a victim or to blame.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import dask
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer


def train(_trainer: Trainer) -> None:
    dask.compute(24)


prepare = partial(dask.cluster, workers=2, cpu_ms=3.0, round_size=6, pause_s=1.7)
SCENARIO = Scenario(Label("idle", "none"), train, prepare=prepare)
