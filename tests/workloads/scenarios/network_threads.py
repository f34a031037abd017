"""No workers: threads of the trainer fetch samples ahead from an object store, each over a connection it keeps, and the store slows."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from http.client import HTTPConnection
from threading import local

import torch

from tests.workloads import web
from tests.workloads.data import decode
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_SAMPLE_BYTES = 150_000
_THREADS, _BATCH, _AHEAD = 5, 8, 3
_mine = local()


def fetch(index: int) -> torch.Tensor:
    if not hasattr(_mine, "connection"):
        _mine.connection = HTTPConnection("127.0.0.1", int(os.environ["GPUTOP_WEB_PORT"]))
    _mine.connection.request("GET", f"/bucket/{index}.jpg")
    _mine.connection.getresponse().read()
    return decode(0.2)


def batches(pool: ThreadPoolExecutor) -> Iterator[torch.Tensor]:
    """Batches whose samples are asked for `_AHEAD` batches before they are needed."""
    coming = deque(pool.submit(fetch, i) for i in range(_BATCH * _AHEAD))
    while True:
        coming.extend(pool.submit(fetch, i) for i in range(_BATCH))
        yield torch.stack([coming.popleft().result() for _ in range(_BATCH)])


def train(trainer: Trainer) -> None:
    with ThreadPoolExecutor(_THREADS) as pool:
        trainer.fit(batches(pool), trainer.compute(25))


def prepare(running: Running) -> AbstractContextManager[None]:
    return web.serving(running, os.urandom(_SAMPLE_BYTES))


SCENARIO = Scenario(Label("input-bound", "network-io"), train, web.slow, prepare)
