"""Find the libcuda of a process, and the functions in it that are worth a uprobe.

Every distinct inode counts once, whatever container it lies in: paths go through /proc/PID/root, and through /proc/PID/map_files
where the file has been replaced since the process opened it.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from dataclasses import dataclass

_LIBRARY = re.compile(r"/libcuda\.so[.\d]*( \(deleted\))?$")
_WANTED = re.compile(r"cu(?:Ctx|Stream|Event)Synchronize|cuMemcpy\w+|cuMemcpy")
_SUFFIX = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
_ENDBR64 = b"\xf3\x0f\x1e\xfa"
_PT_LOAD, _SHT_DYNSYM, _STT_FUNC = 1, 11, 2


class NoFunctions(Exception):
    """The file is no library we can put probes on; the text says why."""


@dataclass(frozen=True, slots=True)
class Function:
    """A probe point: the call's name without version suffix, its offset in the file, the argument that counts bytes (0: none)."""

    call: str
    offset: int
    bytes_argument: int


def find(pid: int, root: str = "/") -> list[str]:
    """Paths that open the libcuda files ``pid`` maps; OSError where its maps cannot be read."""
    base = os.path.join(root, "proc", str(pid))
    paths: dict[str, str] = {}
    with open(os.path.join(base, "maps"), encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) == 6 and _LIBRARY.search(fields[5]):
                paths.setdefault(fields[4], _path(base, fields[0], fields[5]))
    return list(paths.values())


def _path(base: str, span: str, name: str) -> str:
    """Through the process's own root; by the mapping itself where the name leads nowhere any more."""
    path = f"{base}/root{name}"
    if name.endswith(" (deleted)") or not os.path.exists(path):
        return f"{base}/map_files/{span}"
    return path


def functions(path: str) -> list[Function]:
    """The synchronize and memcpy functions ``path`` exports (.dynsym, which stripping leaves), each address once.

    Raises NoFunctions, or OSError where the file has gone.
    """
    with open(path, "rb") as file:
        try:
            image = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except ValueError:
            raise NoFunctions("the file is empty") from None
    with image:
        try:
            found = _parse(image)
        except (struct.error, IndexError, OverflowError):
            raise NoFunctions("the file is damaged") from None
    if not found:
        raise NoFunctions("it exports no synchronize or memcpy function")
    return found


def _parse(image: mmap.mmap) -> list[Function]:
    if image[:5] != b"\x7fELF\x02":
        raise NoFunctions("it is no 64-bit ELF file")
    head = struct.unpack_from("<HHIQQQIHHHHHH", image, 16)
    program_at, section_at, program_count, section_count = head[4], head[5], head[9], head[11]
    loads = [struct.unpack_from("<IIQQQQQQ", image, program_at + 56 * i) for i in range(program_count)]
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, section_at + 64 * i) for i in range(section_count)]
    found: dict[int, Function] = {}
    for section in sections:
        if section[1] == _SHT_DYNSYM:
            for name, address in _symbols(image, section, sections[section[6]]):
                function = _function(image, name, _file_offset(loads, address))
                found.setdefault(function.offset, function)
    return list(found.values())


def _symbols(image: mmap.mmap, table: tuple[int, ...], strings: tuple[int, ...]) -> list[tuple[str, int]]:
    chosen = []
    for name, info, _, section, value, _ in struct.iter_unpack("<IBBHQQ", image[table[4] : table[4] + table[5] // 24 * 24]):
        if section and value and info & 0xF == _STT_FUNC and image[strings[4] + name : strings[4] + name + 2] == b"cu":
            end = image.find(b"\0", strings[4] + name)
            text = image[strings[4] + name : end].decode(errors="replace")
            if _WANTED.fullmatch(_SUFFIX.sub("", text)):
                chosen.append((text, value))
    return sorted(chosen)


def _file_offset(loads: list[tuple[int, ...]], address: int) -> int:
    for kind, _, offset, virtual, _, size, *_ in loads:
        if kind == _PT_LOAD and virtual <= address < virtual + size:
            return address - virtual + offset
    raise NoFunctions("a function lies outside its segments")


def _function(image: mmap.mmap, name: str, offset: int) -> Function:
    """Behind endbr64, which the kernel would have to single-step: ten times the cost."""
    if image[offset : offset + 4] == _ENDBR64:
        offset += 4
    call = _SUFFIX.sub("", name)
    return Function(call, offset, _bytes_argument(call))


def _bytes_argument(call: str) -> int:
    """cuda.h: (dst, src, ByteCount, …); peers have a context behind each pointer; arrays and 2D, 3D come as structures."""
    if call in ("cuMemcpyPeer", "cuMemcpyPeerAsync"):
        return 5
    linear = re.fullmatch(r"cuMemcpy((HtoD|DtoH|DtoD)?(Async)?)", call)
    return 3 if linear else 0
