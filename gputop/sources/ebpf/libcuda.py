"""Find the libcuda of a process, and the functions in it that are worth a uprobe.

Every distinct inode counts once, whatever container it lies in. A uprobe writes a breakpoint into the code of all that map the file, and
who maps a file names it, also one of root's: by a link or a mount of its own. Hence a file is opened once (`gputop.sources.elf`), and its
probe points are its own: functions that it exports, have a name of CUDA's calls, and lie in its executable segments. So a file that is
not libcuda is not touched, and who makes up a libcuda chooses where those are probed who run its code.
"""

from __future__ import annotations

import os
import re
from io import FileIO
from typing import NamedTuple

from gputop.sources import elf

MOST_POINTS = 256  # in one library: libcuda 580 has 70
MOST_OF_ONE = 4  # libraries of this name that are looked at in one process

_LIBRARY = re.compile(r"/libcuda\.so[.\d]*( \(deleted\))?$")
_MAPPED_CODE = re.compile(rb"\nVmLib:\s*(\d+)")
_PREFIX = re.compile(rb"cu[CSEML]")
_LAUNCH = re.compile(r"cuLaunch(Cooperative)?Kernel(Ex)?")
_WANTED = re.compile(
    r"cu(?:Ctx|Stream|Event)Synchronize"
    r"|cuMemcpy(?:[HDA]to[HDA]|Peer|[23]D|2DUnaligned|3DPeer|Batch|3DBatch|WithAttributes|3DWithAttributes)?(?:Async)?"
)
"""Names of cuda.h (13.1), not any that begin so: they are told, and a stranger's library has as many as he likes."""
_SUFFIX = re.compile(r"(_v\d)?(_ptsz|_ptds)?$")
_ENDBR64 = b"\xf3\x0f\x1e\xfa"


class NoFunctions(Exception):
    """The file is no library we can put probes on; the text says why."""


class Function(NamedTuple):
    """A probe point: the call's name without version suffix, its offset in the file, the argument that counts bytes (0: none)."""

    call: str
    offset: int
    bytes_argument: int


class Points(NamedTuple):
    """Where a library is probed."""

    functions: list[Function]
    """Synchronizes and memcpys, each address once."""
    launches: list[int]
    """Offsets of the functions that launch kernels."""


def find(pid: int, root: str = "/") -> list[elf.Mapping]:
    """A mapping of each libcuda file that ``pid`` maps, of the first `MOST_OF_ONE`; OSError where its maps cannot be read."""
    found: dict[tuple[str, str], elf.Mapping] = {}
    for one in elf.mappings(os.path.join(root, "proc", str(pid))):
        if _LIBRARY.search(one.name):
            found.setdefault(one.file, one)
            if len(found) == MOST_OF_ONE:
                break
    return list(found.values())


def opened(pid: int, one: elf.Mapping, root: str = "/") -> FileIO:
    """The library that ``pid`` maps there. Raises OSError."""
    return elf.open_mapped(os.path.join(root, "proc", str(pid)), one)


def mapped_code_kib(pid: int, root: str = "/") -> int:
    """How much code ``pid`` maps of libraries (VmLib): what tells, for a hundredth of the cost of its maps, that it mapped another.

    0 of what maps nothing (a kernel thread, a zombie); OSError where the process has gone.
    """
    with open(os.path.join(root, "proc", str(pid), "status"), "rb") as file:
        found = _MAPPED_CODE.search(file.read())
    return int(found[1]) if found else 0


def points(file: FileIO) -> Points:
    """Raises NoFunctions, or OSError where it cannot be read."""
    try:
        exports = elf.exports(file, elf.FUNCTION, _PREFIX)
    except elf.NotElf as error:
        raise NoFunctions(str(error)) from None
    functions: dict[int, Function] = {}
    launches: set[int] = set()
    for name, address in sorted(exports.symbols.items()):
        call = _SUFFIX.sub("", name)
        if _WANTED.fullmatch(call):
            offset = _behind_endbr64(file, exports.code_offset(address))
            functions.setdefault(offset, Function(call, offset, _bytes_argument(call)))
        elif _LAUNCH.fullmatch(call):
            launches.add(_behind_endbr64(file, exports.code_offset(address)))
    if not functions:
        raise NoFunctions("it exports no synchronize or memcpy function")
    if len(functions) + len(launches) > MOST_POINTS:
        raise NoFunctions("it exports more of these functions than any libcuda has")
    return Points(list(functions.values()), sorted(launches))


def _behind_endbr64(file: FileIO, offset: int | None) -> int:
    """The kernel would have to single-step it: ten times the cost."""
    if offset is None:
        raise NoFunctions("a function lies outside its code")
    return offset + 4 if os.pread(file.fileno(), 4, offset) == _ENDBR64 else offset


def _bytes_argument(call: str) -> int:
    """cuda.h: (dst, src, ByteCount, …); peers have a context behind each pointer; arrays and 2D, 3D come as structures."""
    if call in ("cuMemcpyPeer", "cuMemcpyPeerAsync"):
        return 5
    linear = re.fullmatch(r"cuMemcpy((HtoD|DtoH|DtoD)?(Async)?)", call)
    return 3 if linear else 0
