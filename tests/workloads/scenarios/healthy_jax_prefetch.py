"""A JAX-like script: a thread puts batches on the device two ahead, steps are dispatched without a wait, and each eighth loss is read.

Truth: healthy. The thread inflates a batch in 6 ms, mostly without the GIL, and waits for room in its queue the rest of the time; launches
run ahead of the GPU, which works without a gap (lost: 0.02). From some moment on batches cost twice as much, which is still a third of a
step. Nobody is a victim or to blame.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import zlib
from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import native, program
from tests.workloads.scenario import HEALTHY, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer

_STEP_MS, _CPU_MS = 36.0, 6.0
_BATCH_BYTES = 512 << 10
_LOSS_EVERY = 8


def train(_trainer: Trainer) -> None:
    program.become(fit)


def fit() -> None:
    """`for step, batch in enumerate(prefetch_to_device(it, 2)): state, loss = update(state, batch)`."""
    job, ready = program.Job(), queue.Queue[bytes](2)
    threading.Thread(target=_prefetch, args=(ready,), name="prefetch", daemon=True).start()
    number = 0
    while True:
        ready.get()
        job.gpu.copy_in(_BATCH_BYTES, pinned=True)
        for _ in range(12):
            job.gpu.launch(_STEP_MS / 12)
        number += 1
        if number % _LOSS_EVERY == 0:
            job.gpu.synchronize()
        job.step()


def _prefetch(ready: queue.Queue[bytes]) -> None:
    packed = zlib.compress(os.urandom(_BATCH_BYTES // 8) * 8, 1)
    while True:
        until = time.thread_time() + (2 if program.raised("harder") else 1) * _CPU_MS / 1e3
        while time.thread_time() < until:
            batch = zlib.decompress(packed)
        ready.put(batch)


SCENARIO = Scenario(HEALTHY, train, partial(native.flag, name="harder"))
