"""A trainer with two helpful threads: one unpacks the next batches, another redraws the loss curve as SVG over and over.

The drawing is Python over the whole history, never rests and never releases the interpreter's lock by itself. The unpacking thread needs 9
ms of Python for a batch, less than the GPU's 16, but gets the lock only every other five milliseconds, and the main thread waits for it
behind each call into CUDA. One CPU is busy, one idles. All three fight for the GIL.
"""

from __future__ import annotations

import json
import math
import queue
import time
from collections.abc import Iterator
from threading import Thread

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_UNPACK_CPU_MS = 9
_ROWS = json.dumps([[number, number * 0.25, f"row {number}"] for number in range(60)])


def train(trainer: Trainer) -> None:
    losses = [2 + math.exp(-step / 900) + math.sin(step) / 40 for step in range(20_000)]
    ready: queue.Queue[list[float]] = queue.Queue(3)
    Thread(target=_unpack, args=(ready,), daemon=True).start()
    Thread(target=_redraw, args=(losses,), daemon=True).start()
    compute = trainer.compute(16, kernels=8)

    def step(batch: object) -> None:
        compute(batch)
        losses.append(2.0)

    trainer.fit(_batches(ready), step)


def _batches(ready: queue.Queue[list[float]]) -> Iterator[list[float]]:
    while True:
        yield ready.get()


def _unpack(ready: queue.Queue[list[float]]) -> None:
    while True:
        until, rows = time.thread_time() + _UNPACK_CPU_MS / 1e3, [0.0]
        while time.thread_time() < until:
            rows = [float(value) + len(text) for _, value, text in json.loads(_ROWS)]
        ready.put(rows)


def _redraw(losses: list[float]) -> None:
    while True:
        low, high = min(losses), max(losses)
        points, mean = [], losses[0]
        for step, loss in enumerate(losses):
            mean = 0.98 * mean + 0.02 * loss
            points.append(f"{640 * step / len(losses):.1f},{480 * (high - mean) / (high - low):.1f}")
        f'<svg><polyline points="{" ".join(points)}"/></svg>'.encode()


SCENARIO = Scenario(Label("input-bound", "gil-contention"), train)
