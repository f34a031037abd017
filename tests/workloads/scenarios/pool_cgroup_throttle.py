"""A home-made loader's pool in a control group that gets a quota of 0.5 CPUs."""

from __future__ import annotations

from tests.workloads import cgroup, handmade
from tests.workloads.data import Images
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario
from tests.workloads.scenarios.cgroup_throttle import disturb, prepare


def train(trainer: Trainer) -> None:
    trainer.fit(handmade.pooled(Images(cpu_ms=4).__getitem__, workers=3), trainer.compute(35))


SCENARIO = Scenario(Label("input-bound", "cgroup-throttle"), train, disturb, prepare, needs=lambda: cgroup.missing("cpu"))
