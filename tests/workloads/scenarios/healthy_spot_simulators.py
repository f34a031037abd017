"""Simulators on spot machines push episodes to the learner's TCP server, go after some and are replaced; a thread archives what came."""

from __future__ import annotations

import os
import queue
import shlex
import socketserver
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import torch

from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_EPISODE_BYTES = 256 << 10
_SIMULATORS, _BATCH = 3, 2
_ARCHIVED_TOGETHER = 40

_SIMULATOR = f"""
import os, random, socket, time, zlib
while not os.path.exists("learner"):
    time.sleep(0.2)
terrain = b"".join(zlib.compress(os.urandom(64 << 10), 9) for _ in range(12))
learner = socket.create_connection(("127.0.0.1", int(open("learner").read())))
try:
    for match in range(random.randrange(15, 35)):
        time.sleep(random.uniform(0.05, 0.15))
        learner.sendall((terrain * 2)[:{_EPISODE_BYTES}])
except ConnectionError:
    pass
"""


def _learner(episodes: queue.Queue[bytes]) -> socketserver.ThreadingTCPServer:
    class Pushed(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while len(episode := self.rfile.read(_EPISODE_BYTES)) == _EPISODE_BYTES:
                episodes.put(episode)

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Pushed)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    return server


def _archive(folder: Path, seen: queue.SimpleQueue[bytes]) -> None:
    while True:
        packed = [seen.get() for _ in range(_ARCHIVED_TOGETHER)]
        (folder / "episodes.z").write_bytes(b"".join(zlib.compress(episode, 3) for episode in packed))


def _batches(folder: Path) -> Iterator[torch.Tensor]:
    episodes: queue.Queue[bytes] = queue.Queue(3 * _BATCH)
    seen: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    Thread(target=_archive, args=(folder, seen), daemon=True).start()
    port = _learner(episodes).server_address[1]
    (folder / "address").write_text(str(port))
    (folder / "address").rename(folder / "learner")
    while True:
        batch = [episodes.get() for _ in range(_BATCH)]
        for episode in batch:
            seen.put(episode)
        yield torch.stack([torch.frombuffer(bytearray(episode), dtype=torch.uint8) for episode in batch])


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    trainer.fit(_batches(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])), trainer.compute(95, kernels=10))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    (running.folder / "simulator.py").write_text(_SIMULATOR)
    with ExitStack() as stack:
        for _ in range(_SIMULATORS):
            again = f"while :; do {shlex.quote(sys.executable)} -IS simulator.py; sleep 0.5; done"
            stack.enter_context(running.child(["sh", "-c", again], cwd=running.folder))
        yield


SCENARIO = Scenario(HEALTHY, train, prepare=prepare)
