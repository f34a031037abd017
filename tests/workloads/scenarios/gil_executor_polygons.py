"""Masks of COCO polygons are drawn by a `ThreadPoolExecutor` of six threads in the trainer itself, in pure Python.

The executor is asked far ahead, and all of its threads always have work; but only one of them can run, the one which
holds the GIL, and the main thread has to get it from them for each launch. One CPU is busy and the others idle, whatever the number of
threads. In processes the same code would keep up. Waiting for the GIL is the cause.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_THREADS, _BATCH, _AHEAD = 6, 8, 24
_SIDE, _CORNERS = 56, 14

Polygon = list[tuple[float, float]]


def _mask(polygon: Polygon) -> list[bytearray]:
    """Even-odd filling, line by line."""
    rows = [bytearray(_SIDE) for _ in range(_SIDE)]
    for y, row in enumerate(rows):
        crossings = []
        for (x0, y0), (x1, y1) in zip(polygon, polygon[1:] + polygon[:1], strict=True):
            if (y0 <= y) != (y1 <= y):
                crossings.append(x0 + (y - y0) * (x1 - x0) / (y1 - y0))
        crossings.sort()
        for left, right in zip(crossings[::2], crossings[1::2], strict=False):
            for x in range(max(0, int(left)), min(_SIDE, int(right) + 1)):
                row[x] = 1
    return rows


def _sample(index: int) -> list[list[bytearray]]:
    chance = random.Random(index)
    return [_mask([(chance.uniform(0, _SIDE), chance.uniform(0, _SIDE)) for _ in range(_CORNERS)]) for _ in range(26)]


def _batches() -> Iterator[object]:
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="masks") as threads:
        coming = deque(threads.submit(_sample, index) for index in range(_AHEAD))
        index = _AHEAD
        while True:
            yield [coming.popleft().result() for _ in range(_BATCH)]
            for _ in range(_BATCH):
                coming.append(threads.submit(_sample, index))
                index += 1


def train(trainer: Trainer) -> None:
    trainer.fit(_batches(), trainer.compute(22))


SCENARIO = Scenario(Label("input-bound", "gil-contention"), train)
