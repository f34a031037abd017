"""One thread's task clock: whenever it has run for so long the kernel writes down where, with the top of its stack.

perf_event_open(2) without privilege: user space alone, of a process of one's own, where `kernel.perf_event_paranoid` is 2 or less. What
it costs the thread is a few microseconds a sample.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator

from gputop.sources.ebpf import uprobe

STACK_BYTES = 2048
"""Of the calls that have not returned: enough for those of a driver."""
# perf_event_attr to its fifth version: type, size, config, sample_period, sample_type, read_format, flags, wakeup, bp_type, and config1,
# config2, branch_sample_type, sample_regs_user, sample_stack_user, clockid, sample_regs_intr, aux_watermark, sample_max_stack, reserved
_ATTRIBUTES = struct.Struct("<IIQQQQQIIQQQQIIQIHH")
_SOFTWARE, _TASK_CLOCK = 1, 1
_IP, _STACK = 1 << 0, 1 << 13
_DISABLED, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 0, 1 << 5, 1 << 6
_ENABLE, _DISABLE = 0x2400, 0x2401
_PAGES = 128
_HEAD, _TAIL = 1024, 1032
"""data_head and data_tail in perf_event_mmap_page."""
_RECORD, _SAMPLE = struct.Struct("<IHH"), 9
_WORD, _IP_AND_ROOM = struct.Struct("<Q"), struct.Struct("<QQ")


class TaskClock:
    """Of one thread. Raises OSError where there is none to be had."""

    def __init__(self, tid: int, period_ns: int) -> None:
        attributes = _ATTRIBUTES.pack(
            _SOFTWARE, _ATTRIBUTES.size, _TASK_CLOCK, period_ns, _IP | _STACK, 0,
            _DISABLED | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR, 1, 0, 0, 0, 0, 0, STACK_BYTES, 0, 0, 0, 0, 0,
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
        """Write samples down from now on."""
        fcntl.ioctl(self._fd, _ENABLE)

    def stop(self) -> None:
        """And no more."""
        fcntl.ioctl(self._fd, _DISABLE)

    def close(self) -> None:
        """Give it up."""
        self._ring.close()
        os.close(self._fd)

    def samples(self) -> Iterator[tuple[int, bytes]]:
        """(instruction, top of the stack) of those not taken yet, in their order. What came when there was no room is left out."""
        (head,), (tail,) = _WORD.unpack_from(self._ring, _HEAD), _WORD.unpack_from(self._ring, _TAIL)
        records = self._bytes(tail, head - tail)
        _WORD.pack_into(self._ring, _TAIL, head)
        at = 0
        while at < len(records):
            kind, _, size = _RECORD.unpack_from(records, at)
            if kind == _SAMPLE:
                yield _read(records, at + _RECORD.size)
            at += size or len(records)

    def _bytes(self, at: int, size: int) -> bytes:
        start = self._page + at % self._size
        end = min(start + size, self._page + self._size)
        return self._ring[start:end] + self._ring[self._page : self._page + size - (end - start)]


def _read(records: bytes, at: int) -> tuple[int, bytes]:
    """ip, room of the stack, that much of it, and how much of this is filled."""
    instruction, room = _IP_AND_ROOM.unpack_from(records, at)
    at += _IP_AND_ROOM.size
    return instruction, records[at : at + _WORD.unpack_from(records, at + room)[0]] if room else b""
