"""Click logs parsed by workers, until a dashboard queries the database beside them: many backends, each busy for some ms at a time."""

from __future__ import annotations

import random
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_BACKENDS, _BATCH, _ROWS, _BATCH_CPU_S = 4, 256, 4096, 0.062
_DATABASE = """
import ctypes, os, selectors, socket, sqlite3, sys
prctl, clients = ctypes.CDLL(None).prctl, selectors.DefaultSelector()
prctl(1, 9)
query = b"select shop, sum(paid) total from orders group by shop order by total desc"
for _ in range(int(sys.argv[1])):
    client, backend = socket.socketpair()
    if not (pid := os.fork()):
        prctl(1, 9), prctl(15, b"postgres"), os.setsid()
        table = sqlite3.connect(":memory:")
        table.execute("create table orders (shop, paid)")
        table.executemany("insert into orders values (?, ?)", ((i % 97, i * 31 % 1009) for i in range(10000)))
        while True:
            backend.send(repr(table.execute(backend.recv(4096).decode()).fetchall()[:5]).encode())
    print(pid, flush=True)
    clients.register(client, selectors.EVENT_READ)
    client.send(query)
prctl(15, b"grafana")
while True:
    for key, _ in clients.select():
        key.fileobj.recv(4096)
        key.fileobj.send(query)
"""
"""One asks, its children answer, each with a connection, a session and 10 000 orders of its own; all die with their parent."""


class Clicks(Dataset[bytes]):
    """Lines of 39 hexadecimal features, as Criteo's; a whole batch is asked for at once, and packed for the embedding tables."""

    def __init__(self) -> None:
        self.lines = ["\t".join(f"{random.getrandbits(32):08x}" for _ in range(39)) for _ in range(_ROWS)]

    def __len__(self) -> int:
        return _ROWS * 1024

    def __getitem__(self, rows: list[int]) -> bytes:
        until = time.thread_time() + _BATCH_CPU_S
        while True:
            packed = array("i", (int(word, 16) % 100_003 for row in rows for word in self.lines[row % _ROWS].split("\t")))
            if time.thread_time() >= until:
                return packed.tobytes()


def train(trainer: Trainer) -> None:
    clicks = Clicks()
    rows = BatchSampler(RandomSampler(clicks, replacement=True), _BATCH, drop_last=True)
    batches = DataLoader(clicks, None, sampler=rows, num_workers=cpus(), multiprocessing_context="forkserver", persistent_workers=True)
    trainer.fit(batches, trainer.compute(84 / cpus(), bytes_in=_BATCH * 39 * 4))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with running.child([sys.executable, "-S", "-c", _DATABASE, str(_BACKENDS * cpus())], stdout=-1) as grafana:
        assert grafana.stdout is not None
        for _ in range(_BACKENDS * cpus()):
            running.blame(int(grafana.stdout.readline()), "postgres")
        yield
        running.account()


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset({"postgres"})), train, disturb)
