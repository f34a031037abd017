"""After each step the script posts its loss to a tracking server and waits for the answer, and the server becomes slow."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager
from http.client import HTTPConnection

from tests.workloads import receiver, web
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_LATE_S = 0.08


def train(trainer: Trainer) -> None:
    compute, server = trainer.compute(60), HTTPConnection("127.0.0.1", int(os.environ["GPUTOP_WEB_PORT"]))

    def step(batch: object) -> None:
        compute(batch)
        trainer.gpu.copy_out()
        metrics = {"step": trainer.steps, "loss": 1 / (1 + trainer.steps), "lr": 3e-4}
        server.request("POST", "/api/runs/42/log", json.dumps(metrics), {"Content-Type": "application/json"})
        server.getresponse().read()

    trainer.fit(loader(Images(cpu_ms=0.5), workers=2), step)


def prepare(running: Running) -> AbstractContextManager[None]:
    return receiver.taking(running, late_s=_LATE_S)


SCENARIO = Scenario(Label("input-bound", "network-io"), train, web.slow, prepare)
