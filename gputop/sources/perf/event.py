"""One thread's task clock: each time it has run for a period, the kernel samples some registers and the top of its stack.

perf_event_open(2) without privilege: user space only, of one's own processes, if `kernel.perf_event_paranoid` is 2 or less. A sample costs
the thread a few microseconds.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from gputop.sources.ebpf import uprobe
from gputop.sources.perf.unwind import MACHINE, Registers

STACK_BYTES = 8192  # of the stack's top: in driver 580 a wait takes 1.7 KB, a launch 3.8, a copy from the GPU 5.4
# perf_event_attr to its fifth version: type, size, config, sample_period, sample_type, read_format, flags, wakeup, bp_type, and config1,
# config2, branch_sample_type, sample_regs_user, sample_stack_user, clockid, sample_regs_intr, aux_watermark, sample_max_stack, reserved
_ATTRIBUTES = struct.Struct("<IIQQQQQIIQQQQIIQIHH")
_SOFTWARE, _TASK_CLOCK = 1, 1
_IP, _READ, _REGISTERS, _STACK = 1 << 0, 1 << 4, 1 << 12, 1 << 13
_DISABLED, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 0, 1 << 5, 1 << 6
_ENABLE, _DISABLE = 0x2400, 0x2401
_PAGES = 128  # of 4 KiB, the ring's size: users without privilege may have 516 KiB
_HEAD, _TAIL = 1024, 1032  # offsets of data_head and data_tail in perf_event_mmap_page
_RECORD, _SAMPLE = struct.Struct("<IHH"), 9  # perf_event_header, PERF_RECORD_SAMPLE
_WORD, _FIRST = struct.Struct("<Q"), struct.Struct("<QQQ")


_REGISTERS_AND_ROOM = struct.Struct(f"<{MACHINE.perf_mask.bit_count() if MACHINE else 0}QQ")
"""On both architectures the frame pointer comes first and the stack pointer last."""


class Sample(NamedTuple):
    """One sample of a thread."""

    registers: Registers
    stack: memoryview  # its memory from the stack pointer on
    ran_ns: int = 0  # its CPU time since the clock was made, including time in the kernel


class TaskClock:
    """The task clock of one thread. Raises OSError if the kernel refuses it."""

    def __init__(self, tid: int, period_ns: int) -> None:
        if MACHINE is None:
            raise OSError(errno.ENOSYS, "not supported on this architecture")
        attributes = _ATTRIBUTES.pack(
            _SOFTWARE, _ATTRIBUTES.size, _TASK_CLOCK, period_ns, _IP | _READ | _REGISTERS | _STACK, 0,
            _DISABLED | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR, 1, 0, 0, 0, 0, MACHINE.perf_mask, STACK_BYTES, 0, 0, 0, 0, 0,
        )  # fmt: skip
        self.period_ns = period_ns
        packed = ctypes.create_string_buffer(attributes, len(attributes))
        self._fd = uprobe.call(uprobe.SYS_PERF_EVENT_OPEN, packed, tid, -1, -1, uprobe.CLOEXEC)
        self._page = mmap.PAGESIZE
        self._size = _PAGES * 4096 // self._page * self._page
        try:
            self._ring = mmap.mmap(self._fd, self._page + self._size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError:
            os.close(self._fd)
            raise

    def start(self) -> None:
        """Start sampling."""
        fcntl.ioctl(self._fd, _ENABLE)

    def stop(self) -> None:
        """Stop sampling."""
        fcntl.ioctl(self._fd, _DISABLE)

    def close(self) -> None:
        """Release it."""
        self._ring.close()
        os.close(self._fd)

    def samples(self) -> Iterator[Sample]:
        """Samples since the last call, in order. Those that found no room are lost."""
        (head,), (tail,) = _WORD.unpack_from(self._ring, _HEAD), _WORD.unpack_from(self._ring, _TAIL)
        records = memoryview(self._bytes(tail, head - tail))
        _WORD.pack_into(self._ring, _TAIL, head)
        at = 0
        while at < len(records):
            kind, _, size = _RECORD.unpack_from(records, at)
            if kind == _SAMPLE and (sample := _read(records, at + _RECORD.size)) is not None:
                yield sample
            at += size or len(records)

    def _bytes(self, at: int, size: int) -> bytes:
        start = self._page + at % self._size
        end = min(start + size, self._page + self._size)
        return self._ring[start:end] + self._ring[self._page : self._page + size - (end - start)]


def _read(records: memoryview, at: int) -> Sample | None:
    """A sample's record: instruction, clock, kind of registers, registers by number, room for the stack, stack, bytes filled."""
    instruction, ran_ns, has_registers = _FIRST.unpack_from(records, at)
    if not has_registers:
        return None
    at += _FIRST.size
    fp, *ra, sp, room = _REGISTERS_AND_ROOM.unpack_from(records, at)
    at += _REGISTERS_AND_ROOM.size
    filled = _WORD.unpack_from(records, at + room)[0] if room else 0
    return Sample(Registers(instruction, sp, fp, *ra), records[at : at + filled], ran_ns)
