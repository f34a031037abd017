"""Elastic training: a master leases shards, packers tokenize and pack what they have leased, a reporter takes the losses; all are ahead."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import multiprocessing
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_SHARDS, _PACKERS, _AHEAD = 8, 3, 6
_SEQUENCES, _LENGTH = 8, 2048
_HEARTBEAT_S, _REPORT_EVERY = 0.5, 5


def _lease(told: Connection) -> None:
    master = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told.send(master.port)
    while True:
        time.sleep(_HEARTBEAT_S)
        master.set("alive", str(time.time()))


def _pack(port: int, name: str, batches: multiprocessing.Queue[torch.Tensor]) -> None:
    torch.set_num_threads(1)
    master = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=30))
    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    left = torch.empty(0, dtype=torch.int64)
    while True:
        shard = master.add("next shard", 1) % _SHARDS
        text = zlib.decompress((folder / f"{shard}.txt.zz").read_bytes())
        tokens = torch.cat([left, torch.frombuffer(bytearray(text), dtype=torch.uint8).long()])
        *full, left = torch.split(tokens, _SEQUENCES * _LENGTH)
        for batch in full:
            batches.put(batch.reshape(_SEQUENCES, _LENGTH).clone())
        master.set(f"done by {name}", str(shard))


def _report(losses: Connection, log: Path) -> None:
    with log.open("a") as file:
        while True:
            print(*losses.recv(), file=file, flush=True)


def train(trainer: Trainer) -> None:
    fork = multiprocessing.get_context("fork")
    batches: multiprocessing.Queue[torch.Tensor] = fork.Queue(_AHEAD)
    (port, told), (lost, losses) = fork.Pipe(duplex=False), fork.Pipe(duplex=False)
    fork.Process(target=_lease, args=(told,), daemon=True).start()
    fork.Process(target=_report, args=(lost, Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "loss.log"), daemon=True).start()
    number = port.recv()
    for packer in range(_PACKERS):
        fork.Process(target=_pack, args=(number, f"packer {packer}", batches), daemon=True).start()
    compute = trainer.compute(130, kernels=12)

    def step(batch: object) -> None:
        compute(batch)
        if trainer.steps % _REPORT_EVERY == 0:
            losses.send((trainer.steps, 1 / (1 + trainer.steps)))

    trainer.fit(iter(batches.get, None), step)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    words = b"the quick brown fox jumps over the lazy dog and runs into the wide dark forest "
    for shard in range(_SHARDS):
        (running.folder / f"{shard}.txt.zz").write_bytes(zlib.compress(words * 2000))
    yield


SCENARIO = Scenario(HEALTHY, train, prepare=prepare)
