"""Ranks that exchange data in each step, in a network namespace of their own: scenarios of wires that slow, of a rank that comes late, and
of both at once are made of these pieces."""

from __future__ import annotations

import itertools
import mmap
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.workloads import mpi, netspace, slow_disk
from tests.workloads.data import Images, decode
from tests.workloads.gpu import Gpu
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Label, Scenario, cpus

Exchange = Callable[[Gpu, int, int, float], Callable[[], None]]  # (GPU, rank, ranks, length of the kernels in ms) -> kernels and exchange
Own = Callable[[int, int], object]  # what a rank does by itself in a step: (rank, number of the step)
_PORT, _LATE = 29700, "late"
_CULPRIT = "train.py"
_TEXT = "The late rank reads its own text. " * 64


def gradients(size_bytes: int, buckets: int = 1) -> Exchange:
    """All ranks sum so many bytes by gloo, each bucket as soon as the kernels that make it have ended."""

    def join(gpu: Gpu, rank: int, ranks: int, kernels_ms: float) -> Callable[[], None]:
        torch.set_num_threads(1)
        netspace.join_gloo(rank, ranks)
        parts = [torch.ones(size_bytes // buckets // 4) for _ in range(buckets)]

        def step() -> None:
            works = list[Any]()
            for part in parts:
                gpu.launch(kernels_ms / buckets)
                gpu.synchronize()
                gpu.copy_out(part.nbytes)
                works.append(dist.all_reduce(part, async_op=True))
            for work in works:
                work.wait()

        return step

    return join


def ring(part_bytes: int, by_thread: bool = False) -> Exchange:
    """Each rank hands its part on to the next one until it has been everywhere. The main thread receives while it sends, or ``by_thread``
    while a thread sends."""

    def join(gpu: Gpu, rank: int, ranks: int, kernels_ms: float) -> Callable[[], None]:
        netspace.enter()
        server = socket.create_server(("127.0.0.1", _PORT + rank))
        following = _connected(_PORT + (rank + 1) % ranks)
        before, _ = server.accept()
        part, view = bytes(part_bytes), memoryview(bytearray(part_bytes))
        hop = partial(_hop_by_thread if by_thread else _hop, following, before, part, view)

        def step() -> None:
            gpu.launch(kernels_ms)
            gpu.synchronize()
            for _ in range(ranks - 1):
                hop()

        return step

    return join


def _hop_by_thread(following: socket.socket, before: socket.socket, part: bytes, view: memoryview) -> None:
    sender = threading.Thread(target=following.sendall, args=(part,))
    sender.start()
    at = 0
    while at < len(part):
        at += before.recv_into(view[at:])
    sender.join()


def _hop(following: socket.socket, before: socket.socket, part: bytes, view: memoryview) -> None:
    sent = got = 0
    while sent < len(part) or got < len(part):
        readable, writable, _ = select.select([before] if got < len(part) else [], [following] if sent < len(part) else [], [])
        if readable:
            got += before.recv_into(view[got:])
        if writable:
            sent += following.send(part[sent : sent + (64 << 10)], socket.MSG_DONTWAIT)


def _connected(port: int) -> socket.socket:
    until = time.monotonic() + 60.0
    found = socket.socket()
    while found.connect_ex(("127.0.0.1", port)):
        if time.monotonic() > until:
            raise TimeoutError(f"no rank listens at {port}")
        found.close()
        time.sleep(0.01)
        found = socket.socket()
    return found


class _Uneven(Images):
    """Images that are large in the last rank's part from the onset on."""

    def __init__(self, before_ms: float, after_ms: float, is_last: bool) -> None:
        super().__init__(before_ms)
        self.after_ms, self.is_last = after_ms, is_last

    def __getitem__(self, index: int) -> torch.Tensor:
        return decode(self.after_ms if self.is_last and _raised() else self.cpu_ms)


def tokenizes(cpu_s: float) -> Own:
    """Reads text with its own CPU."""

    def own(_rank: int, _number: int) -> None:
        until = time.thread_time() + cpu_s
        while time.thread_time() < until:
            _TEXT.casefold().split()

    return own


def sleeps(seconds: float) -> Own:
    """Sleeps, as one whose service limits its requests."""
    return lambda _rank, _number: time.sleep(seconds)


def by_turns(own: Own, ranks: int) -> Own:
    """One rank after the other does that."""
    return lambda rank, number: own(rank, number) if number % ranks == rank else None


def reads(size_bytes: int) -> Own:
    """Reads so much of the workload's file, past the page cache."""

    def own(_rank: int, number: int) -> None:
        piece = mmap.mmap(-1, size_bytes)
        with slow_disk.opened(_folder() / "samples", os.O_DIRECT) as file:
            os.preadv(file, [piece], number * size_bytes % slow_disk.FILE_BYTES)

    return own


@dataclass(frozen=True, slots=True)
class Ranks:
    """A training: how its ranks exchange data, and what else they do in each step."""

    exchange: Exchange
    count: int = 2
    kernels_ms: float = 40.0
    always: Own | None = None
    late: Own | None = None
    """What the last rank does besides, from the onset on."""
    samples_ms: tuple[float, float] | None = None
    """CPU ms of a sample of its DataLoader, and of one of the last rank's from the onset on; None: it has no loader."""
    bound: bool = False
    """Whether each rank is bound to a CPU of its own."""

    def train(self, trainer: Trainer) -> None:
        """One rank."""
        gpu, rank, is_last = trainer.gpu, trainer.rank, trainer.rank == self.count - 1
        if self.bound:
            os.sched_setaffinity(0, {mpi.core(rank)})
        batches: Iterable[object] = itertools.repeat(None)
        if self.samples_ms:
            batches = iter(loader(_Uneven(*self.samples_ms, is_last), workers=1))  # its worker stays outside the namespace
        exchange = self.exchange(gpu, rank, self.count, self.kernels_ms)

        def step(_batch: object) -> None:
            if self.always:
                self.always(rank, trainer.steps)
            if self.late and is_last and _raised():
                self.late(rank, trainer.steps)
            gpu.copy_in(1 << 20, pinned=True)
            exchange()
            gpu.copy_in(1 << 20, pinned=True)
            gpu.launch(3)

        trainer.fit(batches, step)


def slow_wire(ranks: Ranks, mbit: int) -> Scenario:
    """The wire carries no more than ``mbit`` from the onset on. A rank that is late, too, is late by less than that costs."""
    return _made(Label("comm-bound", "slow-wire"), ranks, partial(_onset, mbit=mbit, blamed=False))


def late_rank(ranks: Ranks, mbit: int = 0) -> Scenario:
    """The last rank comes late from the onset on. A wire that slows to ``mbit``, too, costs less than that."""
    return _made(Label("straggler", "straggler-rank", frozenset({_CULPRIT})), ranks, partial(_onset, mbit=mbit, blamed=True))


def late_by_disk(ranks: Ranks, bytes_per_s: int) -> Scenario:
    """The last rank reads no more than ``bytes_per_s`` from the onset on."""

    @contextmanager
    def prepare(running: Running) -> Iterator[None]:
        with slow_disk.file(running), netspace.prepare(running):
            yield

    @contextmanager
    def disturb(running: Running) -> Iterator[None]:
        running.blame(running.trainer_pids[-1], _CULPRIT)
        with slow_disk.throttle(running, bytes_per_s=bytes_per_s, pids=running.trainer_pids[-1:]):
            yield
            running.account()

    label = Label("straggler", "straggler-rank", frozenset({_CULPRIT}))
    return replace(_made(label, ranks, disturb), prepare=prepare, needs=lambda: netspace.needs() or slow_disk.missing())


def late_by_hogs(ranks: Ranks, names: tuple[str, ...]) -> Scenario:
    """Each rank is bound to a CPU; programs of other people come to the last one's."""

    def disturb(running: Running) -> AbstractContextManager[None]:
        return hogs(running, dict.fromkeys(names, 1), through=("taskset", "-c", str(mpi.core(ranks.count - 1))))

    made = _made(Label("straggler", "straggler-rank", frozenset(names)), replace(ranks, bound=True), disturb)
    few = "" if cpus() >= ranks.count else "a core for each rank is needed"
    return replace(made, needs=lambda: netspace.needs() or few)


def healthy(ranks: Ranks, mbit: int = 0) -> Scenario:
    """Nothing is lost to speak of, though the wire carries no more than ``mbit`` from the onset on (0: what it can)."""
    return _made(HEALTHY, ranks, partial(_onset, mbit=mbit, blamed=False))


def _made(label: Label, ranks: Ranks, disturb: Callable[[Running], AbstractContextManager[None]]) -> Scenario:
    env = {"OMP_NUM_THREADS": "1"}
    return Scenario(
        label, ranks.train, disturb, netspace.prepare, ranks=ranks.count, devices=ranks.count, needs=netspace.needs, env=env
    )


@contextmanager
def _onset(running: Running, mbit: int, blamed: bool) -> Iterator[None]:
    """Whatever comes late does so from now on, and the wire is slow."""
    (running.folder / _LATE).touch()
    if blamed:
        running.blame(running.trainer_pids[-1], _CULPRIT)
    with netspace.slowed(running, mbit) if mbit else nullcontext():
        yield
    running.account()


def _raised() -> bool:
    return (_folder() / _LATE).exists()


def _folder() -> Path:
    return Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
