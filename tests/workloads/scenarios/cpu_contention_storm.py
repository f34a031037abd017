"""A build on the same host: compilers that live for a third of a second each, always some of them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.stubs.build import build
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_COMPILER = "cc1plus"


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=8), workers=cpus()), trainer.compute(80 / cpus()))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    compiler = build(Path(__file__).parents[1] / "hog.c", _COMPILER, program=True)
    make = f"while :; do {compiler} 0.3 2; done"  # ends by itself, so that the shell, and with it the bench, gets to know its CPU time
    jobs = " ".join(f"( {make} ) &" for _ in range(2 * cpus()))
    with running.child(["timeout", str(int(running.seconds) + 5), "bash", "-c", f"{jobs} wait"], stderr=subprocess.DEVNULL):
        yield


SCENARIO = Scenario(Label("input-bound", "cpu-contention"), train, disturb)
