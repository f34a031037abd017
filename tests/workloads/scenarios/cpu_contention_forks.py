"""Monitoring scripts in shell: thousands of programs, each only a fork, an exec and an exit, and gone within a millisecond or two."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_CHECK = "while :; do /bin/true; done"


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=8), workers=cpus()), trainer.compute(80 / cpus()))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    checks = " ".join(f"( {_CHECK} ) &" for _ in range(4 * cpus()))
    command = ["timeout", "-s", "KILL", str(int(running.seconds) + 5), "bash", "-c", f"{checks} wait"]
    with running.child(command, stderr=subprocess.DEVNULL):
        yield


SCENARIO = Scenario(Label("input-bound", "cpu-contention"), train, disturb)
