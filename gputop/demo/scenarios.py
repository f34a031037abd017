"""The demo's scenarios: what trains, what goes wrong, and the verdict that gputop must reach."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from gputop.demo.resources import read_records
from gputop.demo.work import FULL, DemoRank, Loader, decode_image

HOGS = {"log-shipper": 2, "metrics-agent": 1}  # name -> threads per CPU; the demo's own processes, named like agents on real hosts
MOST_CPUS = 16  # on more CPUs the demo runs at a low priority: the host is shared


class Scenario(Struct, frozen=True):
    """One training job and its disturbance, which `DemoRank.disturbed` switches on and off."""

    symptom: str
    cause: str
    summary: str
    train: Callable[[DemoRank], None]  # runs in each rank until it is killed
    ranks: int = 1
    hogs: bool = False  # `HOGS` run while it is disturbed
    file: bool = False  # it reads a file on a disk
    quota: bool = False  # it runs in a control group, with a CPU quota while it is disturbed
    turns: bool = True  # whether it runs well and badly in turns; else its summary holds from the beginning


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
        read_records(rank.file, 0.1 if rank.disturbed() else 0.01)
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


def _straggler(rank: DemoRank) -> None:
    for step, _batch in enumerate(Loader(partial(_decode, 1.0), 1), 1):
        if rank.number and rank.disturbed():
            decode_image(40.0)
        rank.gpu.launch(25.0)
        rank.gpu.synchronize()
        rank.arrive(step)
        rank.gpu.all_reduce(partial(rank.peer_is_at, step))


SCENARIOS = {
    "cpu-contention": Scenario("input-bound", "cpu-contention", "two agents take the CPUs that the workers need", _contended, hogs=True),
    "slow-disk": Scenario("input-bound", "disk-io", "workers read many small records from the disk", _slow_disk, file=True),
    "too-few-workers": Scenario("input-bound", "too-few-workers", "one worker, while CPUs are idle", _fed(60.0, 1, 20.0), turns=False),
    "throttled": Scenario("input-bound", "cgroup-throttle", "a CPU quota stops the job (needs root)", _fed(16.0, 2, 20.0), quota=True),
    "memcpy-bottleneck": Scenario("transfer-bound", "h2d-transfer", "huge batches from pageable memory", _memcpy_bottleneck, turns=False),
    "tiny-kernels": Scenario("busy-not-working", "small-kernels", "busy by nvidia-smi, 95% of the GPU idle", _tiny_kernels, turns=False),
    "sync-storm": Scenario("wait-heavy", "sync-storm", ".item() after every small operation", _sync_storm, turns=False),
    "straggler": Scenario("straggler", "straggler-rank", "rank 1 prepares longer, and rank 0 waits for it", _straggler, ranks=2),
    "queue-full-healthy": Scenario("healthy", "none", "idle workers, full queues: nothing is wrong", _fed(3.0, 4, 120.0, 4), turns=False),
}
