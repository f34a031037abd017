"""Threads of the trainer itself unpack samples with zlib, which lets go of the GIL; from some moment on samples are twice as large.

Truth: healthy. Three threads keep a queue of eight batches full with a seventh of one CPU, later with a quarter; they wait for room in it
most of the time, and the GPU works without a gap. Nobody is a victim or to blame, and only a faster GPU would make it faster.
"""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path
from queue import Queue
from threading import Thread

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_THREADS, _ROOM = 3, 8
_SAMPLE = zlib.compress(os.urandom(1 << 14) * 16, 1)
_CPU_MS, _LARGE_CPU_MS, _STEP_MS = 6.0, 12.0, 45.0


def _unpack(ready: Queue[bytes], large: Path) -> None:
    while True:
        until = time.thread_time() + (_LARGE_CPU_MS if large.exists() else _CPU_MS) / 1e3
        while time.thread_time() < until:
            sample = zlib.decompress(_SAMPLE)
        ready.put(sample)


def train(trainer: Trainer) -> None:
    ready: Queue[bytes] = Queue(_ROOM)
    large = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "slow"
    for _ in range(_THREADS):
        Thread(target=_unpack, args=(ready, large), daemon=True).start()
    trainer.fit(iter(ready.get, None), trainer.compute(_STEP_MS, bytes_in=1 << 18))


SCENARIO = Scenario(HEALTHY, train, native.flag)
