"""A thread of each worker downloads shards into a cache on disk, as Mosaic's streaming does, the worker polls; the bucket slows."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

import torch
from torch.utils.data import IterableDataset

from tests.workloads import web
from tests.workloads.data import decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_SAMPLES, _SAMPLE_BYTES = 32, 100_000
_AHEAD, _TICK_S = 2, 0.007


class Stream(IterableDataset[torch.Tensor]):
    """One worker's shards, each dropped from the cache when it has been read."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        cache = Path(tempfile.mkdtemp(prefix="streaming-"))
        self._reading = 0
        Thread(target=self._download, args=(cache,), daemon=True).start()
        for number in count():
            self._reading = number
            shard = _shard(cache, number)
            while not shard.exists():
                time.sleep(_TICK_S)
            with shard.open("rb") as file:
                while file.read(_SAMPLE_BYTES):
                    yield decode(0.3)
            shard.unlink()

    def _download(self, cache: Path) -> None:
        for number in count():
            while number > self._reading + _AHEAD:
                time.sleep(_TICK_S)
            shard = _shard(cache, number)
            partial = shard.with_suffix(".tmp")
            with urlopen(f"http://127.0.0.1:{os.environ['GPUTOP_WEB_PORT']}/{shard.name}") as answer, partial.open("wb") as out:
                shutil.copyfileobj(answer, out)
            partial.rename(shard)


def _shard(cache: Path, number: int) -> Path:
    return cache / f"shard.{number:05}.mds"


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Stream(), workers=2), trainer.compute(30))


def prepare(running: Running) -> AbstractContextManager[None]:
    return web.serving(running, os.urandom(_SAMPLES * _SAMPLE_BYTES))


SCENARIO = Scenario(Label("input-bound", "network-io"), train, web.slow, prepare)
