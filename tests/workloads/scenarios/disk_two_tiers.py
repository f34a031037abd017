"""A recommender asks a gateway for candidates, and the gateway a vector store, whose volume becomes slow.

Truth: the GPU starves (input-bound) because `vectord` reads 256 KB for each request, past the page cache, from a volume that gives it 4
MB/s from the onset on (disk-io). Its handler threads sleep in pread(2). `gatewayd` forwards each request over loopback TCP and waits for
the answer, as the two threads of `two_tower` wait for it. CPUs idle. Victims are `two_tower`, `gatewayd` and `vectord`, nobody is to blame.
Lost: about 0.6 of the GPU's time. A faster volume, or vectors in memory, would fix it; more gateways would not.
"""

from __future__ import annotations

import mmap
import os
import queue
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tests.workloads import cgroup, program, slow_disk
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_VECTORS = 256 << 10
_SLOW_BYTES_PER_S = 4 << 20
_GPU_MS = 26.0
_ASKING = 2


def train(_trainer: Trainer) -> None:
    program.become(rank)


def rank() -> None:
    """The trainer: threads that ask, and the model."""
    job, batches = program.Job(), queue.Queue[bytes](2)
    program.called("two_tower")
    for number in range(_ASKING):
        threading.Thread(target=_ask, args=(batches, random.Random(number)), name="retrieve", daemon=True).start()
    while True:
        job.compute(_GPU_MS, kernels=6, bytes_in=len(batches.get()))
        job.step()


def _ask(batches: queue.Queue[bytes], chance: random.Random) -> None:
    gateway = socket.create_connection(("127.0.0.1", int((program.folder() / "gateway.port").read_text())))
    while True:
        gateway.sendall(struct.pack("<I", chance.randrange(slow_disk.FILE_BYTES // _VECTORS)))
        batches.put(program.receive(gateway, _VECTORS))


def _serve(name: str, answer: Callable[[socket.socket], object]) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    program.called(name)
    print(listener.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=_handle, args=(answer, listener.accept()[0]), daemon=True).start()


def _handle(answer: Callable[[socket.socket], object], client: socket.socket) -> None:
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(ConnectionError, struct.error):
        answer(client)


def store() -> None:
    """A thread for each connection."""
    _serve("vectord", _read_rows)


def _read_rows(client: socket.socket) -> None:
    room = mmap.mmap(-1, _VECTORS)
    while asked := client.recv(4, socket.MSG_WAITALL):
        with slow_disk.opened(program.folder() / "samples", os.O_RDONLY | os.O_DIRECT) as file:
            os.preadv(file, [room], struct.unpack("<I", asked)[0] * _VECTORS)
        client.sendall(room)


def gateway() -> None:
    """It has no data of its own: a connection behind for each one in front."""
    port = int(os.environ["GPUTOP_SERVICE_PORT"])

    def forward(client: socket.socket) -> None:
        behind = socket.create_connection(("127.0.0.1", port))
        while asked := client.recv(4, socket.MSG_WAITALL):
            behind.sendall(asked)
            client.sendall(program.receive(behind, _VECTORS))

    _serve("gatewayd", forward)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with slow_disk.file(running), program.serving(running, store) as behind, program.serving(running, gateway) as front:
        (running.folder / "store.pid").write_text(str(behind.pid))
        (running.folder / "gateway.port").write_text(running.env["GPUTOP_SERVICE_PORT"])
        assert front.poll() is None
        yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with cgroup.group("blkio", running.name) as group:
        cgroup.limit_reads(group, cgroup.device_of(running.folder / "samples"), _SLOW_BYTES_PER_S)
        cgroup.add(group, [int((running.folder / "store.pid").read_text())])
        yield


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, disturb, prepare, needs=slow_disk.missing)
