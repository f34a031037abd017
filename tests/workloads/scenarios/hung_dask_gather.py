"""A Dask cluster on one host in the midst of a long graph: one CPU worker gathers a key from a peer that never answers.

Truth: the GPU gets nothing any more (input-bound) because CPU worker 0, a `dask-worker`, waits for ever in recv(2) (hung-worker) and its
partitions are next in order; the other worker is ahead and sleeps, the scheduler waits for both, the GPU worker `dask-cuda-work` for the
scheduler. Victims are the GPU worker and the client. Lost: 1.0 of the GPU's time once the partitions that were made are computed. A timeout
on the gather, or a restart of that worker, would fix it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import dask, native
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer


def train(_trainer: Trainer) -> None:
    dask.compute(30)


disturb = partial(native.flag, name="lost")
prepare = partial(dask.cluster, workers=2, cpu_ms=9.0, round_size=100_000, pause_s=1.0)
SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb, prepare)
