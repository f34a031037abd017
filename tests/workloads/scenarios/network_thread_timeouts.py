"""Each worker fetches a batch with a pool of threads, over connections with a time limit, which are polled; then the store slows."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from http.client import HTTPConnection
from threading import local

import torch

from tests.workloads import web
from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_OBJECT_BYTES, _THREADS = 400_000, 6
_mine = local()


def fetch(index: int) -> bytes:
    """One object, over this thread's own connection."""
    if not hasattr(_mine, "connection"):
        _mine.connection = HTTPConnection("127.0.0.1", int(os.environ["GPUTOP_WEB_PORT"]), timeout=30)
    _mine.connection.request("GET", f"/bucket/{index}.npy")
    return bytes(_mine.connection.getresponse().read())


class Objects(Images):
    """Whole batches, as `__getitems__` asks for them."""

    pool: ThreadPoolExecutor | None = None

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        self.pool = self.pool or ThreadPoolExecutor(_THREADS, thread_name_prefix="fetch")
        return [decode(self.cpu_ms) for _ in self.pool.map(fetch, indices)]


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Objects(0.3), workers=2, batch=12), trainer.compute(35))


def prepare(running: Running) -> AbstractContextManager[None]:
    return web.serving(running, os.urandom(_OBJECT_BYTES))


SCENARIO = Scenario(Label("input-bound", "network-io"), train, web.slow, prepare)
