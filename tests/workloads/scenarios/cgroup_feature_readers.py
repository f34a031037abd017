"""Feature readers that a batch queue's wrapper starts in its own group (`cgexec -g cpu:batch`); by day that group gets a small quota."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from queue import Queue

from tests.workloads import cgroup
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_READERS, _AHEAD = 2, 4
_TABLES, _BUCKETS = 26, 1_000_003
_BATCH_CPU_MS, _STEP_MS, _QUOTA_CPUS = 16.0, 45.0, 0.14
_WRAPPER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


def read(address: str) -> None:
    """A reader: hashes raw categories to the rows of their tables and sends a batch of rows at a time, until nobody listens."""
    click = 0
    with Client(address) as trainer:
        while True:
            tables: list[list[int]] = [[] for _ in range(_TABLES)]
            until = time.thread_time() + _BATCH_CPU_MS / 1e3
            while time.thread_time() < until:
                click += 1
                for number, rows in enumerate(tables):
                    rows.append(zlib.crc32(f"{number}:{click * 2654435761 % 1_000_000_007}".encode()) % _BUCKETS)
            try:
                trainer.send(tables)
            except ConnectionError:
                return


def batches(group: str, address: str) -> Iterator[object]:
    """What the readers send, whichever is first; a thread for each of them receives."""
    ready: Queue[object] = Queue(_AHEAD)

    def receive(reader: Connection) -> None:
        while True:
            ready.put(reader.recv())

    with Listener(address, backlog=_READERS) as listener:
        for _ in range(_READERS):
            subprocess.Popen(["sh", "-c", _WRAPPER, group, sys.executable, __file__, address])
        for reader in [listener.accept() for _ in range(_READERS)]:
            threading.Thread(target=receive, args=(reader,), daemon=True).start()
    while True:
        yield ready.get()


def train(trainer: Trainer) -> None:
    group, folder = os.environ["FEATURE_QUOTA"], os.environ["GPUTOP_WORKLOAD_FOLDER"]
    trainer.fit(batches(group, f"{folder}/readers.sock"), trainer.compute(_STEP_MS))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with cgroup.group("cpu", running.name) as group:
        running.env["FEATURE_QUOTA"] = str(group)
        yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    cgroup.limit_cpu(Path(running.env["FEATURE_QUOTA"]), _QUOTA_CPUS)
    yield


SCENARIO = Scenario(Label("input-bound", "cgroup-throttle"), train, disturb, prepare, needs=lambda: cgroup.missing("cpu"))

if __name__ == "__main__":
    read(sys.argv[1])
