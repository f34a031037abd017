"""Workers fetch their samples from an object store that answers slowly."""

from __future__ import annotations

import os
import socket

import torch

from tests.workloads import store, web
from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


class Remote(Images):
    """Samples behind a TCP connection kept open by each worker."""

    connection: socket.socket | None = None

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.connection is None:
            self.connection = socket.create_connection(("127.0.0.1", int(os.environ["GPUTOP_STORE_PORT"])))
        store.fetch(self.connection)
        return decode(self.cpu_ms)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Remote(0.3), workers=2), trainer.compute(30))


SCENARIO = Scenario(Label("input-bound", "network-io"), train, web.slow, store.serving)
