"""A script that logs everything: JSON lines each step, a progress bar, histograms from a pool, system metrics from a thread.

Two dozen threads wake up many times a second, a summary writer flushes its file, and a line of losses is written and flushed for
each step. All of that together costs a few per cent of a CPU and happens while the GPU computes: each step's kernels are
launched before its log is written. The GPU waits for nothing, so nothing is wrong.
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from threading import Event, Thread

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario

_WATCHERS = 20


def _write_summaries(path: Path, events: Queue[dict[str, float]]) -> None:
    with path.open("w") as file:
        while True:
            file.write(json.dumps(events.get()) + "\n")
            if events.empty():
                file.flush()


def _metrics(events: Queue[dict[str, float]]) -> None:
    while True:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        events.put({"t": time.time(), "rss": resident, "load": os.getloadavg()[0]})
        time.sleep(0.1)


def _watch() -> None:
    """A heartbeat, a file watcher, a keep-alive: it looks and sleeps on."""
    while not Event().wait(0.05):
        pass


def _histogram(step: int) -> dict[str, float]:
    values = [(step * 7919 + i * 104729) % 1000 / 1000 for i in range(200)]
    return {f"bin{i}": sum(i / 8 <= value < (i + 1) / 8 for value in values) for i in range(8)}


def _progress(steps: int) -> str:
    return f"\rtrain: {steps} steps [{'=' * (steps % 40):40}] loss={1 / (1 + steps):.4f}"


def train(trainer: Trainer) -> None:
    folder, events, gpu = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]), Queue[dict[str, float]](), trainer.gpu
    for work in [lambda: _write_summaries(folder / "events", events), lambda: _metrics(events), *[_watch] * _WATCHERS]:
        Thread(target=work, daemon=True).start()
    pool, log = ThreadPoolExecutor(2), (folder / "log.jsonl").open("w")
    bar = (folder / "console").open("w", buffering=1)

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20, pinned=True)
        for _ in range(4):
            gpu.launch(6)
        print(json.dumps({"step": trainer.steps, "loss": 1 / (1 + trainer.steps), "lr": 3e-4}), file=log, flush=True)
        bar.write(_progress(trainer.steps))
        if trainer.steps % 10 == 0:
            pool.submit(lambda: events.put(_histogram(trainer.steps)))
        gpu.synchronize()

    trainer.fit(loader(Images(cpu_ms=0.7), workers=2), step)


SCENARIO = Scenario(HEALTHY, train)
