"""A thread of the trainer itself, a metrics reporter in pure Python, keeps the interpreter lock from the training loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads.data import Images, numbers
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    compute, flag = trainer.compute(30), Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "report"

    def step(batch: object) -> None:
        if flag.exists():
            flag.unlink()
            threading.Thread(target=_report, name="reporter", daemon=True).start()
        numbers(2)
        compute(batch)

    trainer.fit(loader(Images(cpu_ms=0.3), workers=2), step)


def _report() -> None:
    while True:
        numbers(50)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "report").touch()
    yield


SCENARIO = Scenario(Label("wait-heavy", "gil-contention"), train, disturb)
