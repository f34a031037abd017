"""Rows are streamed from a hub over HTTP, as `load_dataset(…, streaming=True)` does: two row groups are asked for at a time. The hub slows.

Truth: the GPU starves (input-bound) because each row group of 1.2 MB takes 240 ms on the wire (network-io), of which the GPU works 36 ms;
the threads that fetch sleep in recv(2) at a TCP socket, inflating takes 4 ms, and the CPUs idle. The victim is the script. Lost: 0.70 of
the GPU's time with two requests under way. More requests at a time or a copy on the disk would fix it; a larger model would not.
"""

from __future__ import annotations

import http.client
import os
import queue
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.workloads import program, web
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_ROW_GROUP_BYTES, _STREAMS = 1_200_000, 2
_CPU_MS, _GPU_MS = 4.0, 36.0


def train(_trainer: Trainer) -> None:
    program.become(fit)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with web.serving(running, os.urandom(_ROW_GROUP_BYTES)):
        yield


def fit() -> None:
    """`for rows in stream: update(rows)`."""
    rows: queue.Queue[bytes] = queue.Queue(2)
    for number in range(_STREAMS):
        threading.Thread(target=_fetch, args=(number, rows), name=f"hf-fetch-{number}", daemon=True).start()
    job = program.Job()
    while True:
        rows.get()
        job.compute(_GPU_MS)
        job.step()


def _fetch(number: int, rows: queue.Queue[bytes]) -> None:
    hub = http.client.HTTPConnection("127.0.0.1", int(os.environ["GPUTOP_WEB_PORT"]))
    packed = zlib.compress(bytes(range(256)) * 1024, 1)
    while True:
        hub.request("GET", f"/datasets/me/corpus/resolve/main/train-{number:05}.parquet")
        hub.getresponse().read()
        until = time.thread_time() + _CPU_MS / 1e3
        while time.thread_time() < until:
            group = zlib.decompress(packed)
        rows.put(group)


SCENARIO = Scenario(Label("input-bound", "network-io"), train, web.slow, prepare)
