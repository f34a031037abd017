"""What a 64-bit ELF file exports: its dynamic symbols, which stripping leaves. Standard library only."""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator
from io import FileIO
from typing import NamedTuple

OBJECT, FUNCTION = 1, 2
LOAD, EH_FRAME = 1, 0x6474E550
"""Kinds of segments: what is loaded, and where the table of `.eh_frame` lies."""
_SHT_DYNSYM = 11


class NotElf(Exception):
    """The file is nothing whose symbols can be read; the text says why."""


class Exports(NamedTuple):
    """The chosen symbols of one file, by name: virtual addresses as the file counts them."""

    symbols: dict[str, int]
    loads: list[tuple[int, int, int]]
    """(virtual address, file offset, bytes in the file) of each segment."""
    sizes: dict[str, int]
    """Bytes of each symbol, 0 where the file does not tell."""

    def file_offset(self, address: int) -> int | None:
        """Where in the file the byte at ``address`` lies, None outside its segments."""
        return next((address - virtual + offset for virtual, offset, size in self.loads if virtual <= address < virtual + size), None)

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
    inode: str
    name: str

    @property
    def addresses(self) -> tuple[int, int]:
        """The first, and the one behind the last."""
        start, _, end = self.span.partition("-")
        return int(start, 16), int(end, 16)


def mappings(base: str) -> Iterator[Mapping]:
    """What ``base`` (/proc/PID) maps of files, and of what the kernel names; OSError where that cannot be read."""
    with open(f"{base}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) == 6:
                yield Mapping(fields[0], fields[1], int(fields[2], 16), fields[4], fields[5])


def mapped_path(base: str, span: str, name: str) -> str:
    """A file that ``base`` (/proc/PID) maps at ``span``: through its own root; by the mapping where the name leads nowhere any more."""
    path = f"{base}/root{name}"
    if name.endswith(" (deleted)") or not os.path.exists(path):
        return f"{base}/map_files/{span}"
    return path


def opened(path: str) -> FileIO:
    """A file that somebody maps, or has put in its place: a pipe there would keep who opens it in the usual way."""
    return open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def exports(path: str, kind: int, prefix: re.Pattern[bytes]) -> Exports:
    """Symbols of ``kind`` whose name begins with what matches. Raises NotElf, or OSError where the file has gone."""
    with opened(path) as file:
        try:
            image = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except ValueError:
            raise NotElf("the file is empty") from None
    with image:
        try:
            return _parse(image, kind, prefix)
        except (struct.error, IndexError, OverflowError):
            raise NotElf("the file is damaged") from None


def functions(path: str, prefix: re.Pattern[bytes]) -> list[tuple[int, int, str]]:
    """(file offset, bytes, name) of the functions whose name begins with what matches. Raises as `exports`."""
    found = exports(path, FUNCTION, prefix)
    places = ((found.file_offset(address), found.sizes[name], name) for name, address in found.symbols.items())
    return sorted((offset, size, name) for offset, size, name in places if offset is not None and size)


def _parse(image: mmap.mmap, kind: int, prefix: re.Pattern[bytes]) -> Exports:
    head = _head(image)
    section_at, section_count = head[5], head[11]
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, section_at + 64 * i) for i in range(section_count)]
    symbols: dict[str, tuple[int, int]] = {}
    for section in sections:
        if section[1] == _SHT_DYNSYM:
            symbols.update(_symbols(image, section, sections[section[6]], kind, prefix))
    values, sizes = ({name: pair[i] for name, pair in symbols.items()} for i in (0, 1))
    return Exports(values, segments(image, LOAD), sizes)


def segments(image: mmap.mmap | bytes, kind: int) -> list[tuple[int, int, int]]:
    """(virtual address, file offset, bytes in the file) of each segment of ``kind``. Raises NotElf, struct.error where it is damaged."""
    head = _head(image)
    programs = (struct.unpack_from("<IIQQQQQQ", image, head[4] + 56 * i) for i in range(head[9]))
    return [(program[3], program[2], program[5]) for program in programs if program[0] == kind]


def _head(image: mmap.mmap | bytes) -> tuple[int, ...]:
    if image[:5] != b"\x7fELF\x02":
        raise NotElf("it is no 64-bit ELF file")
    return struct.unpack_from("<HHIQQQIHHHHHH", image, 16)


def _symbols(
    image: mmap.mmap, table: tuple[int, ...], strings: tuple[int, ...], kind: int, prefix: re.Pattern[bytes]
) -> dict[str, tuple[int, int]]:
    found = {}
    for name, info, _, section, value, size in struct.iter_unpack("<IBBHQQ", image[table[4] : table[4] + table[5] // 24 * 24]):
        if section and value and info & 0xF == kind and prefix.match(image, strings[4] + name):
            end = image.find(b"\0", strings[4] + name)
            found[image[strings[4] + name : end].decode(errors="replace")] = value, size
    return found
