"""Workers that stream tar shards, as webdataset does with `pipe:curl`: the worker reads a pipe, and curl waits for a slow server."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch
from torch.utils.data import IterableDataset

from tests.workloads import web
from tests.workloads.data import decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_SAMPLES, _SAMPLE_BYTES = 200, 100_000


class Shards(IterableDataset[torch.Tensor]):
    """One shard after the other, each sample decoded as it comes."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        curl = ["curl", "-s", "-L", f"http://127.0.0.1:{os.environ['GPUTOP_WEB_PORT']}/shard.tar"]
        while True:
            with subprocess.Popen(curl, stdout=subprocess.PIPE) as pipe, tarfile.open(fileobj=pipe.stdout, mode="r|") as shard:
                for member in shard:
                    file = shard.extractfile(member)
                    assert file is not None
                    file.read()
                    yield decode(0.3)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Shards(), workers=2), trainer.compute(30))


def prepare(running: Running) -> AbstractContextManager[None]:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for i in range(_SAMPLES):
            member = tarfile.TarInfo(f"{i:06}.jpg")
            member.size = _SAMPLE_BYTES
            tar.addfile(member, io.BytesIO(os.urandom(_SAMPLE_BYTES)))
    return web.serving(running, content.getvalue())


def missing() -> str:
    return "" if shutil.which("curl") else "no curl"


SCENARIO = Scenario(Label("input-bound", "network-io"), train, web.slow, prepare, needs=missing)
