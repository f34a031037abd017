"""A network namespace of a workload's own, whose loopback can be slowed (`tc tbf`): its ranks talk there."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from tests.workloads.runner import Running

MTU = 1500  # bytes: what loopback takes by itself, 64 kB, is more than a bucket of tbf holds
_NEWNET = 0x40000000  # CLONE_NEWNET
_VARIABLE = "GPUTOP_WORKLOAD_NETNS"


def needs() -> str:
    """Why no such namespace can be made here; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    return "" if shutil.which("ip") and shutil.which("tc") else "no ip or no tc: apt install iproute2"


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """The namespace, with its loopback up; it ends with the context."""
    name = f"gputop-{os.getpid()}"
    _run("ip", "netns", "add", name)
    try:
        _run("ip", "-n", name, "link", "set", "lo", "mtu", str(MTU), "up")
        running.env[_VARIABLE] = f"/run/netns/{name}"
        yield
    finally:
        with suppress(subprocess.CalledProcessError):
            _run("ip", "netns", "del", name)


@contextmanager
def slowed(running: Running, mbit: int) -> Iterator[None]:
    """Loopback there carries no more than ``mbit``."""
    name = Path(running.env[_VARIABLE]).name
    burst = max(64, mbit // 4)  # kB: at least a timer tick's worth
    _run("tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "tbf", "rate", f"{mbit}mbit", "burst", f"{burst}kb", "limit", "8mb")
    yield


def enter() -> None:
    """Move the calling thread, and the threads that it will start, to the namespace."""
    descriptor = os.open(os.environ[_VARIABLE], os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(descriptor)


def join_gloo(rank: int, ranks: int) -> None:
    """Make torch's process group of all ranks, by gloo over the namespace's loopback."""
    import torch.distributed as dist

    enter()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555", "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=timedelta(seconds=60))


def map_nccl() -> mmap.mmap:
    """A mapped file with the name of NCCL's library, as a rank that uses it has one."""
    path = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"], "libnccl.so.2.21.5")
    with path.open("a+b") as file:
        file.truncate(mmap.PAGESIZE)
        return mmap.mmap(file.fileno(), mmap.PAGESIZE, access=mmap.ACCESS_READ)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=10)
