"""The simulated GPU's file (tests/stubs/simgpu.h) from Python: make one, and read the truth from it."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path

MAGIC, VERSION, DEVICES, PROCS = 0x55504753, 2, 16, 64


class Proc(ctypes.Structure):
    """struct simgpu_proc."""

    _fields_ = [("pid", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("mem_bytes", ctypes.c_uint64), ("busy_ns", ctypes.c_uint64)]


class Device(ctypes.Structure):
    """struct simgpu_device."""

    _fields_ = [
        ("booked_ns", ctypes.c_uint64),
        ("busy_until_ns", ctypes.c_uint64),
        ("sm_busy_ns", ctypes.c_uint64),
        ("sm_weight_ppm", ctypes.c_uint64),
        ("h2d_bytes", ctypes.c_uint64),
        ("d2h_bytes", ctypes.c_uint64),
        ("launches", ctypes.c_uint64),
        ("copy_ns", ctypes.c_uint64),
        ("procs", Proc * PROCS),
    ]

    def busy_ns(self) -> int:
        """Work done by now."""
        return self.booked_ns - max(0, self.busy_until_ns - time.monotonic_ns())

    def pids(self) -> dict[int, int]:
        """Pid -> bytes of GPU memory."""
        return {proc.pid: proc.mem_bytes for proc in self.procs if proc.pid}

    def booked_for(self) -> dict[int, int]:
        """Pid -> ns of work booked, by the processes that have a context."""
        return {proc.pid: proc.busy_ns for proc in self.procs if proc.pid}


class SimGpu(ctypes.Structure):
    """struct simgpu."""

    _fields_ = [
        ("magic", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("devices", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
        ("dev", Device * DEVICES),
    ]


def create(path: Path, devices: int) -> None:
    """An idle host with ``devices`` GPUs."""
    path.write_bytes(bytes(SimGpu(MAGIC, VERSION, devices)))


def leave() -> None:
    """End the contexts of this process, which is to go on as another program: the driver does so at exec, and no destructor runs."""
    path = os.environ.get("GPUTOP_SIMGPU")
    for gpu in attach(Path(path)).dev if path else ():
        for proc in gpu.procs:
            if proc.pid == os.getpid():
                proc.pid = proc.mem_bytes = 0


def attach(path: Path) -> SimGpu:
    """The file at ``path``, live."""
    with path.open("r+b") as file:
        return SimGpu.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(SimGpu)))
