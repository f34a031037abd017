"""The simulated GPU's memory: 64-bit words in a file that the demo's trainers write and the source reads, mapped shared.

    word 0..2    MAGIC, VERSION, number of devices
    per device   DEVICE_WORDS words from HEAD on: those named below, then PROCS slots of pid, bytes, busy ns

Work that is booked is contiguous up to ``UNTIL``, so by ``now`` the device has been busy for
``BUSY - max(0, UNTIL - now)``. Times are CLOCK_MONOTONIC nanoseconds. One process writes to a device, its trainer.
"""

from __future__ import annotations

import mmap
import os

from msgspec import Struct

MAGIC, VERSION = 0x67_70_75_74_6F_70_44_31, 1
HEAD, DEVICE_WORDS, PROCS = 4, 32, 8
BUSY, UNTIL, SM_BUSY, SM_PPM, RX, TX, LAUNCHES, FIRST_PROC = range(8)
"""Busy ns booked; when it ends; the same weighted by the share of SMs, and that share now (ppm); bytes in and out; kernels; slots."""
MOST_DEVICES = 8
SIZE = 8 * (HEAD + MOST_DEVICES * DEVICE_WORDS)


class NotAGpu(Exception):
    """The file is not what `create` makes."""


class Totals(Struct, frozen=True):
    """A device's counters at ``t_ns``, what is booked ahead left out."""

    t_ns: int
    busy_ns: int
    sm_busy_ns: int
    rx_bytes: int
    tx_bytes: int


def create(devices: int) -> int:
    """A file without a name, so that nothing is left whatever happens; returns its descriptor."""
    fd = os.memfd_create("gputop-simulated-gpu")
    os.ftruncate(fd, SIZE)
    words = attach(fd)
    words[0:3] = memoryview(bytearray(24)).cast("Q")
    words[1], words[2] = VERSION, devices
    words[0] = MAGIC
    return fd


def attach(fd: int, writable: bool = True) -> memoryview:
    """The words behind a descriptor. Raises NotAGpu for a file that is too short, OSError where it cannot be mapped."""
    if os.fstat(fd).st_size < SIZE:
        raise NotAGpu("too short")
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    return memoryview(mmap.mmap(fd, SIZE, mmap.MAP_SHARED, access)).cast("Q")


def open_path(path: str) -> memoryview:
    """The words of the file at ``path``, to read. Raises NotAGpu or OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        words = attach(fd, writable=False)
    finally:
        os.close(fd)
    if words[0] != MAGIC or words[1] != VERSION or not 0 < words[2] <= MOST_DEVICES:
        raise NotAGpu("made by another version of gputop")
    return words


def base(device: int) -> int:
    """The first word of a device."""
    return HEAD + device * DEVICE_WORDS


def totals(words: memoryview, device: int, now_ns: int) -> Totals:
    """What the device has done by ``now_ns``. A booking under way while we read is read again."""
    at = base(device)
    while True:
        busy, until, weighted, ppm = words[at : at + 4]
        if words[at + BUSY] == busy and words[at + UNTIL] == until:
            break
    ahead = max(0, until - now_ns)
    return Totals(now_ns, max(0, busy - ahead), max(0, weighted - ahead * ppm // 1_000_000), words[at + RX], words[at + TX])


def procs(words: memoryview, device: int) -> list[tuple[int, int, int]]:
    """(pid, memory bytes, busy ns) of each process on the device."""
    first = base(device) + FIRST_PROC
    slots = (tuple(words[first + 3 * slot : first + 3 * slot + 3]) for slot in range(PROCS))
    return [(pid, held, busy) for pid, held, busy in slots if pid]
