"""Control groups made for one workload, in whichever hierarchy this host has, and removed afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.wait import PATIENCE_S

if TYPE_CHECKING:
    from tests.workloads.runner import Running

_ROOT = Path("/sys/fs/cgroup")


def missing(controller: str) -> str:
    """Why no group of ``controller`` (cpu, memory, blkio) can be made here; empty if it can."""
    if os.geteuid() != 0:
        return "not root"
    return "" if (_ROOT / controller).is_dir() or _v2_has(controller) else f"no {controller} cgroup"


def is_v2(controller: str) -> bool:
    """Whether ``controller`` is the unified hierarchy's."""
    return not (_ROOT / controller).is_dir()


@contextmanager
def group(controller: str, name: str) -> Iterator[Path]:
    """An empty group; whoever is still in it at the end goes back to where it came from."""
    parent = _ROOT if is_v2(controller) else _own_v1(controller)
    path = parent / f"gputop-{name}-{os.getpid()}"
    path.mkdir()
    try:
        yield path
    finally:
        remove(path, parent)


@contextmanager
def pod(controller: str, running: Running, sidecar: str) -> Iterator[Path]:
    """A control group with one for each of two containers below it: the workload runs in the first, ``trainer``."""
    with group(controller, running.name) as path:
        if is_v2(controller):
            (path / "cgroup.subtree_control").write_text(f"+{controller}")
        containers = [path / "trainer", path / sidecar]
        for container in containers:
            container.mkdir()
        running.env["GPUTOP_WORKLOAD_CGROUP"] = str(containers[0])
        try:
            yield path
        finally:
            if controller == "memory":
                limit_memory(path, 1 << 40)
            for container in containers:
                remove(container, path.parent)


def add(path: Path, pids: list[int]) -> None:
    """Move processes, and thereby their future children, into the group."""
    for pid in pids:
        with suppress(ProcessLookupError):
            (path / "cgroup.procs").write_text(str(pid))


def limit_cpu(path: Path, cpus: float) -> None:
    """A CFS quota of ``cpus`` in periods of 100 ms."""
    if (path / "cpu.max").exists():
        (path / "cpu.max").write_text(f"{int(cpus * 100_000)} 100000")
    else:
        (path / "cpu.cfs_period_us").write_text("100000")
        (path / "cpu.cfs_quota_us").write_text(str(int(cpus * 100_000)))


@contextmanager
def limited_cpu(path: Path, cpus: float) -> Iterator[None]:
    """Such a quota for a while; as many CPUs as there are afterwards."""
    limit_cpu(path, cpus)
    yield
    limit_cpu(path, os.cpu_count() or 1)


def limit_memory(path: Path, limit_bytes: int) -> None:
    """At most so much memory, page cache included; beyond that the group reclaims its own."""
    name = "memory.max" if (path / "memory.max").exists() else "memory.limit_in_bytes"
    (path / name).write_text(str(limit_bytes))


def unreclaimable_bytes(path: Path) -> int:
    """What the group holds beside page cache (anonymous, kernel)."""
    v2 = (path / "memory.current").exists()
    usage = int((path / ("memory.current" if v2 else "memory.usage_in_bytes")).read_text())
    stat = dict(line.split() for line in (path / "memory.stat").read_text().splitlines())
    shmem = int(stat.get("shmem", 0))
    return usage - int(stat["file" if v2 else "cache"]) + shmem


def limit_reads(path: Path, device: str, bytes_per_s: int) -> None:
    """Reads from block device ``MAJ:MIN`` at ``bytes_per_s`` at most."""
    _limit_disk(path, "rbps", "read", device, bytes_per_s)


def limit_writes(path: Path, device: str, bytes_per_s: int) -> None:
    """The same of writes."""
    _limit_disk(path, "wbps", "write", device, bytes_per_s)


def _limit_disk(path: Path, v2_key: str, v1_word: str, device: str, bytes_per_s: int) -> None:
    if (path / "io.max").exists():
        (path / "io.max").write_text(f"{device} {v2_key}={bytes_per_s}")
    else:
        (path / f"blkio.throttle.{v1_word}_bps_device").write_text(f"{device} {bytes_per_s}")


def device_of(file: Path) -> str:
    """``MAJ:MIN`` of the disk below the file system that holds ``file``."""
    number = file.stat().st_dev
    own = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    disk = own.resolve().parent / "dev" if (own / "partition").exists() else own / "dev"
    return disk.read_text().strip()


def _own_v1(controller: str) -> Path:
    """The group this process is in: limits and shares it already has go on holding."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _number, controllers, path = line.split(":", 2)
        own = _ROOT / controller / path.lstrip("/")
        if controller in controllers.split(",") and own.is_dir():
            return own
    return _ROOT / controller


def _v2_has(controller: str) -> bool:
    kind = {"blkio": "io"}.get(controller, controller)
    control = _ROOT / "cgroup.subtree_control"
    return control.exists() and kind in control.read_text().split()


def remove(path: Path, parent: Path) -> None:
    """Remove a group; whoever is still in it moves to ``parent``."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        add(parent, [int(pid) for pid in (path / "cgroup.procs").read_text().split()])
        try:
            return path.rmdir()
        except OSError:  # a process that is just ending
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
