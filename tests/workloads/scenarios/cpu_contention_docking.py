"""A co-tenant's Slurm array starts on the node: tasks of two-threaded docking runs, each below a batch script in a session of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.stubs.build import build
from tests.workloads import hogs
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running, descendants
from tests.workloads.scenario import Label, Scenario, cpus

_SOURCE, _DOCKING = Path(hogs.__file__).with_name("hog.c"), "vina"
_THREADS, _DUTY_PCT, _LIGAND_MS = 2, 96, 1500


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=3), workers=cpus()), trainer.compute(80 / cpus()))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    vina = build(_SOURCE, _DOCKING, program=True)
    script = running.folder / "slurm_script"
    run = f"{vina} {int(running.seconds) + 5} {_THREADS} {_DUTY_PCT} {_LIGAND_MS}"
    script.write_text(f"#!/bin/sh\n{run}\necho docked\n")
    script.chmod(0o755)
    with ExitStack() as stack:
        tasks = [stack.enter_context(running.child([str(script)])).pid for _ in range(4 * cpus())]
        while len(docking := descendants(tasks)) < len(tasks):
            time.sleep(0.02)
        for pid in docking:
            running.blame(pid, _DOCKING)
        yield
        running.account()


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset({_DOCKING})), train, disturb)
