"""Every two seconds the trainer forks, and the child packs and writes a snapshot while the parent trains on.

The child sees the memory as it was at the fork, compresses a part of it for a second with low priority, syncs the file and ends. A
burst of CPU and of writes and a process that comes and goes each time, and a step that is a few milliseconds late: the GPU is busy
nearly always, which is why people write checkpoints in this way.
"""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario

_EVERY_STEPS, _GPU_MS, _PACK_S = 50, 40, 0.8
_WEIGHTS = bytearray(os.urandom(1 << 20)) * 24


def _write_snapshot(path: Path) -> None:
    """In the child, which never returns."""
    try:
        os.nice(15)
        until = time.thread_time() + _PACK_S
        with path.open("wb") as file:
            for at in range(0, len(_WEIGHTS), 1 << 20):
                file.write(zlib.compress(_WEIGHTS[at : at + (1 << 20)], 1))
                if time.thread_time() >= until:
                    break
            file.flush()
            os.fsync(file.fileno())
    finally:
        os._exit(0)


def train(trainer: Trainer) -> None:
    compute, path = trainer.compute(_GPU_MS), Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "snapshot"
    children: list[int] = []

    def step(batch: object) -> None:
        compute(batch)
        if trainer.steps % _EVERY_STEPS == 20:
            children.append(os.fork())
            if not children[-1]:
                _write_snapshot(path)
        elif children and os.waitpid(children[0], os.WNOHANG)[0]:
            children.pop(0)

    trainer.fit(loader(Images(0.4), workers=1), step)


SCENARIO = Scenario(HEALTHY, train)
