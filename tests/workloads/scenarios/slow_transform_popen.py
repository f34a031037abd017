"""Two loaders that the script starts with `subprocess`, a pipe each; a rate limit of their source lets them sleep for most of the time."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_LOADERS, _GPU_MS, _BATCH_BYTES, _LIMIT_S = 2, 8, 4096, 0.08
_LOAD = f"""
import os, time
while True:
    time.sleep({_LIMIT_S})
    os.write(1, bytes({_BATCH_BYTES}))
"""


def _batches() -> Iterator[bytes]:
    loaders = [subprocess.Popen([sys.executable, "-S", "-c", _LOAD], stdout=subprocess.PIPE) for _ in range(_LOADERS)]
    for loader in itertools.cycle(loaders):
        assert loader.stdout is not None
        yield loader.stdout.read(_BATCH_BYTES)


def train(trainer: Trainer) -> None:
    trainer.fit(_batches(), trainer.compute(_GPU_MS))


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train)
