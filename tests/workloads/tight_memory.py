"""A memory control group around a workload that reads a file again and again, and the limit which leaves no room for that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads import cgroup, slow_disk
from tests.workloads.runner import Running


def missing() -> str:
    """Why memory cannot be limited here, empty if it can."""
    return cgroup.missing("memory")


@contextmanager
def group(running: Running) -> Iterator[None]:
    """`samples` in the workload's folder, and the group, which is joined before anything is allocated, so that all of it counts."""
    with slow_disk.file(running), cgroup.group("memory", running.name) as path:
        running.env["GPUTOP_WORKLOAD_CGROUP"] = str(path)
        yield


@contextmanager
def limited(running: Running, room_bytes: int) -> Iterator[Path]:
    """From now on the group may hold so much beside what it holds for ever; gives its folder."""
    path = Path(running.env["GPUTOP_WORKLOAD_CGROUP"])
    cgroup.limit_memory(path, cgroup.unreclaimable_bytes(path) + room_bytes)
    yield path
    cgroup.limit_memory(path, 1 << 40)
