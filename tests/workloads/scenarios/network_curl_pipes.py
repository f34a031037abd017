"""WebDataset's `pipe:curl URL`: tar shards through a curl of each worker; the gateway to the bucket becomes narrow for all together."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from threading import Lock

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tests.workloads import web
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_SAMPLE_BYTES, _SAMPLES_PER_SHARD, _BATCH = 320_000, 16, 8
_BYTES_PER_S, _NARROW_BYTES_PER_S = 200e6, 3e6
_CHUNK = 64 << 10


class Shards(IterableDataset[torch.Tensor]):
    """Every worker goes through the shards that are its own, for ever."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        assert worker is not None
        for number in itertools.count(worker.id, worker.num_workers):
            url = f"http://127.0.0.1:{os.environ['GPUTOP_WEB_PORT']}/train-{number % 500:05d}.tar"
            with (
                subprocess.Popen(["curl", "-s", url], stdout=subprocess.PIPE) as curl,
                tarfile.open(fileobj=curl.stdout, mode="r|") as shard,
            ):
                for member in shard:
                    content = shard.extractfile(member)
                    assert content is not None
                    yield torch.frombuffer(bytearray(content.read()), dtype=torch.uint8).float().div_(255)


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def step(_batch: object) -> None:
        gpu.copy_in(_BATCH * _SAMPLE_BYTES, pinned=True)
        for _ in range(8):
            gpu.launch(40)
        if trainer.steps % 3 == 0:
            gpu.synchronize()

    trainer.fit(loader(Shards(), workers=3, batch=_BATCH), step)


def _shard() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as shard:
        for number in range(_SAMPLES_PER_SHARD):
            member = tarfile.TarInfo(f"{number:06d}.rgb")
            member.size = _SAMPLE_BYTES
            shard.addfile(member, io.BytesIO(os.urandom(_SAMPLE_BYTES)))
    return out.getvalue()


def prepare(running: Running) -> AbstractContextManager[None]:
    content, narrow, lock = _shard(), running.folder / "slow", Lock()

    class Gateway(web.Handler):
        def get(self) -> None:
            self.answer(len(content))
            for at in range(0, len(content), _CHUNK):
                part = content[at : at + _CHUNK]
                with lock:
                    time.sleep(len(part) / (_NARROW_BYTES_PER_S if narrow.exists() else _BYTES_PER_S))
                self.wfile.write(part)

    return web.served(running, Gateway)


def _missing() -> str:
    return "" if shutil.which("curl") else "no curl"


SCENARIO = Scenario(Label("input-bound", "network-io"), train, web.slow, prepare, needs=_missing)
