"""A ranking model gets its features from a store on the same host over HTTP; the store reads them from a volume that becomes slow.

Truth: the GPU starves (input-bound) because the store `feast-serve` reads 384 KB for each request, past the page cache, from a volume that
gives it 5 MB/s from the onset on (disk-io). Its handler threads sleep in pread(2); the two threads of `ranker` that ask sleep in recv(2) at
loopback connections that are not what is slow, its main thread waits for a batch. CPUs idle. Victims are `ranker` and `feast-serve`, nobody
is to blame. Lost: about 0.7 of the GPU's time. A faster volume, or features in memory, would fix it; more threads that ask would not.
"""

from __future__ import annotations

import http.client
import mmap
import os
import queue
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from tests.workloads import cgroup, program, slow_disk
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_FEATURES = 384 << 10
_SLOW_BYTES_PER_S = 5 << 20
_GPU_MS = 24.0
_ASKING = 2


def train(_trainer: Trainer) -> None:
    program.become(rank)


def rank() -> None:
    """The trainer: threads that ask, and the model."""
    job, batches = program.Job(), queue.Queue[bytes](2)
    program.called("ranker")
    for number in range(_ASKING):
        threading.Thread(target=_ask, args=(batches, random.Random(number)), name="features", daemon=True).start()
    while True:
        job.compute(_GPU_MS, kernels=6, bytes_in=len(batches.get()))
        job.step()


def _ask(batches: queue.Queue[bytes], chance: random.Random) -> None:
    store = http.client.HTTPConnection("127.0.0.1", int(os.environ["GPUTOP_SERVICE_PORT"]))
    while True:
        store.request("GET", f"/features?row={chance.randrange(slow_disk.FILE_BYTES // _FEATURES)}")
        batches.put(store.getresponse().read())


class Store(BaseHTTPRequestHandler):
    """Rows of one large file."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        self._room = mmap.mmap(-1, _FEATURES)
        with suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        with slow_disk.opened(program.folder() / "samples", os.O_RDONLY | os.O_DIRECT) as file:
            os.preadv(file, [self._room], int(self.path.partition("=")[2]) * _FEATURES)
        self.send_response(200)
        self.send_header("Content-Length", str(_FEATURES))
        self.end_headers()
        self.wfile.write(self._room)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: requests are many."""


def serve() -> None:
    """A thread for each connection."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    program.called("feast-serve")
    print(server.server_port, flush=True)
    server.serve_forever()


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with slow_disk.file(running), program.serving(running, serve) as store:
        (running.folder / "store.pid").write_text(str(store.pid))
        yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with cgroup.group("blkio", running.name) as group:
        cgroup.limit_reads(group, cgroup.device_of(running.folder / "samples"), _SLOW_BYTES_PER_S)
        cgroup.add(group, [int((running.folder / "store.pid").read_text())])
        yield


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, disturb, prepare, needs=slow_disk.missing)
