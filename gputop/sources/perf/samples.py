"""Samples of one thread's registers and stack (perf's task clock), and the CUDA function in which each was taken.

perf_event_open(2) without privilege: user space only, of one's own processes, if `kernel.perf_event_paranoid` is 2 or less. Each time the
thread has run for a period, the kernel takes a sample. In a VM each costs the thread 17 µs, mostly the timer's interrupt. The sample's
stack is unwound up to an exported function of libcuda or libcudart.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import re
import struct
from bisect import bisect_right
from collections.abc import Iterator
from io import FileIO
from typing import NamedTuple

from gputop.sources import elf
from gputop.sources.ebpf import uprobe
from gputop.sources.perf.unwind import MACHINE, VDSO, Registers, Unwinder, Unwinders, UnwindRow

STACK_BYTES = 8192  # of the stack's top: in driver 580 a wait takes 1.7 KB, a launch 3.8, a copy from the GPU 5.4
# perf_event_attr to its fifth version: type, size, config, sample_period, sample_type, read_format, flags, wakeup, bp_type, and config1,
# config2, branch_sample_type, sample_regs_user, sample_stack_user, clockid, sample_regs_intr, aux_watermark, sample_max_stack, reserved
_ATTRIBUTES = struct.Struct("<IIQQQQQIIQQQQIIQIHH")
_SOFTWARE, _TASK_CLOCK = 1, 1
_IP, _READ, _REGISTERS, _STACK = 1 << 0, 1 << 4, 1 << 12, 1 << 13
_DISABLED, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 0, 1 << 5, 1 << 6
_NO_WAKEUPS = 0  # wakeup_events: no thread polls, and a wakeup costs the thread an interrupt more, 11 of 28 µs a sample in a VM
_ENABLE, _DISABLE = 0x2400, 0x2401
_PAGES = 128  # of 4 KiB, the ring's size: users without privilege may have 516 KiB
_HEAD, _TAIL = 1024, 1032  # offsets of data_head and data_tail in perf_event_mmap_page
_RECORD, _SAMPLE = struct.Struct("<IHH"), 9  # perf_event_header, PERF_RECORD_SAMPLE
_WORD, _FIRST = struct.Struct("<Q"), struct.Struct("<QQQ")


_REGISTERS_AND_ROOM = struct.Struct(f"<{MACHINE.perf_mask.bit_count() if MACHINE else 0}QQ")
"""The sampled registers, then two more words. On both architectures the frame pointer comes first and the stack pointer last."""


class PerfSample(NamedTuple):
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
            _DISABLED | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR, _NO_WAKEUPS, 0, 0, 0, 0, MACHINE.perf_mask, STACK_BYTES, 0, 0, 0, 0, 0,
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

    def samples(self) -> Iterator[PerfSample]:
        """Samples since the last call, in order. Samples without room are lost."""
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


def _read(records: memoryview, at: int) -> PerfSample | None:
    """A sample's record: instruction, clock, kind of registers, registers by number, room for the stack, stack, bytes filled."""
    instruction, ran_ns, has_registers = _FIRST.unpack_from(records, at)
    if not has_registers:
        return None
    at += _FIRST.size
    fp, *ra, sp, room = _REGISTERS_AND_ROOM.unpack_from(records, at)
    at += _REGISTERS_AND_ROOM.size
    filled = _WORD.unpack_from(records, at + room)[0] if room else 0
    return PerfSample(Registers(instruction, sp, fp, *ra), records[at : at + filled], ran_ns)


SYNC, COPY, LAUNCH, OTHER, UNKNOWN, ELSEWHERE = "sync", "copy", "launch", "other", "unknown", ""  # kinds of places
_CUDA = re.compile(r"/lib(?:cuda|cudart)(?:[-.]\w+)?\.so[.\d]*( \(deleted\))?$")
"""Wheels bring their own libcudart, with a hash in its name."""
_CALLED = re.compile(r"\[vdso\]$|/(?:ld-|lib(?:c|m|pthread|rt|dl|stdc\+\+|gcc_s)[-.])[^/]*$")
"""Libraries that these call; code of any other library was not called by them."""
_NAMES = re.compile(f"{_CUDA.pattern}|{_CALLED.pattern}")
_PREFIX = re.compile(rb"cu(?:da)?[A-Z]")
_KINDS = (
    (SYNC, re.compile(r"cu(?:da)?(?:\w*Synchronize|EventQuery|StreamQuery|Memcpy\w*DtoH)")),
    (COPY, re.compile(r"cu(?:da)?Memcpy")),
    (LAUNCH, re.compile(r"cu(?:da)?(?:Launch|GraphLaunch)")),
)
_FRAMES = 32  # most frames that are unwound
MOST_FILES, MOST_CODE = 24, 128  # most files of CUDA's libraries in one process, and executable mappings; usually 8 each


class Code(NamedTuple):
    """Executable pages that map a library of CUDA, or one that CUDA calls."""

    start: int
    end: int
    offset: int
    name: str
    file: FileIO | None  # none for the vDSO
    cuda: bool


class ProcessCode:
    """The places of one process."""

    def __init__(self, code: list[Code], unwinders: Unwinders) -> None:
        """Raises elf.NotElf, or OSError if one of CUDA's libraries cannot be read."""
        self._functions = sorted(found for one in code if one.cuda for found in _functions(one, unwinders))
        self._starts = [start for start, _, _ in self._functions]
        self._code = [(one._replace(file=None), unwinders.of(one.file)) for one in sorted(code)]  # the files are closed
        self._starts_of_code = [one.start for one, _ in self._code]

    def kind(self, sample: PerfSample) -> str:
        """`SYNC`, `COPY`, `LAUNCH` or `OTHER` within such a call, `UNKNOWN` if the stack ends within the libraries, `ELSEWHERE`."""
        here, top, met = sample.registers, sample.registers.sp, ELSEWHERE
        for _ in range(_FRAMES):
            code, unwinder = self._code_at(here.pc)
            if code is None:
                break
            if code.cuda:
                if found := self._function_at(here.pc):
                    return found
                met = UNKNOWN
            row = _row(code, unwinder, here.pc)
            caller = here.caller(row, sample.stack, top) if row else None
            if caller is None:
                break
            here = caller
        return met

    def _code_at(self, pc: int) -> tuple[Code | None, Unwinder | None]:
        i = bisect_right(self._starts_of_code, pc) - 1
        return self._code[i] if i >= 0 and pc < self._code[i][0].end else (None, None)

    def _function_at(self, pc: int) -> str:
        i = bisect_right(self._starts, pc) - 1
        return self._functions[i][2] if i >= 0 and pc < self._functions[i][1] else ELSEWHERE


def _row(code: Code, unwinder: Unwinder | None, pc: int) -> UnwindRow | None:
    address = unwinder.virtual(pc - code.start + code.offset) if unwinder else None
    return unwinder.row(address) if unwinder and address is not None else None


def _functions(code: Code, unwinders: Unwinders) -> list[tuple[int, int, str]]:
    found = []
    for offset, size, name in unwinders.functions(code.file, _PREFIX) if code.file else ():
        start = code.start + offset - code.offset
        if code.start <= start < code.end:
            found.append((start, start + size, next((kind for kind, wanted in _KINDS if wanted.match(name)), OTHER)))
    return found


def code_of(pid: int) -> list[Code]:
    """Executable mappings in ``pid`` of CUDA's libraries and of libraries that they call; empty without CUDA's. Raises OSError."""
    base = f"/proc/{pid}"
    named = [(not _CUDA.search(one.name), one) for one in elf.mappings(base) if "x" in one.permissions and _NAMES.search(one.name)]
    named = sorted(named)[:MOST_CODE]
    if not named or named[0][0]:
        return []
    files: dict[tuple[str, str], FileIO | None] = {}
    code = []
    for called, one in named:
        try:
            if one.file not in files and len(files) < MOST_FILES:
                files[one.file] = None if one.name == VDSO else elf.open_mapped(base, one)
        except OSError:
            if not called:
                raise
        if one.file in files:
            start, end = one.addresses
            code.append(Code(start=start, end=end, offset=one.offset, name=one.name, file=files[one.file], cuda=not called))
    return code
