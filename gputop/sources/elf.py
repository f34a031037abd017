"""The exports of a 64-bit ELF file: its dynamic symbols, which stripping leaves. Standard library only.

The files belong to other users, perhaps hostile ones, and root reads them:

- A file is opened once and known by its descriptor: a path may lead to another file the next time. Only the mapping's own file is opened,
  and only a regular one: opening a device can have effects, and opening a pipe waits.
- It is read by pread and never mapped: its owner may cut it at any time, and touching a page behind the end kills (SIGBUS).
- Its sizes are not believed: at most `MOST_BYTES` are read of a library and `MOST_FOUND` symbols taken.
- Its owner may write into it while it is read, see `facts`. That changes the code of the processes that map it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator
from io import FileIO
from typing import NamedTuple

MOST_BYTES = 16 << 20  # read of one library: the symbol tables of libcuda, libpython and libtorch take 0.1 to 15 MB
MOST_FOUND = 1 << 14  # symbols taken of one library; libcudart has the most, 500
MOST_NAME = 512  # bytes of a symbol's name; gputop looks for names of C
MOST_MAPS = 8 << 20  # bytes read of a process's maps: 65,530 mappings, which is what Linux allows, take 6 MB

OBJECT, FUNCTION = 1, 2  # kinds of symbols: STT_OBJECT, STT_FUNC (elf.h)
LOAD, EH_FRAME = 1, 0x6474E550  # kinds of segments: PT_LOAD, PT_GNU_EH_FRAME
_EXECUTABLE = 1  # PF_X
_SHT_DYNSYM = 11  # kind of section

Read = Callable[[int, int], bytes]  # (offset, size) -> the bytes there; fewer at the end of the file
Segment = tuple[int, int, int]  # virtual address, file offset, bytes in the file


class NotElf(Exception):
    """The file's symbols cannot be read; the text has the reason."""


class Exports(NamedTuple):
    """The chosen symbols of one file: name -> virtual address in the file."""

    symbols: dict[str, int]
    loads: list[Segment]
    code: list[Segment]  # the executable ones of ``loads`` that lie within the file
    sizes: dict[str, int]  # bytes of each symbol, 0 if the file lacks them

    def code_offset(self, address: int) -> int | None:
        """File offset of the instruction at ``address``, None outside the code."""
        return next((address - virtual + offset for virtual, offset, size in self.code if virtual <= address < virtual + size), None)

    @property
    def base(self) -> int:
        """Virtual address of the file's first byte."""
        return next((virtual for virtual, offset, _ in self.loads if offset == 0), 0)


class Mapping(NamedTuple):
    """A line of /proc/PID/maps."""

    span: str  # its addresses as written there
    permissions: str
    offset: int
    device: str  # ``major:minor`` in hexadecimal digits
    inode: str
    name: str

    @property
    def addresses(self) -> tuple[int, int]:
        """(first address, address behind the last)."""
        start, _, end = self.span.partition("-")
        return int(start, 16), int(end, 16)

    @property
    def file(self) -> tuple[str, str]:
        """(device, inode) of the mapped file: its identity among the files of one process."""
        return self.device, self.inode


def mappings(base: str, named: bool = True) -> Iterator[Mapping]:
    """The mappings of ``base`` (/proc/PID) that have a name, or all. Raises OSError if they cannot be read."""
    left = MOST_MAPS
    # In a name the kernel writes a line break as \012, but a carriage return as it is: it must not end a line here.
    with open(f"{base}/maps", encoding="utf-8", errors="surrogateescape", newline="\n") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) == 6 or not named:
                yield Mapping(
                    span=fields[0],
                    permissions=fields[1],
                    offset=int(fields[2], 16),
                    device=fields[3],
                    inode=fields[4],
                    name="".join(fields[5:]),
                )
            left -= len(line)
            if left <= 0:
                return


def open_mapped(base: str, one: Mapping) -> FileIO:
    """Open the file that ``base`` (/proc/PID) maps, whatever its path leads to by now. Raises OSError.

    With CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE it is opened by the mapping (map_files), else by its path in the process's root, if the
    inode there is the mapping's. The device is not compared: overlayfs and btrfs show another one in stat than in maps.
    """
    start, end = one.addresses
    try:
        return opened(f"{base}/map_files/{start:x}-{end:x}")  # maps pads the addresses with zeros, map_files does not
    except (PermissionError, FileNotFoundError):
        pass  # no such capability, no map_files in this kernel, or no longer mapped
    name = one.name.replace("\\012", "\n")
    file = opened(f"{base}/root{name}")
    if str(os.fstat(file.fileno()).st_ino) != one.inode:
        file.close()
        raise OSError(errno.ESTALE, "its path leads to another file by now, and only root can open the mapped one")
    return file


def opened(path: str) -> FileIO:
    """Open a regular file by its path, without waiting. Raises OSError."""
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        # O_NONBLOCK: do not wait for a process that holds a lease on it.
        return FileIO(os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    finally:
        os.close(handle)


def facts(file: FileIO) -> tuple[int, int, int, int, int]:
    """Device, inode, size and times of change: while they stay the same, so do the contents.

    One change is missed: a write through a mapping that was written through before. Only users with write access to the file can do that,
    and they decide what runs in the processes that map it anyway.
    """
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def exports(file: FileIO, kind: int, prefix: re.Pattern[bytes]) -> Exports:
    """Symbols of ``kind`` with a name that ``prefix`` matches at its start. Raises NotElf, or OSError if the file cannot be read."""
    try:
        found = _parse(_bounded(file.fileno()), kind, prefix)
        end = os.fstat(file.fileno()).st_size
        return found._replace(code=[segment for segment in found.code if segment[1] + segment[2] <= end])
    except (struct.error, IndexError, OverflowError):
        raise NotElf("the file is damaged") from None


def functions(file: FileIO, prefix: re.Pattern[bytes]) -> list[tuple[int, int, str]]:
    """(file offset, bytes, name) of the functions with a name that ``prefix`` matches at its start. Raises as `exports`."""
    found = exports(file, FUNCTION, prefix)
    places = ((found.code_offset(address), found.sizes[name], name) for name, address in found.symbols.items())
    return sorted((offset, size, name) for offset, size, name in places if offset is not None and size)


def segments(read: Read, kind: int, flags: int = 0) -> list[Segment]:
    """Segments of ``kind`` with these flags. Raises NotElf, or struct.error if the file is damaged."""
    head = _head(read)
    programs = list(struct.iter_unpack("<IIQQQQQQ", _whole(read(head[4], 56 * head[9]), 56)))
    return [(program[3], program[2], program[5]) for program in programs if program[0] == kind and program[1] & flags == flags]


def _bounded(descriptor: int) -> Read:
    """A `Read` of the file that raises NotElf for a short read, and after `MOST_BYTES` in all."""
    left = MOST_BYTES

    def read(at: int, size: int) -> bytes:
        nonlocal left
        left -= size
        if left < 0:
            raise NotElf(f"its tables are larger than {MOST_BYTES >> 20} MiB")
        data = os.pread(descriptor, size, at) if at + size <= os.fstat(descriptor).st_size else b""
        if len(data) < size:
            raise NotElf("the file is cut short")
        return data

    return read


def _parse(read: Read, kind: int, prefix: re.Pattern[bytes]) -> Exports:
    head = _head(read)
    sections = list(struct.iter_unpack("<IIQQQQIIQQ", _whole(read(head[5], 64 * head[11]), 64)))
    symbols: dict[str, tuple[int, int]] = {}
    for section in sections:
        if section[1] == _SHT_DYNSYM:
            strings = sections[section[6]]
            table = read(section[4], section[5] // 24 * 24)
            _add_symbols(symbols, table, read(strings[4], strings[5]), kind, prefix)
    values, sizes = ({name: pair[i] for name, pair in symbols.items()} for i in (0, 1))
    return Exports(values, segments(read, LOAD), segments(read, LOAD, _EXECUTABLE), sizes)


def _head(read: Read) -> tuple[int, ...]:
    head = read(0, 64)
    if head[:5] != b"\x7fELF\x02":
        raise NotElf("it is no 64-bit ELF file")
    return struct.unpack_from("<HHIQQQIHHHHHH", head, 16)


def _whole(table: bytes, entry: int) -> bytes:
    return table[: len(table) // entry * entry]


def _add_symbols(symbols: dict[str, tuple[int, int]], table: bytes, strings: bytes, kind: int, prefix: re.Pattern[bytes]) -> None:
    for name, info, _, section, value, size in struct.iter_unpack("<IBBHQQ", table):
        if section and value and info & 0xF == kind and prefix.match(strings, name):
            end = strings.find(b"\0", name, name + MOST_NAME)
            if end >= 0:
                symbols[strings[name:end].decode(errors="replace")] = value, size
                if len(symbols) > MOST_FOUND:
                    raise NotElf("it exports more symbols than such a library has")
