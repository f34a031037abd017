"""The simulated GPU's file (simgpu.h) from Python, for tests that book work by hand."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

MAGIC, VERSION = 0x55504753, 2


class Proc(ctypes.Structure):
    """struct simgpu_proc"""

    _fields_ = [("pid", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("mem_bytes", ctypes.c_uint64), ("busy_ns", ctypes.c_uint64)]


class Device(ctypes.Structure):
    """struct simgpu_device"""

    _fields_ = [
        ("busy_ns", ctypes.c_uint64), ("busy_until_ns", ctypes.c_uint64),
        ("sm_busy_ns", ctypes.c_uint64), ("sm_weight_ppm", ctypes.c_uint64),
        ("h2d_bytes", ctypes.c_uint64), ("d2h_bytes", ctypes.c_uint64), ("launches", ctypes.c_uint64),
        ("copy_ns", ctypes.c_uint64), ("procs", Proc * 64),
    ]  # fmt: skip


class SimGpu(ctypes.Structure):
    """struct simgpu"""

    _fields_ = [
        ("magic", ctypes.c_uint32), ("version", ctypes.c_uint32), ("devices", ctypes.c_uint32), ("pad", ctypes.c_uint32),
        ("dev", Device * 16),
    ]  # fmt: skip


def create(path: Path, devices: int) -> SimGpu:
    """A fresh mapping with ``devices`` idle GPUs; it lives as long as what is returned."""
    with path.open("w+b") as file:
        file.truncate(ctypes.sizeof(SimGpu))
        sim = SimGpu.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(SimGpu)))
    sim.magic, sim.version, sim.devices = MAGIC, VERSION, devices
    return sim
