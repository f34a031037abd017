"""An Ape-X learner whose prefetch processes sample a replay memory of another host, by a `BaseManager`; the tunnel there stalls."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.managers import BaseManager
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import multiprocessing

from tests.workloads import web
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_KEY = b"apex"
_EPISODES, _EPISODE_BYTES, _SAMPLED = 64, 4 * 84 * 84, 32
_PREFETCHERS, _READY = 2, 4
_STALL_EVERY_S, _STALL_S = 1.5, 1.0


class Replay:
    """The memory, as the actors left it."""

    def __init__(self) -> None:
        self._episodes = [os.urandom(_EPISODE_BYTES) for _ in range(_EPISODES)]

    def sample(self, count: int) -> list[bytes]:
        return random.choices(self._episodes, k=count)


class Remote(BaseManager):
    """Where the memory is."""


Remote.register("Replay", Replay, exposed=("sample",))


def _prefetch(port: int, ready: Any) -> None:
    torch.set_num_threads(1)
    remote: Any = Remote(("127.0.0.1", port), _KEY)
    remote.connect()
    replay = remote.Replay()
    while True:
        episodes = [torch.frombuffer(bytearray(episode), dtype=torch.uint8) for episode in replay.sample(_SAMPLED)]
        ready.put(torch.stack(episodes))


def _sampled() -> Iterator[object]:
    fork = multiprocessing.get_context("fork")
    ready = fork.Queue(_READY)
    for _ in range(_PREFETCHERS):
        fork.Process(target=_prefetch, args=(int(os.environ["GPUTOP_STORE_PORT"]), ready), daemon=True).start()
    while True:
        yield ready.get()


def train(trainer: Trainer) -> None:
    trainer.fit(_sampled(), trainer.compute(50, kernels=8))


def _pump(source: socket.socket, sink: socket.socket, slow_flag: Path) -> None:
    with suppress(OSError), source, sink:
        while part := source.recv(64 << 10):
            into_cycle_s = time.monotonic() % _STALL_EVERY_S
            if into_cycle_s < _STALL_S and slow_flag.exists():
                time.sleep(_STALL_S - into_cycle_s)
            sink.sendall(part)


def _tunnel(listener: socket.socket, address: Any, slow_flag: Path) -> None:
    while True:
        near, _ = listener.accept()
        far = socket.create_connection(address)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for ends in ((near, far), (far, near)):
            Thread(target=_pump, args=(*ends, slow_flag), daemon=True).start()


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    command = [sys.executable, "-m", __name__, str(running.folder / "slow")]
    with running.child(command, stdout=-1) as host:
        assert host.stdout is not None
        running.env["GPUTOP_STORE_PORT"] = host.stdout.readline().strip()
        yield


SCENARIO = Scenario(Label("input-bound", "network-io"), train, web.slow, prepare)

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    server = Remote(("127.0.0.1", 0), _KEY).get_server()
    entrance = socket.create_server(("127.0.0.1", 0))
    Thread(target=_tunnel, args=(entrance, server.address, Path(sys.argv[1])), daemon=True).start()
    print(entrance.getsockname()[1], flush=True)
    server.serve_forever()
