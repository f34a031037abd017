"""The Python inside another process, read from its memory without stopping it: where each thread keeps its frames.

py-spy takes stacks; this serves where the address of a frame is wanted (a uprobe that follows frames in the kernel), and for
interpreters that py-spy does not know, as free-threaded ones.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from gputop import elf
from gputop.stacks import layout
from gputop.stacks.code_object import Codes
from gputop.stacks.code_object import Torn
from gputop.stacks.frames import MAX_FRAMES
from gputop.stacks.frames import Line
from gputop.stacks.layout import Layout
from gputop.stacks.python_thread import MAX_THREADS
from gputop.stacks.python_thread import PythonThread
from gputop.stacks.python_thread import Unreadable

_WANTED = re.compile(rb"_PyRuntime\0|PyCode_Type\0|Py_Version\0")
_LIBRARY = re.compile(r"/libpython3\.\d+t?\.so[.\d]*(?: \(deleted\))?$")
_TRIES = 5
_SHIM = "<shim>"
"""What 3.12 puts between C code and the Python that it calls."""
_TAGS = 7
"""Low bits of an address that 3.14 uses for its own purposes."""


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread's state in the interpreter: its address, and the thread's ids as its own pid namespace knows them."""

    address: int
    native_id: int | None
    pthread: int


class Interpreter:
    """Close it (or leave the ``with``) when done. Raises `Unreadable` from the beginning on."""

    def __init__(self, pid: int, root: str = "/") -> None:
        self._base = os.path.join(root, "proc", str(pid))
        try:
            self._memory = os.open(f"{self._base}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:
            raise Unreadable("permission", "not permitted") from None
        except OSError:
            raise Unreadable("gone", "ended while it was read") from None
        try:
            self._runtime, code_type, version = self._find()
            self.layout = self._layout(version)
        except (OSError, struct.error):
            os.close(self._memory)
            raise Unreadable("gone", "ended while it was read") from None
        except Unreadable:
            os.close(self._memory)
            raise
        self._codes = Codes(self.read, self.layout, code_type)

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._memory)

    def read(self, address: int, count: int) -> bytes:
        """``count`` bytes of its memory; raises OSError where that is not mapped."""
        data = os.pread(self._memory, count, address)
        if len(data) < count:
            raise OSError("short read")
        return data

    def threads(self) -> list[Thread]:
        """Its threads, the main one first: interpreters put new ones in front. Raises OSError, struct.error while it starts or ends."""
        at = self.layout
        main = self._word(self._runtime + at.interpreters + 8)
        address = self._word(main + at.threads) if main else 0
        found: list[Thread] = []
        while address and len(found) < MAX_THREADS:
            native = struct.unpack("<I", self.read(address + at.native_id, 4))[0] if at.native_id >= 0 else None
            found.append(Thread(address, native, self._word(address + at.pthread)))
            address = self._word(address + at.next)
        return found[::-1]

    def main_thread(self) -> Thread:
        """Raises `Unreadable` where no Python runs in it."""
        try:
            return self.threads()[0]
        except (OSError, struct.error, IndexError):
            raise Unreadable("torn", "no Python thread runs in it yet") from None

    def frames(self, thread: Thread) -> list[Line]:
        """Its Python frames, innermost first. Raises Torn where it ran on meanwhile."""
        at = self.layout
        found: list[tuple[int, int]] = []
        try:
            address = self._word(thread.address + at.frame)
            if at.hop >= 0 and address:
                address = self._word(address + at.hop)
            while address and len(found) < MAX_FRAMES:
                found.append((self._word(address + at.code), self._word(address + at.instruction) & at.instruction_mask))
                address = self._word(address + at.back)
        except (OSError, struct.error) as error:
            raise Torn(str(error)) from None
        return self.lines(found)

    def lines(self, frames: Iterable[tuple[int, int]]) -> list[Line]:
        """(code object, instruction) of each frame as lines, without what is no Python function. Raises Torn."""
        try:
            wanted = [(code & ~_TAGS, instruction) for code, instruction in frames]
            lines = [self._codes.line(code, instruction) for code, instruction in wanted if self._codes.is_code(code)]
        except (OSError, struct.error) as error:
            raise Torn(str(error)) from None
        return [line for line in lines if line.file != _SHIM]

    def _word(self, address: int) -> int:
        word: int = struct.unpack("<Q", self.read(address, 8))[0]
        return word

    def _layout(self, version: int | None) -> Layout:
        found = layout.RELEASED.get(version or 0) or layout.described(self.read(self._runtime, layout.DEBUG_OFFSETS_BYTES))
        if found is None:
            named = f"Python 3.{version}" if version else "a Python of unknown version"
            raise Unreadable("unsupported", f"{named}: this gputop knows 3.8 to 3.{layout.NEWEST}: `{layout.UPGRADE}`")
        return found

    def _find(self) -> tuple[int, int, int | None]:
        """Addresses of _PyRuntime and PyCode_Type, and the minor version if it can be told."""
        for span, name in self._programs():
            path = elf.mapped_path(self._base, span, name)
            try:
                exports = elf.exports(path, elf.OBJECT, _WANTED)
            except (elf.NotElf, OSError):
                continue
            if {"_PyRuntime", "PyCode_Type"} <= exports.symbols.keys():
                shift = int(span.partition("-")[0], 16) - exports.base
                symbols = {symbol: address + shift for symbol, address in exports.symbols.items()}
                return symbols["_PyRuntime"], symbols["PyCode_Type"], self._version(symbols.get("Py_Version"), name)
        raise Unreadable("not-python", "not Python")

    def _programs(self) -> list[tuple[str, str]]:
        """(mapped addresses, path) of what can hold an interpreter, libpython before the program itself."""
        program = os.readlink(f"{self._base}/exe")
        found: dict[str, str] = {}
        for one in elf.mappings(self._base):
            if one.offset == 0 and (one.name == program or _LIBRARY.search(one.name)):
                found.setdefault(one.name, one.span)
        return sorted(((span, name) for name, span in found.items()), key=lambda one: one[1] == program)

    def _version(self, symbol: int | None, name: str) -> int | None:
        """3.11 and later export it; before, the file's name says it."""
        if symbol is not None:
            return self._word(symbol) >> 16 & 0xFF
        named = re.search(r"python3\.(\d+)", name)
        return int(named[1]) if named else None


def is_free_threaded(pid: int, root: str = "/") -> bool:
    """Whether it is a build without GIL, which py-spy takes for another and then finds no frames in; False where it cannot be told."""
    try:
        with Interpreter(pid, root) as python:
            return python.layout.free_threaded
    except Unreadable:
        return False


def dump(pid: int, root: str = "/") -> list[PythonThread]:
    """All Python threads of ``pid``, as `pyspy.dump` gives them, without a pause. Raises `Unreadable`."""
    with Interpreter(pid, root) as python:
        for _ in range(_TRIES):
            threads = _try(python)
            if threads is not None:
                return threads
    raise Unreadable("torn", "its stacks moved while they were read")


def _try(python: Interpreter) -> list[PythonThread] | None:
    try:
        return [_thread(python, thread, first=i == 0) for i, thread in enumerate(python.threads())]
    except (Torn, OSError, struct.error):
        return None


def _thread(python: Interpreter, thread: Thread, first: bool) -> PythonThread:
    return PythonThread("MainThread" if first else "", thread.native_id, thread.pthread, False, False, python.frames(thread))
