"""Conversations come as JSON lines: an event loop in a thread gives each batch to an executor, whose threads parse it.

`json.loads` holds the GIL, so three threads parse no faster than one. They keep one CPU busy and stand in each other's way, and in
that of the main thread, which needs the GIL to launch, while a CPU idles. In processes the same work would be done in half the
time: the GIL is the cause.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from threading import Thread

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario, cpus

_THREADS, _CPU_MS, _GPU_MS = 3, 60, 20
_TURN = {"role": "user", "content": "Could you tell me, in a few words, what a mutex is for? " * 4, "scores": [0.1, 0.25, 0.7]}
_LINE = json.dumps({"id": 17, "turns": [_TURN] * 12, "tags": {"lang": "en", "source": "forum"}})


def _parse() -> int:
    until, turns = time.thread_time() + _CPU_MS / 1e3, 0
    while time.thread_time() < until:
        turns += len(json.loads(_LINE)["turns"])
    return turns


async def _keep_ahead(ready: Queue[int]) -> None:
    loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(_THREADS, thread_name_prefix="json")
    coming = {loop.run_in_executor(pool, _parse) for _ in range(2 * _THREADS)}
    while True:
        done, coming = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
        for batch in done:
            while ready.full():
                await asyncio.sleep(0.002)
            ready.put(batch.result())
            coming.add(loop.run_in_executor(pool, _parse))


def _batches() -> Iterator[int]:
    ready: Queue[int] = Queue(4)
    Thread(target=asyncio.run, args=(_keep_ahead(ready),), daemon=True).start()
    while True:
        yield ready.get()


def train(trainer: Trainer) -> None:
    trainer.fit(_batches(), trainer.compute(_GPU_MS))


SCENARIO = Scenario(Label("input-bound", "gil-contention"), train, needs=lambda: "" if cpus() > 1 else "one CPU is all there is")
