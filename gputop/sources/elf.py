"""What a 64-bit ELF file exports: its dynamic symbols, which stripping leaves. Standard library only.

The files are other people's, and their owners may be hostile to root, who reads them:

- A file is opened once and known by its descriptor from then on. A path would be resolved again, and lead to another file by then. What is
  opened is the mapping's own file; nothing but a regular file is opened, for to open a device can do things, and a pipe would keep us.
- It is read by pread and never mapped: its owner can cut it any time, and who touches a page behind the end is killed (SIGBUS).
- No size that stands in it is believed: `MOST_BYTES` are read of a whole library, and `MOST_FOUND` symbols are taken.
- Its owner can write into it while it is read, and afterwards: see `facts`. What he changes then is the code of those who map his file.
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

MOST_BYTES = 16 << 20  # bytes read of one library: libcuda's, libpython's and libtorch's tables of symbols take 0.1 to 15 MB
MOST_FOUND = 1 << 14  # symbols taken of one library: libcudart, which has most, has 500
MOST_NAME = 512  # bytes of a symbol's name; what is looked for is C's
MOST_MAPS = 8 << 20  # bytes read of a process's maps: 65,530 mappings, which is what Linux allows, take 6 MB

OBJECT, FUNCTION = 1, 2
LOAD, EH_FRAME = 1, 0x6474E550
"""Kinds of segments: what is loaded, and where the table of `.eh_frame` lies."""
_EXECUTABLE = 1
_SHT_DYNSYM = 11

Read = Callable[[int, int], bytes]
"""What stands at an offset of an ELF file, so many bytes; fewer at its end."""
Segment = tuple[int, int, int]
"""Virtual address, file offset, bytes in the file."""


class NotElf(Exception):
    """The file is nothing whose symbols can be read; the text says why."""


class Exports(NamedTuple):
    """The chosen symbols of one file, by name: virtual addresses as the file counts them."""

    symbols: dict[str, int]
    loads: list[Segment]
    code: list[Segment]
    """Those of ``loads`` that are executable, and within the file."""
    sizes: dict[str, int]
    """Bytes of each symbol, 0 where the file does not tell."""

    def code_offset(self, address: int) -> int | None:
        """Where in the file the instruction at ``address`` lies, None outside its code."""
        return next((address - virtual + offset for virtual, offset, size in self.code if virtual <= address < virtual + size), None)

    @property
    def base(self) -> int:
        """The address that the file's first byte has."""
        return next((virtual for virtual, offset, _ in self.loads if offset == 0), 0)


class Mapping(NamedTuple):
    """A line of /proc/PID/maps that tells of a file."""

    span: str
    """Its addresses, as they stand there."""
    permissions: str
    offset: int
    device: str
    """``major:minor`` in hexadecimal digits."""
    inode: str
    name: str

    @property
    def addresses(self) -> tuple[int, int]:
        """The first, and the one behind the last."""
        start, _, end = self.span.partition("-")
        return int(start, 16), int(end, 16)

    @property
    def file(self) -> tuple[str, str]:
        """What tells the mapped file from others of the same process."""
        return self.device, self.inode


def mappings(base: str, named: bool = True) -> Iterator[Mapping]:
    """What ``base`` (/proc/PID) maps of files, and of what the kernel names, or all; OSError where that cannot be read."""
    left = MOST_MAPS
    # The kernel writes a line break in a name as \012, but not a carriage return, which is no end of a line here.
    with open(f"{base}/maps", encoding="utf-8", errors="surrogateescape", newline="\n") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) == 6 or not named:
                yield Mapping(fields[0], fields[1], int(fields[2], 16), fields[3], fields[4], "".join(fields[5:]))
            left -= len(line)
            if left <= 0:
                return


def open_mapped(base: str, one: Mapping) -> FileIO:
    """The very file that ``base`` (/proc/PID) maps there, whatever stands at its path by now. Raises OSError.

    The mapping itself leads to it, for who has CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE. For others its path in the process's own root does,
    if the file there has the mapping's inode. Its device tells nothing: overlayfs and btrfs show another in stat than in maps.
    """
    start, end = one.addresses
    try:
        return opened(f"{base}/map_files/{start:x}-{end:x}")  # without the zeros that maps puts before them
    except (PermissionError, FileNotFoundError):
        pass  # no such right; or the kernel has no map_files, or it is mapped no more
    name = one.name.replace("\\012", "\n")
    file = opened(f"{base}/root{name}")
    if str(os.fstat(file.fileno()).st_ino) != one.inode:
        file.close()
        raise OSError(errno.ESTALE, "another file stands at its path by now, and only root can open the one that is mapped")
    return file


def opened(path: str) -> FileIO:
    """A regular file by its path, without waiting for anybody. Raises OSError."""
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        # Not waiting concerns whoever holds a lease on it.
        return FileIO(os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    finally:
        os.close(handle)


def facts(file: FileIO) -> tuple[int, int, int, int, int]:
    """Device, inode, size and times of change: while these stay, what was read of it holds.

    Who writes through a mapping that he has written through before is not seen. He owns the file, or may write it: he decides what runs in
    those who map it anyway.
    """
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def exports(file: FileIO, kind: int, prefix: re.Pattern[bytes]) -> Exports:
    """Symbols of ``kind`` whose name begins with what matches. Raises NotElf, or OSError where it cannot be read."""
    try:
        found = _parse(_bounded(file.fileno()), kind, prefix)
        end = os.fstat(file.fileno()).st_size
        return found._replace(code=[segment for segment in found.code if segment[1] + segment[2] <= end])
    except (struct.error, IndexError, OverflowError):
        raise NotElf("the file is damaged") from None


def functions(file: FileIO, prefix: re.Pattern[bytes]) -> list[tuple[int, int, str]]:
    """(file offset, bytes, name) of the functions whose name begins with what matches. Raises as `exports`."""
    found = exports(file, FUNCTION, prefix)
    places = ((found.code_offset(address), found.sizes[name], name) for name, address in found.symbols.items())
    return sorted((offset, size, name) for offset, size, name in places if offset is not None and size)


def segments(read: Read, kind: int, flags: int = 0) -> list[Segment]:
    """Those of ``kind`` that have these flags. Raises NotElf, struct.error where it is damaged."""
    head = _head(read)
    programs = list(struct.iter_unpack("<IIQQQQQQ", _whole(read(head[4], 56 * head[9]), 56)))
    return [(program[3], program[2], program[5]) for program in programs if program[0] == kind and program[1] & flags == flags]


def _bounded(descriptor: int) -> Read:
    """Reads `MOST_BYTES` in all, and nothing less than what is asked for."""
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
