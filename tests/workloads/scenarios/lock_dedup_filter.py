"""Four processes tokenize, and each looks its documents up in one Bloom filter in shared memory, behind one lock.

The lock is taken for a whole batch, and what is done under it takes fifteen times as long as what is not. So one process works and
three wait for it, whatever their number; the other CPUs idle, and so does the GPU for half of the time. A lock for each slice of
the filter would let them all work: the lock is the cause.
"""

from __future__ import annotations

import ctypes
import time
import zlib
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Lock

from tests.workloads.data import numbers
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario, cpus

_PROCESSES, _FILTER_BYTES = 4, 1 << 20
_TOKENIZE_MS, _LOOK_UP_MS, _GPU_MS = 3, 45, 20


def _look_up(bits: memoryview, document: int) -> int:
    """How many of the document's n-grams had been seen; all have now."""
    until, seen = time.thread_time() + _LOOK_UP_MS / 1e3, 0
    while time.thread_time() < until:
        document = zlib.crc32(document.to_bytes(8, "little"))
        at, bit = document // 8 % _FILTER_BYTES, 1 << document % 8
        seen += bool(bits[at] & bit)
        bits[at] |= bit
    return seen


def deduplicate(bits: ctypes.Array[ctypes.c_ubyte], lock: Lock, batches: Queue[int], number: int) -> None:
    """Batch after batch, each of documents that are new."""
    while True:
        number += numbers(_TOKENIZE_MS) % 7919
        with lock:
            seen = _look_up(memoryview(bits).cast("B"), number)
        batches.put(seen)


def train(trainer: Trainer) -> None:
    forkserver = get_context("forkserver")
    bits, lock, batches = forkserver.RawArray(ctypes.c_ubyte, _FILTER_BYTES), forkserver.Lock(), forkserver.Queue(4)
    for number in range(_PROCESSES):
        forkserver.Process(target=deduplicate, args=(bits, lock, batches, number), daemon=True).start()
    trainer.fit(iter(batches.get, None), trainer.compute(_GPU_MS))


SCENARIO = Scenario(Label("input-bound", "lock-contention"), train, needs=lambda: "" if cpus() > 1 else "one CPU is all there is")
