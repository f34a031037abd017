"""A nightly backup begins beside the job: `tar` walks thousands of small files, `zstd` packs them, both with low priority.

They take a CPU and more as long as they run, read files all the time and write a pipe. The job needs a tenth of the machine,
has deep queues and long steps, and reads nothing from that disk. Its queues stay full and its GPU stays busy: the neighbour is
loud and harmless, nothing is wrong.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_FOLDERS, _FILES, _FILE_BYTES = 20, 60, 24_000
_IDLE = ["chrt", "--idle", "0", "nice", "-n", "19"]


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=0.8), workers=2, start="forkserver", prefetch_factor=6), trainer.compute(60))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """Somebody's home directory."""
    chance = random.Random(2)
    for number in range(_FOLDERS):
        folder = running.folder / "home" / f"project-{number:02}"
        folder.mkdir(parents=True)
        for file in range(_FILES):
            (folder / f"note-{file:03}.txt").write_bytes(chance.randbytes(600) * (_FILE_BYTES // 600))
    yield


@contextmanager
def backup(running: Running) -> Iterator[None]:
    """Again and again, so that it lasts as long as a large one would."""
    walk = [*_IDLE, "sh", "-c", 'while tar --create --file=- --directory="$0" .; do :; done', str(running.folder / "home")]
    with running.child(walk, stdout=subprocess.PIPE) as tar:
        pack = [*_IDLE, "zstd", "-q", "-6", "--single-thread", "--stdout"]
        with running.child(pack, stdin=tar.stdout, stdout=subprocess.DEVNULL):
            yield


SCENARIO = Scenario(HEALTHY, train, backup, prepare)
