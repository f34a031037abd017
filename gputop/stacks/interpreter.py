"""The Python interpreters of another process, read from its memory without stopping it.

py-spy takes most stacks. This reader serves the uprobe that follows frames in the kernel and needs their addresses, and what py-spy cannot
read: free-threaded builds, and processes with several interpreters (PEP 684, PEP 734, programs that embed Python), of which py-spy reads
only the newest, and gives its frames to the main thread.

A set of stacks of one trainer and 8 torch workers takes 0.11 to 0.16 s and 115 ms of CPU by py-spy, and 0.04 to 0.09 s and 40 ms by this
reader (2026-11-28, 2 vCPUs under other load, Python 3.11, py-spy 0.4.3). py-spy still comes first: it names threads, knows which one holds
the GIL, and reads native frames. Neither can replace the other.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO

from gputop.sources import elf
from gputop.stacks import layout
from gputop.stacks.frames import MAX_FRAMES, MAX_THREADS, Line, PythonThread, Unreadable
from gputop.stacks.layout import Codes, Layout, Torn

MOST_READ = 16 << 20  # bytes of the process's memory per set of stacks: 256 threads of ordinary depth take 1 MB
MAX_INTERPRETERS, MAX_RUNTIMES = 64, 4  # interpreters per Python, Pythons per process
_WANTED = re.compile(rb"_PyRuntime\0|PyCode_Type\0|Py_Version\0")
_LIBRARY = re.compile(r"/libpython3\.\d+t?\.so[.\d]*(?: \(deleted\))?$")
_TRIES, _TRIES_S = 5, 0.5  # tries of a set of stacks, and s of CPU time after which there is no other: 256 threads take 0.1
_SHIM = "<shim>"  # file name of the frame that 3.12 puts between C code and the Python code that it calls
_TAGS = 7  # low bits of an address that 3.14 uses as tags


@dataclass(frozen=True, slots=True)
class Runtime:
    """One Python runtime. A process mostly has one, with one or more interpreters."""

    address: int  # address of _PyRuntime
    layout: Layout
    codes: Codes = field(compare=False)


@dataclass(frozen=True, slots=True)
class InterpreterThread:
    """The state of one thread in one interpreter (PyThreadState): its address, and the thread's ids in its own pid namespace."""

    address: int
    native_id: int | None
    pthread: int
    runtime: Runtime
    main: bool = True  # whether its interpreter is the runtime's main one


class Interpreter:
    """Reader of one process's interpreters; a context manager. The constructor and the readers raise `Unreadable`."""

    def __init__(self, pid: int, root: str = "/") -> None:
        self._base = os.path.join(root, "proc", str(pid))
        self._left = MOST_READ
        try:
            self._memory = os.open(f"{self._base}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:
            raise Unreadable("permission", "not permitted") from None
        except OSError:
            raise Unreadable("gone", "ended while it was read") from None
        try:
            self._runtimes = self._find()
        except (OSError, struct.error):
            os.close(self._memory)
            raise Unreadable("gone", "ended while it was read") from None
        except Unreadable:
            os.close(self._memory)
            raise

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._memory)

    @property
    def layout(self) -> Layout:
        """The layout of the Python that the main thread runs."""
        return self._runtimes[0].layout

    def read(self, address: int, count: int) -> bytes:
        """``count`` bytes of the process's memory. Raises OSError if they are not mapped, Unreadable beyond `MOST_READ`."""
        self._left -= count
        if self._left < 0:
            raise Unreadable("torn", f"its stacks hold more than {MOST_READ >> 20} MiB of names and lines")
        try:
            data = os.pread(self._memory, count, address)
        except OverflowError:
            raise OSError("no address: 2**63 or more") from None
        if len(data) < count:
            raise OSError("short read")
        return data

    def is_several(self) -> bool:
        """True if the process has more than one interpreter."""
        try:
            return sum(len(self._interpreters(runtime)) for runtime in self._runtimes) > 1
        except (OSError, struct.error):
            return False

    def threads(self) -> list[InterpreterThread]:
        """The threads of all interpreters: the main interpreter first, and in each the oldest thread first (Python prepends new ones).

        Raises OSError or struct.error while the process starts or ends.
        """
        self._left = MOST_READ
        found: list[InterpreterThread] = []
        for runtime in self._runtimes:
            main = self._word(runtime.address + runtime.layout.interpreters + 8)
            for interpreter in sorted(self._interpreters(runtime), key=lambda one: one != main):
                found += self._threads_of(runtime, interpreter, interpreter == main, MAX_THREADS - len(found))
        return found

    def main_thread(self) -> InterpreterThread:
        """The main thread. Raises `Unreadable` if no Python runs yet."""
        try:
            return self.threads()[0]
        except (OSError, struct.error, IndexError):
            raise Unreadable("torn", "no Python thread runs in it yet") from None

    def frames(self, thread: InterpreterThread) -> list[Line]:
        """The thread's Python frames in its interpreter, innermost first. Raises Torn if it ran on while read."""
        at = thread.runtime.layout
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
        return self.lines(found, thread.runtime)

    def lines(self, frames: Iterable[tuple[int, int]], runtime: Runtime | None = None) -> list[Line]:
        """The lines of frames (code object, instruction); frames that are no Python function are left out. Raises Torn."""
        codes = (runtime or self._runtimes[0]).codes
        try:
            wanted = [(code & ~_TAGS, instruction) for code, instruction in frames]
            lines = [codes.line(code, instruction) for code, instruction in wanted if codes.is_code(code)]
        except (OSError, struct.error) as error:
            raise Torn(str(error)) from None
        return [line for line in lines if line.file != _SHIM]

    def stacks(self) -> list[PythonThread]:
        """All OS threads with their frames, the main thread first. If one interpreter runs another, the inner one's frames come first.

        Raises Torn, OSError or struct.error if the process ran on while read.
        """
        return list(self._stacks())

    def main_frames(self) -> list[Line]:
        """The main thread's frames, as in `stacks`. Raises Torn if it ran on while read."""
        try:
            return next((thread.frames for thread in self._stacks()), [])
        except (OSError, struct.error) as error:
            raise Torn(str(error)) from None

    def _stacks(self) -> Iterator[PythonThread]:
        threads = self.threads()
        pthreads = [thread.pthread for thread in threads if thread.main]
        c_stacks = [] if len(pthreads) == len(threads) else self._c_stacks(pthreads)
        found: dict[int, list[InterpreterThread]] = {}
        for thread in threads:
            ran_by = thread.pthread if thread.main else self._ran_by(thread, c_stacks, pthreads)
            found.setdefault(ran_by or -thread.address, []).append(thread)
        for number, (pthread, own) in enumerate(found.items()):
            frames = [line for thread in reversed(own) for line in self.frames(thread)][:MAX_FRAMES]
            if own[0].main or frames:  # an idle interpreter has no thread
                tid = own[0].native_id if pthread > 0 else None
                yield PythonThread("" if number else "MainThread", tid, max(0, pthread), False, False, frames)

    def _interpreters(self, runtime: Runtime) -> list[int]:
        """Addresses of the interpreters, oldest first."""
        found: list[int] = []
        address = self._word(runtime.address + runtime.layout.interpreters)
        while address and address not in found and len(found) < MAX_INTERPRETERS:
            found.append(address)
            address = self._word(address + runtime.layout.next_interpreter)
        return found[::-1]

    def _threads_of(self, runtime: Runtime, interpreter: int, main: bool, most: int) -> list[InterpreterThread]:
        at = runtime.layout
        found: list[InterpreterThread] = []
        address = self._word(interpreter + at.threads)
        while address and len(found) < most:
            native = struct.unpack("<I", self.read(address + at.native_id, 4))[0] if at.native_id >= 0 else None
            found.append(InterpreterThread(address, native, self._word(address + at.pthread), runtime, main))
            address = self._word(address + at.next)
        return found[::-1]

    def _c_stacks(self, pthreads: list[int]) -> list[tuple[int, int, int]]:
        """(first address, end address, pthread) of the C stacks.

        libc keeps a thread's ``struct pthread`` above its stack, and the main thread's elsewhere. A mapping may continue after a stack.
        """
        found: list[tuple[int, int, int]] = []
        for one in elf.mappings(self._base, named=False):
            start, end = one.addresses
            for pthread in sorted(pthread for pthread in pthreads if start <= pthread < end):
                found.append((start, pthread, pthread))
                start = pthread
            if one.name == "[stack]" and pthreads:
                found.append((start, end, pthreads[0]))
        return found

    def _ran_by(self, thread: InterpreterThread, c_stacks: list[tuple[int, int, int]], pthreads: list[int]) -> int | None:
        """The pthread of the OS thread that executes this thread state; None if unknown.

        Up to 3.12 an interpreter's first thread state keeps the ids of the thread that created it. The C stack with its innermost
        call of the evaluation loop shows which thread runs it.
        """
        at = thread.runtime.layout
        if at.minor >= 13 or thread.pthread not in pthreads:
            return thread.pthread
        if at.c_frame < 0:
            return None
        c_frame = self._word(thread.address + at.c_frame)
        return next((pthread for start, end, pthread in c_stacks if start <= c_frame < end), None)

    def _word(self, address: int) -> int:
        word: int = struct.unpack("<Q", self.read(address, 8))[0]
        return word

    def _layout(self, runtime: int, version: int | None) -> Layout:
        found = layout.RELEASED.get(version or 0) or layout.described(self.read(runtime, layout.DEBUG_OFFSETS_BYTES))
        if found is None:
            named = f"Python 3.{version}" if version else "a Python of unknown version"
            raise Unreadable("unsupported", f"{named}: this gputop knows 3.8 to 3.{layout.NEWEST}: `{layout.UPGRADE}`")
        return found

    def _find(self) -> list[Runtime]:
        """The process's runtimes: the main thread's first, unused ones without interpreters last.

        Raises Unreadable, OSError, struct.error.
        """
        results = [self._runtime(one, symbols) for one, symbols in self._exporting()]
        if not (found := [one for one in results if isinstance(one, Runtime)]):
            raise next((one for one in results if isinstance(one, Unreadable)), Unreadable("not-python", "not Python"))
        return sorted(found, key=self._rank) if len(found) > 1 else found

    def _runtime(self, one: elf.Mapping, symbols: dict[str, int]) -> Runtime | Unreadable:
        runtime = symbols["_PyRuntime"]
        try:
            at = self._layout(runtime, self._version(symbols.get("Py_Version"), one.name))
        except Unreadable as error:
            return error
        return Runtime(runtime, at, Codes(self.read, at, symbols["PyCode_Type"]))

    def _rank(self, runtime: Runtime) -> int:
        main = self._word(runtime.address + runtime.layout.interpreters + 8)
        threads = self._threads_of(runtime, main, True, MAX_THREADS) if main else []
        return 1 + (threads[0].native_id not in (None, self._inner_pid())) if threads else 3

    def _inner_pid(self) -> int:
        """The process's pid in its own pid namespace."""
        with open(f"{self._base}/status", encoding="utf-8", errors="replace") as file:
            return next((int(line.split()[-1]) for line in file if line.startswith("NSpid:")), 0)

    def _exporting(self) -> Iterator[tuple[elf.Mapping, dict[str, int]]]:
        """The mapping of each Python, and symbol -> address of its exports."""
        for one, file in self._programs():
            with file:
                try:
                    exports = elf.exports(file, elf.OBJECT, _WANTED)
                except (elf.NotElf, OSError):
                    continue
            if {"_PyRuntime", "PyCode_Type"} <= exports.symbols.keys():
                shift = one.addresses[0] - exports.base
                yield one, {symbol: address + shift for symbol, address in exports.symbols.items()}

    def _programs(self) -> Iterator[tuple[elf.Mapping, FileIO]]:
        """The files that may hold a Python, libpython before the program itself, with their first mappings."""
        program = os.readlink(f"{self._base}/exe")
        found: dict[tuple[str, str], elf.Mapping] = {}
        for one in elf.mappings(self._base):
            if one.offset == 0 and (one.name == program or _LIBRARY.search(one.name)):
                found.setdefault(one.file, one)
        for one in sorted(found.values(), key=lambda one: one.name == program)[-MAX_RUNTIMES:]:
            with suppress(OSError):
                yield one, elf.opened(f"{self._base}/exe") if one.name == program else elf.open_mapped(self._base, one)

    def _version(self, symbol: int | None, name: str) -> int | None:
        """The minor version: 3.11 and later export it, the file names of older ones have it; None if unknown."""
        if symbol is not None:
            return self._word(symbol) >> 16 & 0xFF
        named = re.search(r"python3\.(\d+)", name)
        return int(named[1]) if named else None


def is_beyond_py_spy(pid: int, root: str = "/") -> bool:
    """True if py-spy cannot read the process: a build without GIL, or several interpreters. False if that is unknown."""
    try:
        with Interpreter(pid, root) as python:
            return python.layout.free_threaded or python.is_several()
    except Unreadable:
        return False


def dump(pid: int, root: str = "/") -> list[PythonThread]:
    """All Python threads of ``pid``, as `gputop.stacks.pyspy.dump` returns them, without a pause. Raises `Unreadable`."""
    with Interpreter(pid, root) as python:
        began_s = time.thread_time()
        for _ in range(_TRIES):
            threads = _try(python)
            if threads is not None:
                return threads
            if time.thread_time() - began_s > _TRIES_S:
                break
    raise Unreadable("torn", "its stacks moved while they were read")


def _try(python: Interpreter) -> list[PythonThread] | None:
    try:
        return python.stacks()
    except (Torn, OSError, struct.error):
        return None
