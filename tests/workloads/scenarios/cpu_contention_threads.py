"""The script's own thread prepares the batches, and indexers take the CPU it runs on."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.workloads import handmade
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_HOGS = ("updatedb", "tracker-miner", "baloo_file")


def train(trainer: Trainer) -> None:
    trainer.fit(handmade.prefetched(cpu_ms=6), trainer.compute(55))


def disturb(running: Running) -> AbstractContextManager[None]:
    return hogs(running, dict.fromkeys(_HOGS, 3 * cpus()))


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset(_HOGS)), train, disturb)
