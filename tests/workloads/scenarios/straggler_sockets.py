"""Two ranks sum their gradients themselves, over a socket; one gets the long sequences, the other's main thread reads until it comes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_GRADIENTS = bytes(1 << 20)
_EVEN_MS, _LONG_MS = 25.0, 60.0
_AUTHKEY = b"ring"


def peer(rank: int, address: tuple[str, int]) -> Connection:
    """The other rank."""
    if rank == 0:
        with Listener(address, authkey=_AUTHKEY) as listener:
            (Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "port").write_text(str(listener.address[1]))
            return listener.accept()
    port = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "port"
    while not (port.exists() and port.read_text()):
        os.sched_yield()
    return Client((address[0], int(port.read_text())), authkey=_AUTHKEY)


def train(trainer: Trainer) -> None:
    gpu, long = trainer.gpu, Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "long"
    other = peer(trainer.rank, ("127.0.0.1", 0))

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20, pinned=True)
        gpu.launch(_LONG_MS if trainer.rank and long.exists() else _EVEN_MS)
        gpu.synchronize()
        gpu.copy_out(len(_GRADIENTS))
        if trainer.rank == 0:
            other.recv_bytes()
        other.send_bytes(_GRADIENTS)
        if trainer.rank:
            other.recv_bytes()
        gpu.copy_in(len(_GRADIENTS), pinned=True)
        gpu.launch(2)
        gpu.synchronize()

    trainer.fit(loader(Images(cpu_ms=0.3), workers=1), step)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "long").touch()
    yield


SCENARIO = Scenario(Label("straggler", "straggler-rank"), train, disturb, ranks=2, devices=2, env={"OMP_NUM_THREADS": "1"})
