"""A trainer that talks a lot: two heartbeats, a sampler of /proc, a progress bar through a pipe, and a line of metrics for each step.

Nine threads wake hundreds of times a second, a decoding pool of threads works ahead with zlib, which releases the GIL, and a subprocess
swallows the progress bar. Each of them takes microseconds when it wakes, and a step's loss is asked for once. The GPU works without a gap
worth the name. Nothing is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

from tests.workloads.data import decode
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_DECODERS, _AHEAD, _BATCH = 4, 6, 8


def train(trainer: Trainer) -> None:
    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    bar = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    compute = trainer.compute(40, kernels=2)

    def draw() -> None:
        os.write(bar.stdin.fileno(), f"\r{trainer.steps:6} steps {'#' * (trainer.steps % 60):60}".encode())  # type: ignore[union-attr]

    def sample() -> None:
        Path("/proc/self/stat").read_text().split()

    def beat() -> None:
        (folder / "alive").write_text(str(time.time()))

    for work, per_s in ((draw, 100), (sample, 50), (sample, 50), (beat, 20), (beat, 20)):
        Thread(target=_each, args=(work, 1 / per_s), daemon=True).start()
    with (folder / "metrics.jsonl").open("w", buffering=1) as metrics:

        def step(batch: object) -> None:
            compute(batch)
            metrics.write(json.dumps({"step": trainer.steps, "loss": 2.3, "lr": 1e-4}) + "\n")

        trainer.fit(_batches(), step)


def _each(work: Callable[[], None], pause_s: float) -> None:
    while True:
        work()
        time.sleep(pause_s)


def _batches() -> Iterator[object]:
    with ThreadPoolExecutor(_DECODERS) as pool:
        coming = deque(pool.submit(_decoded) for _ in range(_AHEAD))
        while True:
            yield coming.popleft().result()
            coming.append(pool.submit(_decoded))


def _decoded() -> list[object]:
    return [decode(0.6) for _ in range(_BATCH)]


SCENARIO = Scenario(HEALTHY, train)
