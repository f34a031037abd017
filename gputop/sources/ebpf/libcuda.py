"""The libcuda of a process, and the functions in it that get a uprobe.

Each inode counts once, whatever container it lies in. A uprobe writes a breakpoint into the code of all processes that map the file, and a
process may map any file, also one of root's, under any name, by a link or mount. So the file is opened once (`gputop.sources.elf`), and
only functions are probed that it exports, that have the name of a CUDA call, and that lie in its executable segments. A file that is not
libcuda is not touched; a made-up libcuda harms only the processes that run its code.
"""

from __future__ import annotations

import os
import re
from io import FileIO
from typing import NamedTuple

from gputop.sources import elf

MOST_POINTS = 256  # in one library; libcuda of driver 580 has 70
MOST_OF_ONE = 4  # libcuda files looked at in one process

_LIBRARY = re.compile(r"/libcuda\.so[.\d]*( \(deleted\))?$")
_MAPPED_CODE = re.compile(rb"\nVmLib:\s*(\d+)")
_PREFIX = re.compile(rb"cu[CSEML]")
_LAUNCH = re.compile(r"cuLaunch(Cooperative)?Kernel(Ex)?")
_WANTED = re.compile(
    r"cu(?:Ctx|Stream|Event)Synchronize"
    r"|cuMemcpy(?:[HDA]to[HDA]|Peer|[23]D|2DUnaligned|3DPeer|Batch|3DBatch|WithAttributes|3DWithAttributes)?(?:Async)?"
)  # whole names of cuda.h (13.1): they are shown, and a stranger's library may export any number that begins like them
_SUFFIX = re.compile(r"(_v\d)?(_ptsz|_ptds)?$")
_ENDBR64 = b"\xf3\x0f\x1e\xfa"  # a probe on it would be single-stepped
_EMULATED = re.compile(
    rb"\x41?[\x50-\x57]"  # push
    rb"|[\xe8\xe9\xeb\x70-\x7f]|\x0f[\x80-\x8f]"  # call, jmp, jcc
    rb"|\x66*(?:\x90|\x0f\x1f)",  # nop
    re.DOTALL,
)
"""Instructions of x86-64 that the kernel emulates (arch/x86/kernel/uprobes.c). Elsewhere all count as single-stepped: this errs safely."""


class NoFunctions(Exception):
    """The file is no library to put probes on; the text has the reason."""


class Function(NamedTuple):
    """A probe point."""

    call: str  # the name without version suffix
    offset: int  # in the file
    bytes_argument: int  # number of the argument that counts bytes, 0 without one
    stepped: bool  # whether the kernel must single-step the instruction there, which costs ten times as much as emulating it


class ProbePoints(NamedTuple):
    """The probe points of a library."""

    functions: list[Function]  # synchronize and memcpy functions, one per address
    launches: list[Function]  # functions that launch kernels


def find(pid: int, root: str = "/") -> list[elf.Mapping]:
    """A mapping of each libcuda file that ``pid`` maps, at most `MOST_OF_ONE`. Raises OSError if its maps cannot be read."""
    found: dict[tuple[str, str], elf.Mapping] = {}
    for one in elf.mappings(os.path.join(root, "proc", str(pid))):
        if _LIBRARY.search(one.name):
            found.setdefault(one.file, one)
            if len(found) == MOST_OF_ONE:
                break
    return list(found.values())


def opened(pid: int, one: elf.Mapping, root: str = "/") -> FileIO:
    """Open the library that ``pid`` maps there. Raises OSError."""
    return elf.open_mapped(os.path.join(root, "proc", str(pid)), one)


def mapped_code_kib(pid: int, root: str = "/") -> int:
    """KiB of library code that ``pid`` maps (VmLib). It changes when a library is mapped, and costs a hundredth of reading maps.

    0 for a kernel thread or zombie. Raises OSError if the process has ended.
    """
    with open(os.path.join(root, "proc", str(pid), "status"), "rb") as file:
        found = _MAPPED_CODE.search(file.read())
    return int(found[1]) if found else 0


def points(file: FileIO) -> ProbePoints:
    """The probe points of an open library. Raises NoFunctions, or OSError if it cannot be read."""
    try:
        exports = elf.exports(file, elf.FUNCTION, _PREFIX)
    except elf.NotElf as error:
        raise NoFunctions(str(error)) from None
    functions: dict[int, Function] = {}
    launches: dict[int, Function] = {}
    for name, address in sorted(exports.symbols.items()):
        call = _SUFFIX.sub("", name)
        found = functions if _WANTED.fullmatch(call) else launches if _LAUNCH.fullmatch(call) else None
        if found is not None:
            offset, stepped = _probe_point(file, exports.code_offset(address))
            found.setdefault(offset, Function(call, offset, _bytes_argument(call), stepped))
    if not functions:
        raise NoFunctions("it exports no synchronize or memcpy function")
    if len(functions) + len(launches) > MOST_POINTS:
        raise NoFunctions("it exports more of these functions than any libcuda has")
    return ProbePoints(list(functions.values()), [launches[offset] for offset in sorted(launches)])


def _probe_point(file: FileIO, offset: int | None) -> tuple[int, bool]:
    """(offset of a function's first instruction behind an endbr64, whether the kernel must single-step it)."""
    if offset is None:
        raise NoFunctions("a function lies outside its code")
    head = os.pread(file.fileno(), 12, offset)
    if head.startswith(_ENDBR64):
        offset, head = offset + 4, head[4:]
    return offset, not _EMULATED.match(head)


def _bytes_argument(call: str) -> int:
    """Number of the argument that counts bytes; 0 without one (cuda.h). Arrays, 2D and 3D copies take a structure."""
    if call in ("cuMemcpyPeer", "cuMemcpyPeerAsync"):
        return 5
    linear = re.fullmatch(r"cuMemcpy((HtoD|DtoH|DtoD)?(Async)?)", call)
    return 3 if linear else 0
