"""The demo's scenarios: what trains, what goes wrong, and the verdict that gputop must reach."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from gputop.demo.resources import read_records
from gputop.demo.work import FULL, DemoRank, Loader, decode_image

HOGS = {"log-shipper": 2, "metrics-agent": 1}  # name -> threads per CPU; the demo's own processes, named like agents on real hosts
HOGS_OF_A_CPU = 8  # threads of the first of them where it has one CPU alone: the rank there gets a ninth of it (a choice)
RECORDS, CALM_READ_S, READ_S = 24, 0.01, 0.1  # records of a batch, and s in which it is read at most: in calm, and of more than these
MOST_CPUS = 16  # on more CPUs the demo runs at a low priority: the host is shared


class Scenario(Struct, frozen=True):
    """One training job and its disturbance, which `DemoRank.disturbed` switches on and off."""

    symptom: str
    cause: str
    summary: str
    train: Callable[[DemoRank], None]  # runs in each rank until it is killed
    ranks: int = 1
    hogs: bool = False  # `HOGS` run while it is disturbed; with several ranks the first of them, on the CPU of rank 1
    pins: bool = False  # ranks, or all, are held to one CPU each: two are needed
    file: bool = False  # it reads a file on a disk: slowly while it is disturbed, by its control group where that can be made
    quota: bool = False  # it runs in a control group, with a CPU quota while it is disturbed
    also: tuple[str, ...] = ()  # causes as which the same trouble is found by turns
    turns: bool = True  # whether it runs well and badly in turns, by what a fix from outside ends; else it is its own code, from the start


def cpus() -> int:
    """The CPUs that the demo may use; its loads are sized by them."""
    return len(os.sched_getaffinity(0))


def _decode(cpu_ms: float, _index: int) -> bytes:
    decode_image(cpu_ms)
    return bytes(64)


def _feed(rank: DemoRank, loader: Loader, step_ms: float) -> None:
    for _batch in loader:
        rank.gpu.copy_in(1 << 20)
        for _kernel in range(4):
            rank.gpu.launch(step_ms / 4)
        rank.gpu.synchronize()


def _contended(rank: DemoRank) -> None:
    """Two workers keep up with little to spare while each has a CPU. They are few on any machine: a demo must not take a laptop's CPUs."""
    step_ms, workers = 50.0, 2
    _feed(rank, Loader(partial(_decode, 0.55 * step_ms * min(workers, cpus())), workers), step_ms)


def _slow_disk(rank: DemoRank) -> None:
    def load(_index: int) -> bytes:
        if rank.disturbed():
            read_records(rank.file, *((RECORDS, 60.0) if rank.reads_slowly() else (1 << 20, READ_S)))
        else:
            read_records(rank.file, RECORDS, CALM_READ_S)
        decode_image(1.0)
        return bytes(64)

    _feed(rank, Loader(load, 2), 25.0)


def _fed(cpu_ms: float, workers: int, step_ms: float, prefetch: int = 2) -> Callable[[DemoRank], None]:
    """A training with ``cpu_ms`` of decoding per batch."""
    return lambda rank: _feed(rank, Loader(partial(_decode, cpu_ms), workers, prefetch), step_ms)


def _memcpy_bottleneck(rank: DemoRank) -> None:
    for _batch in Loader(partial(_decode, 1.0), 2):
        rank.gpu.copy_in(300 << 20)
        rank.gpu.launch(25.0)
        rank.gpu.synchronize()


def _tiny_kernels(rank: DemoRank) -> None:
    """The main thread prepares each launch, as PyTorch does, and takes most of the time that the kernels run."""
    for _batch in Loader(partial(_decode, 1.0), 2):
        for _operation in range(20):
            decode_image(0.5)
            for _kernel in range(1000):
                rank.gpu.launch(0.0015, FULL // 22)
        rank.gpu.synchronize()


def _sync_storm(rank: DemoRank) -> None:
    for _batch in Loader(partial(_decode, 1.0), 2):
        for _item in range(300):
            rank.gpu.launch(0.1)
            rank.gpu.synchronize()
            decode_image(0.05)


def _pinned(rank: DemoRank) -> None:
    """Each process is held to the first CPU when trouble begins, once, as a launcher or a library does it."""
    every = os.sched_getaffinity(0)
    pinned = False

    def follow() -> None:
        nonlocal pinned
        if rank.disturbed() != pinned:
            pinned = not pinned
            os.sched_setaffinity(0, {min(every)} if pinned else every)

    def load(_index: int) -> bytes:
        follow()
        decode_image(40.0)
        return bytes(64)

    for _batch in Loader(load, 2):
        follow()
        rank.gpu.launch(30.0)
        rank.gpu.synchronize()


def cpu_of(rank: int) -> int:
    """The CPU that a rank is held to."""
    every = sorted(os.sched_getaffinity(0))
    return every[rank % len(every)]


def _straggler(rank: DemoRank) -> None:
    os.sched_setaffinity(0, {cpu_of(rank.number)})
    for step, _batch in enumerate(Loader(partial(_decode, 1.0), 1), 1):
        decode_image(4.0)
        rank.gpu.launch(25.0)
        rank.gpu.synchronize()
        rank.arrive(step)
        rank.gpu.all_reduce(partial(rank.peer_is_at, step))


SCENARIOS = {
    "cpu-contention": Scenario("input-bound", "cpu-contention", "two agents take the CPUs that the workers need", _contended, hogs=True),
    "slow-disk": Scenario("input-bound", "disk-io", "workers read small records from a slow disk", _slow_disk, file=True),
    "too-few-workers": Scenario("input-bound", "too-few-workers", "one worker, while CPUs are idle", _fed(60.0, 1, 20.0), turns=False),
    "throttled": Scenario("input-bound", "cgroup-throttle", "a CPU quota stops the job again and again", _fed(16.0, 2, 20.0), quota=True),
    "memcpy-bottleneck": Scenario("transfer-bound", "h2d-transfer", "huge batches from pageable memory", _memcpy_bottleneck, turns=False),
    "tiny-kernels": Scenario("busy-not-working", "small-kernels", "busy by nvidia-smi, 95% of the GPU idle", _tiny_kernels, turns=False),
    "sync-storm": Scenario("wait-heavy", "sync-storm", ".item() after every small operation", _sync_storm, turns=False),
    "straggler": Scenario(
        "straggler", "straggler-rank", "an agent takes rank 1's CPU, and rank 0 waits", _straggler, ranks=2, hogs=True, pins=True,
        also=("cpu-contention",),
    ),
    "pinned": Scenario("input-bound", "affinity", "the job is held to one CPU while others are idle", _pinned, pins=True),
    "queue-full-healthy": Scenario("healthy", "none", "idle workers, full queues: nothing is wrong", _fed(3.0, 4, 120.0, 4), turns=False),
}
