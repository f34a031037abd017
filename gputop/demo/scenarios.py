"""The demo's scenarios: what trains, what goes wrong, and which verdict that must get."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from gputop.demo import disk
from gputop.demo.gpu import FULL
from gputop.demo.loader import Loader
from gputop.demo.work import decode_image

if TYPE_CHECKING:
    from gputop.demo.train import Rank

HOGS = {"log-shipper": 2, "metrics-agent": 1}
"""Name -> threads per CPU. Named for what takes the CPUs of real hosts; they are the demo's own."""
MOST_CPUS = 16
"""Beyond this many CPUs the demo runs at a low priority, so that colleagues hardly notice it."""


class Scenario(Struct, frozen=True):
    """``train`` runs in each rank until it is killed; the disturbance is on or off, as `Rank.disturbed` says."""

    symptom: str
    cause: str
    summary: str
    train: Callable[[Rank], None]
    ranks: int = 1
    hogs: bool = False
    file: bool = False
    quota: bool = False


def cpus() -> int:
    """CPUs the demo may use: the loads are sized by it."""
    return len(os.sched_getaffinity(0))


def _decode(cpu_ms: float, _index: int) -> bytes:
    decode_image(cpu_ms)
    return bytes(64)


def _feed(rank: Rank, loader: Loader, step_ms: float) -> None:
    for _batch in loader:
        rank.gpu.copy_in(1 << 20)
        for _kernel in range(4):
            rank.gpu.launch(step_ms / 4)
        rank.gpu.synchronize()


def _contended(rank: Rank) -> None:
    """Workers that just keep up while the CPUs are theirs: a bit over half of all CPU time goes into the batches."""
    workers = min(8, max(2, cpus()))
    step_ms = 50.0
    _feed(rank, Loader(partial(_decode, 0.55 * step_ms * min(workers, cpus())), workers), step_ms)


def _slow_disk(rank: Rank) -> None:
    def load(_index: int) -> bytes:
        disk.read_records(rank.file, 0.1 if rank.disturbed() else 0.01)
        decode_image(1.0)
        return bytes(64)

    _feed(rank, Loader(load, 2), 25.0)


def _too_few_workers(rank: Rank) -> None:
    _feed(rank, Loader(partial(_decode, 60.0), 1), 20.0)


def _throttled(rank: Rank) -> None:
    _feed(rank, Loader(partial(_decode, 16.0), 2), 20.0)


def _memcpy_bottleneck(rank: Rank) -> None:
    for _batch in Loader(partial(_decode, 1.0), 2):
        rank.gpu.copy_in(300 << 20)
        rank.gpu.launch(25.0)
        rank.gpu.synchronize()


def _tiny_kernels(rank: Rank) -> None:
    for _batch in Loader(partial(_decode, 1.0), 2):
        for _kernel in range(20_000):
            rank.gpu.launch(0.0015, FULL // 22)
        rank.gpu.synchronize()


def _sync_storm(rank: Rank) -> None:
    for _batch in Loader(partial(_decode, 1.0), 2):
        for _item in range(300):
            rank.gpu.launch(0.1)
            rank.gpu.synchronize()
            decode_image(0.05)


def _straggler(rank: Rank) -> None:
    for step, _batch in enumerate(Loader(partial(_decode, 1.0), 1), 1):
        if rank.number and rank.disturbed():
            decode_image(40.0)
        rank.gpu.launch(25.0)
        rank.gpu.synchronize()
        rank.arrive(step)
        rank.gpu.all_reduce(partial(rank.peer_is_at, step))


def _queue_full_healthy(rank: Rank) -> None:
    _feed(rank, Loader(partial(_decode, 3.0), 4, prefetch=4), 120.0)


SCENARIOS = {
    "cpu-contention": Scenario("input-bound", "cpu-contention", "two agents take the CPUs that the workers need", _contended, hogs=True),
    "slow-disk": Scenario("input-bound", "disk-io", "workers read many small records from the disk", _slow_disk, file=True),
    "too-few-workers": Scenario("input-bound", "too-few-workers", "one worker, flat out, beside CPUs that idle", _too_few_workers),
    "throttled": Scenario("input-bound", "cgroup-throttle", "a CPU quota stops the job (needs root)", _throttled, quota=True),
    "memcpy-bottleneck": Scenario("transfer-bound", "h2d-transfer", "huge batches from pageable memory", _memcpy_bottleneck),
    "tiny-kernels": Scenario("busy-not-working", "small-kernels", "busy by nvidia-smi, and 95% of the GPU idles", _tiny_kernels),
    "sync-storm": Scenario("wait-heavy", "sync-storm", ".item() after every small operation", _sync_storm),
    "straggler": Scenario("straggler", "straggler-rank", "rank 1 prepares longer, and rank 0 waits for it", _straggler, ranks=2),
    "queue-full-healthy": Scenario("healthy", "none", "idle workers with full queues: nothing is wrong", _queue_full_healthy),
}
