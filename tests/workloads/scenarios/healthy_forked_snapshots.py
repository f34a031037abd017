"""Every 40 steps the trainer forks, and the child compresses the weights into a file while its parent trains on.

A child comes and goes each second, as Redis and some asynchronous checkpoint libraries do it, uses a CPU for a third of a second at the
lowest priority, and writes a few megabytes. The steps are launched ahead, so the fork's milliseconds pass while the GPU is at work, and
the workers are far ahead, too. Nothing is wrong.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from pathlib import Path

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario

_EVERY = 40
_WEIGHT_BYTES = 10 << 20


def train(trainer: Trainer) -> None:
    weights = os.urandom(_WEIGHT_BYTES)
    path = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "snapshot.z"
    ahead = trainer.compute_ahead(25, every=4)

    def step(batch: object) -> None:
        ahead(batch)
        if trainer.steps % _EVERY == _EVERY - 2:  # not just after a wait
            with suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            if os.fork() == 0:
                _write(path, weights)

    trainer.fit(loader(Images(cpu_ms=0.4), workers=2), step)


def _write(path: Path, weights: bytes) -> None:
    """In the child, which ends here."""
    os.nice(19)
    pack = zlib.compressobj(1)
    with path.open("wb") as file:
        for at in range(0, len(weights), 1 << 20):
            file.write(pack.compress(weights[at : at + (1 << 20)]))
        file.write(pack.flush())
    os._exit(0)


SCENARIO = Scenario(HEALTHY, train)
