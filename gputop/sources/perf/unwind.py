"""Unwinds stacks by the tables that compilers write for exceptions: `.eh_frame`, found through `.eh_frame_hdr`.

Stripped libraries keep them (DWARF 5, section 6.4, as encoded by the Linux Standard Base). Scanning the stack for return addresses is no
substitute: addresses of finished calls stay in parts that deeper frames leave unwritten.
"""

from __future__ import annotations

import os
import platform
import re
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable
from io import FileIO
from typing import NamedTuple

from gputop.sources import elf
from gputop.sources.elf import Read

_RELATIVE = 0x1B  # DW_EH_PE_pcrel | DW_EH_PE_sdata4
# Version, relative 4-byte pointers, a 4-byte count, a table relative to the header: what every linker writes.
_HEADER, _TABLE_AT = bytes((1, _RELATIVE, 0x03, 0x3B)), 12
_MOST_TABLE_BYTES = 4 << 20  # of a library's table of functions, 8 bytes each: libcuda has 40,000, glibc 4,000
_MOST_REMEMBERED = 64  # rows on the stack of DW_CFA_remember_state: compilers write one or two
_LENGTH = struct.Struct("<I")
_ROWS, _COMMONS, _FILES = 8192, 16, 64  # entries kept in the caches
VDSO = "[vdso]"  # the kernel's own library, the same in every process
_RECORD_BYTES = 1 << 16  # of a record; more is no function's: the library may be made up


class Machine(NamedTuple):
    """DWARF numbers of an architecture's registers, and perf's mask for them (x86 has no return register)."""

    sp: int
    fp: int
    ra: int
    perf_mask: int


MACHINE = {
    "x86_64": Machine(sp=7, fp=6, ra=16, perf_mask=1 << 6 | 1 << 7),
    "aarch64": Machine(sp=31, fp=29, ra=30, perf_mask=1 << 29 | 1 << 30 | 1 << 31),
}.get(platform.machine())


class UnwindRow(NamedTuple):
    """Rule to unwind from an instruction: the caller's stack pointer, and where two registers are saved relative to it."""

    by_fp: bool  # the caller's stack pointer lies ``offset`` above the frame pointer, else above the stack pointer
    offset: int
    fp_at: int | None  # none: the register still holds the caller's value
    ra_at: int | None


class Registers(NamedTuple):
    """One frame: instruction, stack pointer, frame pointer, and the return address if a register holds it."""

    pc: int
    sp: int
    fp: int
    ra: int | None = None

    def caller(self, row: UnwindRow, stack: bytes | memoryview, top: int) -> Registers | None:
        """The caller's frame by ``row``; None if it lies outside ``stack``, which begins at address ``top``."""
        frame = (self.fp if row.by_fp else self.sp) + row.offset
        pc = self.ra if row.ra_at is None else _word(stack, frame + row.ra_at - top)
        fp = self.fp if row.fp_at is None else _word(stack, frame + row.fp_at - top)
        if pc is None or fp is None or frame < self.sp:
            return None
        return Registers((pc & _ADDRESS) - 1, frame, fp)


_ADDRESS = (1 << 48) - 1  # bits of an address; those above hold the signature of a signed return address


def _word(stack: bytes | memoryview, at: int) -> int | None:
    return int.from_bytes(stack[at : at + 8], "little") if 0 <= at <= len(stack) - 8 else None


class Unwinder:
    """The unwinding tables of one ELF file. Raises elf.NotElf or OSError; OverflowError or struct.error if the file is damaged."""

    def __init__(self, read: Read, machine: Machine) -> None:
        self._read = read
        self._machine = machine
        self._rows: dict[int, UnwindRow | None] = {}
        self._commons: dict[int, bytes] = {}
        self._loads = elf.segments(read, elf.LOAD)
        (self._header, self._header_at, size), *_ = [*elf.segments(read, elf.EH_FRAME), (0, 0, 0)]
        table = read(self._header_at, min(size, _MOST_TABLE_BYTES))
        entries = table[_TABLE_AT : _TABLE_AT + 8 * int.from_bytes(table[8:_TABLE_AT], "little")] if table.startswith(_HEADER) else b""
        pairs = array("i", entries[: len(entries) // 8 * 8])
        self._starts, self._entries = pairs[0::2], pairs[1::2]

    def row(self, address: int) -> UnwindRow | None:
        """Rule to unwind from the instruction at the file's virtual ``address``; None if the tables have none."""
        if address not in self._rows:
            if len(self._rows) >= _ROWS:
                self._rows.clear()
            try:
                self._rows[address] = self._find(address)
            except (OSError, OverflowError, LookupError, struct.error):
                self._rows[address] = None
        return self._rows[address]

    def virtual(self, offset: int) -> int | None:
        """Virtual address of a file offset, None outside the segments."""
        return next((offset - at + virtual for virtual, at, size in self._loads if at <= offset < at + size), None)

    def _find(self, address: int) -> UnwindRow | None:
        i = bisect_right(self._starts, address - self._header) - 1
        if i < 0:
            return None
        at = self._header_at + self._entries[i]
        entry = _DwarfReader(self._record(at))
        common_at = at + _LENGTH.size - entry.u32()
        common = _Common(self._common(common_at))
        start = self._header + self._starts[i]
        entry.skip(4)  # the function's start, known from the table
        if common.encoding != _RELATIVE or not start <= address < start + entry.u32():
            return None
        if common.augmented:
            entry.skip(entry.uleb())
        return _CfiProgram(common, self._machine).run(entry, start, address)

    def _common(self, at: int) -> bytes:
        """The CIE at ``at``; usually all functions share one."""
        if at not in self._commons:
            if len(self._commons) >= _COMMONS:
                self._commons.clear()
            self._commons[at] = self._record(at)
        return self._commons[at]

    def _record(self, at: int) -> bytes:
        """The bytes of a record, behind its length."""
        (size,) = _LENGTH.unpack(self._read(at, _LENGTH.size))
        if size > _RECORD_BYTES:
            raise IndexError("no such record")
        return self._read(at + _LENGTH.size, size)


class Unwinders:
    """The tables and functions of files, each read once whatever process maps it under whatever path."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...] | None, Unwinder | None] = {}
        self._functions: dict[tuple[int, ...], list[tuple[int, int, str]] | str] = {}  # functions of a file, or why it has none

    def functions(self, file: FileIO, prefix: re.Pattern[bytes]) -> list[tuple[int, int, str]]:
        """`elf.functions`, cached; ``prefix`` must always be the same. Raises as that."""
        key = elf.facts(file)
        if key not in self._functions:
            if len(self._functions) >= _FILES:
                self._functions.clear()
            try:
                self._functions[key] = elf.functions(file, prefix)
            except elf.NotElf as error:
                self._functions[key] = str(error)
        if isinstance(found := self._functions[key], str):
            raise elf.NotElf(found)
        return found

    def of(self, file: FileIO | None) -> Unwinder | None:
        """Tables of a file (None: of the vDSO); None if it has none."""
        key = elf.facts(file) if file else None
        if key not in self._known:
            if len(self._known) >= _FILES:
                self._known.clear()
            self._known[key] = None
            try:
                self._known[key] = Unwinder(_reader(file), MACHINE) if MACHINE else None
            except (OSError, OverflowError, StopIteration, elf.NotElf, struct.error):
                pass
        return self._known[key]


def _reader(file: FileIO | None) -> Read:
    """A `Read` of the file, or of the vDSO."""
    if file is not None:
        return lambda at, size: os.pread(file.fileno(), size, at)
    start, _ = next(one.addresses for one in elf.mappings("/proc/self") if one.name == VDSO)
    memory = FileIO("/proc/self/mem")
    return lambda at, size: os.pread(memory.fileno(), size, start + at)


class _DwarfReader:
    """Reads DWARF's numbers one after the other. Raises IndexError or struct.error at the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def over(self) -> bool:
        return self._at >= len(self._data)

    def u8(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def u16(self) -> int:
        return self.u8() | self.u8() << 8

    def u32(self) -> int:
        self._at += 4
        return int(struct.unpack_from("<I", self._data, self._at - 4)[0])

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise IndexError("no such number")

    def sleb(self) -> int:
        began = self._at
        value, bits = self.uleb(), 7 * (self._at - began)
        return value - (1 << bits) if value >> (bits - 1) else value

    def skip(self, count: int) -> None:
        self._at += count


class _Common(_DwarfReader):
    """A CIE: what the records of functions share."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.skip(4)
        version = self.u8()
        words = bytearray()
        while byte := self.u8():
            words.append(byte)
        self.code, self.data = self.uleb(), self.sleb()
        self.ra = self.u8() if version == 1 else self.uleb()
        self.augmented, self.encoding = words[:1] == b"z", 0
        instructions = self.uleb() + self._at if self.augmented else self._at
        for letter in words[1:]:
            if letter == ord("R"):
                self.encoding = self.u8()
                break
            if letter in b"PL":
                encoding = self.u8()
                self.skip(_POINTER_BYTES[encoding & 0xF] if letter == ord("P") else 0)
        self._at = instructions


_POINTER_BYTES = {0x0: 8, 0x2: 2, 0x3: 4, 0x4: 8, 0xA: 2, 0xB: 4, 0xC: 8}


class _CfiProgram:
    """Runs call frame instructions up to an address."""

    def __init__(self, common: _Common, machine: Machine) -> None:
        self._common = common
        self._machine = machine
        self._cfa: tuple[int, int] | None = None
        self._followed = (machine.fp, common.ra)
        self._saved: dict[int, int | None] = {}
        """Register -> its place relative to the frame; None if it is given in a way that `UnwindRow` has not."""
        self._first: dict[int, int | None] = {}
        self._remembered: list[tuple[tuple[int, int] | None, dict[int, int | None]]] = []
        self._location = 0

    def run(self, entry: _DwarfReader, start: int, address: int) -> UnwindRow | None:
        """The row for ``address`` in the function that begins at ``start``."""
        self._location = start
        while not self._common.over:
            self._step(self._common)
        self._first = dict(self._saved)
        while not entry.over:
            before = self._row()
            self._step(entry)
            if self._location > address:
                return before
        return self._row()

    def _row(self) -> UnwindRow | None:
        fp, ra = self._saved.get(self._machine.fp, 0), self._saved.get(self._common.ra, 0)
        if self._cfa is None or fp is None or ra is None or self._cfa[0] not in (self._machine.fp, self._machine.sp):
            return None
        return UnwindRow(self._cfa[0] == self._machine.fp, self._cfa[1], fp or None, ra or None)

    def _step(self, code: _DwarfReader) -> None:
        byte = code.u8()
        high, low = byte & 0xC0, byte & 0x3F
        if high == 0x40:
            self._location += low * self._common.code
        elif high == 0x80:
            self._save(low, code.uleb() * self._common.data)
        elif high == 0xC0:
            self._restore(low)
        elif low in _ADVANCES:
            self._location += _ADVANCES[low](code) * self._common.code
        elif low in _FRAMES:
            self._cfa = _FRAMES[low](code, self._cfa or (-1, 0), self._common.data)
        elif low in _PLACES:
            register = code.uleb()
            self._save(register, _PLACES[low](code, self._common.data))
        else:
            self._other(low, code)

    def _save(self, register: int, place: int | None) -> None:
        if register in self._followed:
            self._saved[register] = place

    def _restore(self, register: int) -> None:
        if register in self._first:
            self._saved[register] = self._first[register]
        else:
            self._saved.pop(register, None)

    def _other(self, low: int, code: _DwarfReader) -> None:
        if low == 0x06:
            self._restore(code.uleb())
        elif low == 0x08:  # same value
            self._saved.pop(code.uleb(), None)
        elif low == 0x0A:
            if len(self._remembered) >= _MOST_REMEMBERED:
                raise IndexError("no function remembers so many")
            self._remembered.append((self._cfa, dict(self._saved)))
        elif low == 0x0B:
            self._cfa, self._saved = self._remembered.pop()
        elif low == 0x0F:  # def_cfa_expression
            self._cfa = None
            code.skip(code.uleb())
        elif low == 0x2E:  # GNU_args_size
            code.uleb()
        elif low not in (0x00, 0x2D):  # nop, AARCH64_negate_ra_state
            raise IndexError(f"no such instruction: {low:#x}")


def _nowhere(code: _DwarfReader, _: int) -> None:
    """An undefined register."""


def _elsewhere(code: _DwarfReader, _: int) -> None:
    """A register saved in another one, or given as a value."""
    code.uleb()


def _expression(code: _DwarfReader, _: int) -> None:
    code.skip(code.uleb())


_ADVANCES = {0x02: _DwarfReader.u8, 0x03: _DwarfReader.u16, 0x04: _DwarfReader.u32}
_FRAMES: dict[int, Callable[[_DwarfReader, tuple[int, int], int], tuple[int, int]]] = {
    0x0C: lambda code, _, __: (code.uleb(), code.uleb()),
    0x0D: lambda code, old, _: (code.uleb(), old[1]),
    0x0E: lambda code, old, _: (old[0], code.uleb()),
    0x12: lambda code, _, data: (code.uleb(), code.sleb() * data),
    0x13: lambda code, old, data: (old[0], code.sleb() * data),
}
_PLACES: dict[int, Callable[[_DwarfReader, int], int | None]] = {
    0x05: lambda code, data: code.uleb() * data,
    0x07: _nowhere,
    0x09: _elsewhere,
    0x10: _expression,
    0x11: lambda code, data: code.sleb() * data,
    0x14: _elsewhere,
    0x15: _elsewhere,
    0x16: _expression,
    0x2F: lambda code, data: -code.uleb() * data,
}
