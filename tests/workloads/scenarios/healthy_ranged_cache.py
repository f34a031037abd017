"""Late HTTP range requests fill a cache on disk; beside them go an upload, a snapshot and a scraper, and the GPU never waits."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tests.workloads import web
from tests.workloads.data import decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_SAMPLES, _SAMPLE_BYTES = 2000, 48 << 10
_LATE_S = 0.05
_CHECKPOINT_BYTES = 24 << 20

_UPLOAD = 'while :; do curl -s -X POST -H Expect: --limit-rate 4M -T checkpoint.pt "http://127.0.0.1:$GPUTOP_WEB_PORT/ckpt"; sleep 1; done'
_SNAPSHOT = "while sleep 2; do ls cache | head -n 100 | nice -n 19 tar -C cache -czf snapshot.tgz -T - 2> tar.log; done"
_SCRAPER = "import time\nwhile True: [open(f'/proc/{name}').read() for name in ('stat', 'meminfo', 'diskstats', 'net/dev')]; time.sleep(1)"


class Ranges(Dataset[torch.Tensor]):
    """Samples of one remote tar with an index; what has been fetched once is mapped from disk from then on."""

    def __init__(self) -> None:
        self._cache = Path(tempfile.gettempdir()) / "cache"
        self._cache.mkdir()
        self._own = threading.local()
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return _SAMPLES

    def __getitems__(self, indexes: list[int]) -> list[torch.Tensor]:
        self._pool = self._pool or ThreadPoolExecutor(len(indexes))
        return [decode(0.3) for _ in self._pool.map(self._sample, indexes)]

    def _sample(self, index: int) -> int:
        path = self._cache / f"{index:06}"
        if not path.exists():
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_bytes(self._fetch(index * _SAMPLE_BYTES))
            partial.rename(path)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return sum(mapped[:: mmap.PAGESIZE])

    def _fetch(self, at: int) -> bytes:
        if not hasattr(self._own, "connection"):
            self._own.connection = HTTPConnection("127.0.0.1", int(os.environ["GPUTOP_WEB_PORT"]))
        self._own.connection.request("GET", "/train.tar", headers={"Range": f"bytes={at}-{at + _SAMPLE_BYTES - 1}"})
        content: bytes = self._own.connection.getresponse().read()
        return content


class Bucket(web.Handler):
    """Any range, late, and room for any upload."""

    def get(self) -> None:
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        time.sleep(_LATE_S)
        self.send_response(206)
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        self.wfile.write(os.urandom(last - first + 1))

    def post(self, length: int) -> None:
        while length:
            length -= len(self.rfile.read(min(length, 1 << 16))) or length
        self.answer(0)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Ranges(), workers=2, shuffle=True, prefetch_factor=4), trainer.compute_ahead(70))


def prepare(running: Running) -> AbstractContextManager[None]:
    (running.folder / "checkpoint.pt").write_bytes(os.urandom(_CHECKPOINT_BYTES))
    return web.served(running, Bucket)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with ExitStack() as stack:
        for command in (["sh", "-c", _UPLOAD], ["sh", "-c", _SNAPSHOT], [sys.executable, "-c", _SCRAPER]):
            stack.enter_context(running.child(command, cwd=running.folder))
        yield


SCENARIO = Scenario(HEALTHY, train, disturb, prepare)
