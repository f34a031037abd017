"""Find the libcuda of a process, and the functions in it that are worth a uprobe.

Every distinct inode counts once, whatever container it lies in: paths go through /proc/PID/root, and through /proc/PID/map_files
where the file has been replaced since the process opened it.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from gputop import elf

_LIBRARY = re.compile(r"/libcuda\.so[.\d]*( \(deleted\))?$")
_MAPPED_CODE = re.compile(rb"\nVmLib:\s*(\d+)")
_PREFIX, _LAUNCH_PREFIX = re.compile(rb"cu[CSEM]"), re.compile(rb"cuL")
_LAUNCH = re.compile(r"cuLaunch(Cooperative)?Kernel(Ex)?")
_WANTED = re.compile(r"cu(?:Ctx|Stream|Event)Synchronize|cuMemcpy\w+|cuMemcpy")
_SUFFIX = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
_ENDBR64 = b"\xf3\x0f\x1e\xfa"


class NoFunctions(Exception):
    """The file is no library we can put probes on; the text says why."""


class Function(NamedTuple):
    """A probe point: the call's name without version suffix, its offset in the file, the argument that counts bytes (0: none)."""

    call: str
    offset: int
    bytes_argument: int


def find(pid: int, root: str = "/") -> list[str]:
    """Paths that open the libcuda files ``pid`` maps; OSError where its maps cannot be read."""
    base = os.path.join(root, "proc", str(pid))
    paths: dict[str, str] = {}
    for one in elf.mappings(base):
        if _LIBRARY.search(one.name):
            paths.setdefault(one.inode, elf.mapped_path(base, one.span, one.name))
    return list(paths.values())


def mapped_code_kib(pid: int, root: str = "/") -> int:
    """How much code ``pid`` maps of libraries (VmLib): what tells, for a hundredth of the cost of its maps, that it mapped another.

    0 of what maps nothing (a kernel thread, a zombie); OSError where the process has gone.
    """
    with open(os.path.join(root, "proc", str(pid), "status"), "rb") as file:
        found = _MAPPED_CODE.search(file.read())
    return int(found[1]) if found else 0


def functions(path: str) -> list[Function]:
    """The synchronize and memcpy functions ``path`` exports, each address once.

    Raises NoFunctions, or OSError where the file has gone.
    """
    try:
        exports = elf.exports(path, elf.FUNCTION, _PREFIX)
    except elf.NotElf as error:
        raise NoFunctions(str(error)) from None
    found: dict[int, Function] = {}
    with open(path, "rb") as file:
        for name, address in sorted(exports.symbols.items()):
            call = _SUFFIX.sub("", name)
            if _WANTED.fullmatch(call):
                offset = _behind_endbr64(file.fileno(), exports.file_offset(address))
                found.setdefault(offset, Function(call, offset, _bytes_argument(call)))
    if not found:
        raise NoFunctions("it exports no synchronize or memcpy function")
    return list(found.values())


def launches(path: str) -> list[int]:
    """Offsets of the functions that launch kernels, none where there are none. Raises as `functions`."""
    try:
        exports = elf.exports(path, elf.FUNCTION, _LAUNCH_PREFIX)
    except elf.NotElf as error:
        raise NoFunctions(str(error)) from None
    with open(path, "rb") as file:
        found = (address for name, address in exports.symbols.items() if _LAUNCH.fullmatch(_SUFFIX.sub("", name)))
        return sorted({_behind_endbr64(file.fileno(), exports.file_offset(address)) for address in found})


def _behind_endbr64(descriptor: int, offset: int | None) -> int:
    """The kernel would have to single-step it: ten times the cost."""
    if offset is None:
        raise NoFunctions("a function lies outside its segments")
    return offset + 4 if os.pread(descriptor, 4, offset) == _ENDBR64 else offset


def _bytes_argument(call: str) -> int:
    """cuda.h: (dst, src, ByteCount, …); peers have a context behind each pointer; arrays and 2D, 3D come as structures."""
    if call in ("cuMemcpyPeer", "cuMemcpyPeerAsync"):
        return 5
    linear = re.fullmatch(r"cuMemcpy((HtoD|DtoH|DtoD)?(Async)?)", call)
    return 3 if linear else 0
