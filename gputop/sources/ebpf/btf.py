"""Offsets of members in the kernel's structures, from BTF (/sys/kernel/btf/vmlinux; Documentation/bpf/btf.rst).

Standard library only: the loader runs it under the system's Python. It steps over five megabytes of types in 20 ms.
"""

from __future__ import annotations

import platform
import struct

VMLINUX = "/sys/kernel/btf/vmlinux"

_STRUCT, _TYPEDEF, _FUNC_PROTO = 4, 8, 13
# Kind of type -> words behind its first three: (fixed, per member).
_TAIL = {1: (1, 0), 3: (3, 0), 4: (0, 3), 5: (0, 3), 6: (0, 2), 13: (0, 2), 14: (1, 0), 15: (0, 3), 17: (1, 0), 19: (0, 3)}


class BtfError(Exception):
    """Raised if there is no BTF, or it lacks a needed part."""


class Btf:
    """The types of one BTF blob; ``names``: the structures and typedefs that will be asked for."""

    def __init__(self, data: bytes, *names: str) -> None:
        if len(data) < 24 or data[:2] != b"\x9f\xeb":
            raise BtfError("not BTF")
        _, head, type_off, type_len, str_off, str_len = struct.unpack_from("<IIIIII", data)
        self._words = memoryview(data)[head + type_off : head + type_off + type_len].cast("I")
        self._strings = data[head + str_off : head + str_off + str_len]
        self._positions = [-1]
        self._next = 0
        self._wanted = {self._name(name) for name in names if self.knows(name)}
        self._found: dict[tuple[int, int], int] = {}

    def offset(self, structure: str, member: str) -> int:
        """Byte offset of ``member`` in ``structure``, also within anonymous parts. Raises BtfError if it has none."""
        found = self._member(self._find(_STRUCT, structure), self._name(member))
        if found is None:
            raise BtfError(f"{structure} has no {member}")
        return found // 8

    def arguments(self, typedef: str) -> int:
        """Number of arguments of the function that ``typedef`` points to."""
        pointer = self._position(self._words[self._find(_TYPEDEF, typedef) + 2])
        proto = self._position(self._words[pointer + 2])
        if self._kind(proto) != _FUNC_PROTO:
            raise BtfError(f"{typedef} is no function")
        return self._words[proto + 1] & 0xFFFF

    def knows(self, name: str) -> bool:
        """True if anything has this name."""
        return b"\0" + name.encode() + b"\0" in self._strings

    def _name(self, name: str) -> int:
        at = self._strings.find(b"\0" + name.encode() + b"\0")
        if at < 0:
            raise BtfError(f"this kernel has no {name}")
        return at + 1

    def _find(self, kind: int, name: str) -> int:
        key = kind, self._name(name)
        while key not in self._found:
            self._step()
        return self._found[key]

    def _position(self, number: int) -> int:
        while number >= len(self._positions):
            self._step()
        return self._positions[number]

    def _step(self) -> None:
        """Find the positions of up to 4,096 more types."""
        words, at, end, add, wanted = self._words, self._next, len(self._words), self._positions.append, self._wanted
        if at >= end:
            raise BtfError("a type is missing from this kernel's BTF")
        for _ in range(4096):
            if at >= end:
                break
            add(at)
            info = words[at + 1]
            if words[at] in wanted:
                self._found.setdefault((info >> 24 & 0x1F, words[at]), at)
            fixed, each = _TAIL.get(info >> 24 & 0x1F, (0, 0))
            at += 3 + fixed + each * (info & 0xFFFF)
        self._next = at

    def _kind(self, at: int) -> int:
        return self._words[at + 1] >> 24 & 0x1F

    def _member(self, at: int, wanted: int) -> int | None:
        """Bit offset of the member called ``wanted`` (offset of its name)."""
        info = self._words[at + 1]
        mask = 0xFFFFFF if info >> 31 else 0xFFFFFFFF
        for member in range(at + 3, at + 3 + 3 * (info & 0xFFFF), 3):
            name, kind, bits = self._words[member : member + 3]
            if name == wanted:
                return bits & mask
            inner = None if name else self._member(self._position(kind), wanted)
            if inner is not None:
                return (bits & mask) + inner
        return None


_STRUCTS = (
    "task_struct", "sched_entity", "sched_info", "pt_regs", "files_struct", "fdtable", "file", "path", "inode", "dentry", "qstr", "socket",
    "sock_common",
)  # fmt: skip


def task_layout(path: str = VMLINUX) -> dict[str, int]:
    """Macros of probes/sched.c for the running kernel. Raises BtfError that names what is missing."""
    try:
        with open(path, "rb") as file:
            btf = Btf(file.read(), *_STRUCTS, "btf_trace_sched_switch")
    except OSError as error:
        raise BtfError(f"{path}: {error.strerror}") from None
    layout = {
        "ID_OFF": btf.offset("task_struct", "pid"),
        "SUM_EXEC_OFF": btf.offset("task_struct", "se") + btf.offset("sched_entity", "sum_exec_runtime"),
        "STACK_OFF": btf.offset("task_struct", "stack"),
    }
    if btf.offset("task_struct", "tgid") != layout["ID_OFF"] + 4:
        raise BtfError("task_struct.tgid does not follow pid")
    if btf.knows("sched_info"):  # CONFIG_SCHED_INFO
        layout["RUN_DELAY_OFF"] = btf.offset("task_struct", "sched_info") + btf.offset("sched_info", "run_delay")
    if btf.knows("bpf_task_pt_regs"):
        layout["PT_REGS"] = 1
        if platform.machine() == "aarch64":
            layout["SYSCALLNO_OFF"] = btf.offset("pt_regs", "syscallno")
    if btf.arguments("btf_trace_sched_switch") < 5:
        layout["STATE_OFF"] = _state_offset(btf)
    return layout | _file_layout(btf)


def _file_layout(btf: Btf) -> dict[str, int]:
    """Offsets that lead from a task to the kind of an open file; empty if this kernel lacks a part of the way."""
    try:
        return {
            "FILES_OFF": btf.offset("task_struct", "files"), "FDT_OFF": btf.offset("files_struct", "fdt"),
            "FD_OFF": btf.offset("fdtable", "fd"), "INODE_OFF": btf.offset("file", "f_inode"), "MODE_OFF": btf.offset("inode", "i_mode"),
            "DENTRY_OFF": btf.offset("file", "f_path") + btf.offset("path", "dentry"),
            "NAME_OFF": btf.offset("dentry", "d_name") + btf.offset("qstr", "name"),
            "PRIVATE_OFF": btf.offset("file", "private_data"), "SK_OFF": btf.offset("socket", "sk"),
            "FAMILY_OFF": btf.offset("sock_common", "skc_family"),
        }  # fmt: skip
    except BtfError:
        return {}


def _state_offset(btf: Btf) -> int:
    try:
        return btf.offset("task_struct", "__state")
    except BtfError:  # before 5.14
        return btf.offset("task_struct", "state")
