"""The quota of a pod's log shipper throttles it in each period, and nothing comes of it.

The shipper compresses logs in a container of its own that may use a fifth of a CPU, and would take a whole one. The trainer's
container has no quota, and its loader's two threads, which inflate records without the GIL, have CPUs to themselves. Throttled is
only who does not matter: the GPU is busy nearly always.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread

from tests.workloads import cgroup
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_RECORD = zlib.compress(os.urandom(32 << 10) + bytes(480 << 10), 1)
_SHIP = "import zlib\nlog = b'GET /healthz 200 0.4ms\\n' * 40000\nwhile True: zlib.compress(log, 9)"
_QUOTA_CPUS, _GPU_MS = 0.2, 30


def _inflate(ready: Queue[list[bytes]]) -> None:
    while True:
        ready.put([zlib.decompress(_RECORD) for _ in range(4)])


def train(trainer: Trainer) -> None:
    ready: Queue[list[bytes]] = Queue(4)
    for _ in range(2):
        Thread(target=_inflate, args=(ready,), daemon=True).start()
    trainer.fit(iter(ready.get, None), trainer.compute(_GPU_MS))


def pod(running: Running) -> AbstractContextManager[Path]:
    return cgroup.pod("cpu", running, "shipper")


@contextmanager
def ship(running: Running) -> Iterator[None]:
    container = Path(running.env["GPUTOP_WORKLOAD_CGROUP"]).parent / "shipper"
    cgroup.limit_cpu(container, _QUOTA_CPUS)
    with running.child([sys.executable, "-c", _SHIP]) as shipper:
        cgroup.add(container, [shipper.pid])
        yield


SCENARIO = Scenario(HEALTHY, train, ship, pod, needs=lambda: cgroup.missing("cpu"))
