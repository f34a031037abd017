"""The thread that takes the workers' batches and pins their memory has died: these have nothing to do, and the trainer looks every 5 s."""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_PR_SET_NAME, _LOOKS_S = 15, 5.0


def train(trainer: Trainer) -> None:
    pinned: queue.Queue[object] = queue.Queue(2)
    threading.Thread(target=pin, args=(pinned,), daemon=True).start()
    trainer.fit(batches(pinned), trainer.compute(30))


def pin(pinned: queue.Queue[object]) -> None:
    dies = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "dies"
    for batch in loader(Images(cpu_ms=1), workers=2):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"pt_data_pin")
        pinned.put(batch)
        if dies.exists():
            threading.Event().wait()


def batches(pinned: queue.Queue[object]) -> Iterator[object]:
    while True:
        with suppress(queue.Empty):
            yield pinned.get(timeout=_LOOKS_S)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "dies").touch()
    yield


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb)
