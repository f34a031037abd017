"""Every some steps the script packs its whole experiment folder (code, logs, sample images) with `shutil.make_archive`.

The call runs in the main thread and compresses for more than a second; no kernel is launched meanwhile and the workers stand
with full queues. Between two archives training is as quick as it should be. The regular halt for the archive, a checkpoint of
files, is the cause.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_EVERY_STEPS = 50
_FILES, _FILE_BYTES = 26, 1_500_000


def train(trainer: Trainer) -> None:
    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    compute = trainer.compute(22)

    def step(batch: object) -> None:
        compute(batch)
        if trainer.steps % _EVERY_STEPS == _EVERY_STEPS - 1:
            shutil.make_archive(str(folder / "snapshot"), "gztar", folder / "experiment")

    trainer.fit(loader(Images(cpu_ms=0.6), workers=2), step)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """Logs and images: half text, half noise."""
    folder, chance = running.folder / "experiment", random.Random(11)
    folder.mkdir()
    lines = [f"step {n} loss {chance.random():.6f} lr {chance.random():.3e}\n".encode() for n in range(2000)]
    text = b"".join(chance.choices(lines, k=_FILE_BYTES // 64))
    for number in range(_FILES):
        (folder / f"run-{number:02}.log").write_bytes(text + chance.randbytes(_FILE_BYTES // 2))
    yield


SCENARIO = Scenario(Label("idle", "pause"), train, prepare=prepare)
