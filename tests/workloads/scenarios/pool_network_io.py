"""A `multiprocessing.Pool` that fetches its samples from a store which answers slowly."""

from __future__ import annotations

from tests.workloads import handmade, store, web
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario
from tests.workloads.scenarios.network_io import Remote


def train(trainer: Trainer) -> None:
    trainer.fit(handmade.pooled(Remote(0.3).__getitem__, workers=2), trainer.compute(30))


SCENARIO = Scenario(Label("input-bound", "network-io"), train, web.slow, store.serving)
