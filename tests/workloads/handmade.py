"""Loaders without torch, as people write them: producers that fill a bounded queue, a pool that is asked ahead, a thread."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.queues import Queue
from queue import Queue as ThreadQueue
from threading import Thread

from tests.workloads.data import decode

BATCH = 8
_ROOM = 4

Sample = Callable[[int], object]
"""Makes the sample of an index."""


def batch(sample: Sample, number: int) -> int:
    """The work of a batch; what is sent back is small, so that sending costs nothing."""
    for i in range(BATCH):
        sample(number * BATCH + i)
    return number


def queued(sample: Sample, workers: int) -> Iterator[object]:
    """Batches of ``workers`` forked producers, each of which makes every n-th and waits where the queue is full."""
    fork = multiprocessing.get_context("fork")
    queue: Queue[int] = fork.Queue(_ROOM)
    for first in range(workers):
        fork.Process(target=_produce, args=(sample, queue, first, workers), daemon=True).start()
    return iter(queue.get, None)


def _produce(sample: Sample, queue: Queue[int], number: int, step: int) -> None:
    while True:
        queue.put(batch(sample, number))
        number += step


def pooled(sample: Sample, workers: int) -> Iterator[object]:
    """Batches of a `multiprocessing.Pool` that is kept `_ROOM` batches ahead for each of its processes."""
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        coming = deque(pool.apply_async(batch, (sample, number)) for number in range(_ROOM * workers))
        number = len(coming)
        while True:
            yield coming.popleft().get()
            coming.append(pool.apply_async(batch, (sample, number)))
            number += 1


def prefetched(cpu_ms: float) -> Iterator[object]:
    """Batches that a thread of this very process prepares ahead."""
    ready: ThreadQueue[object] = ThreadQueue(2)

    def prepare() -> None:
        while True:
            ready.put([decode(cpu_ms) for _ in range(BATCH)])

    Thread(target=prepare, daemon=True).start()
    return iter(ready.get, None)
