"""The Pythons inside another process, read from its memory without stopping it: where each thread keeps its frames.

py-spy takes stacks; this serves where the address of a frame is wanted (a uprobe that follows frames in the kernel), and for what py-spy
does not know: free-threaded builds, and processes with several interpreters (PEP 684, 734; embedders, some with several Pythons), of which
it reads the newest alone.
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

MOST_READ = 16 << 20  # bytes of a process's memory that one look may read: 256 threads of ordinary depth take 1 MB
MAX_INTERPRETERS, MAX_RUNTIMES = 64, 4  # that are walked in one Python, and Pythons in one process
_WANTED = re.compile(rb"_PyRuntime\0|PyCode_Type\0|Py_Version\0")
_LIBRARY = re.compile(r"/libpython3\.\d+t?\.so[.\d]*(?: \(deleted\))?$")
_TRIES, _TRIES_S = 5, 0.5  # s of CPU time after which nothing is tried again: 256 threads take 0.1
_SHIM = "<shim>"
"""What 3.12 puts between C code and the Python that it calls."""
_TAGS = 7
"""Low bits of an address that 3.14 uses for its own purposes."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """One Python: mostly a process has one, whatever many interpreters that runs."""

    address: int
    """_PyRuntime."""
    layout: Layout
    codes: Codes = field(compare=False)


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread's state in one interpreter: its address, and the thread's ids as its own pid namespace knows them."""

    address: int
    native_id: int | None
    pthread: int
    runtime: Runtime
    main: bool = True
    """Its interpreter is its Python's main one."""


class Interpreter:
    """Close it (or leave the ``with``) when done. Raises `Unreadable` from the beginning on."""

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
        """Of the Python that its main thread runs."""
        return self._runtimes[0].layout

    def read(self, address: int, count: int) -> bytes:
        """``count`` bytes of its memory; raises OSError where that is not mapped, Unreadable where that would be more than is sensible."""
        self._left -= count
        if self._left < 0:
            raise Unreadable("torn", f"its stacks hold more than {MOST_READ >> 20} MiB of names and lines")
        data = os.pread(self._memory, count, address)
        if len(data) < count:
            raise OSError("short read")
        return data

    def is_several(self) -> bool:
        """Whether it has more than one interpreter."""
        try:
            return sum(len(self._interpreters(runtime)) for runtime in self._runtimes) > 1
        except (OSError, struct.error):
            return False

    def threads(self) -> list[Thread]:
        """The threads of all its interpreters, the main one's first and each one's oldest first: interpreters put new ones in front, as do
        Pythons with interpreters. Raises OSError, struct.error while it starts or ends."""
        self._left = MOST_READ
        found: list[Thread] = []
        for runtime in self._runtimes:
            main = self._word(runtime.address + runtime.layout.interpreters + 8)
            for interpreter in sorted(self._interpreters(runtime), key=lambda one: one != main):
                found += self._threads_of(runtime, interpreter, interpreter == main, MAX_THREADS - len(found))
        return found

    def main_thread(self) -> Thread:
        """Raises `Unreadable` where no Python runs in it."""
        try:
            return self.threads()[0]
        except (OSError, struct.error, IndexError):
            raise Unreadable("torn", "no Python thread runs in it yet") from None

    def frames(self, thread: Thread) -> list[Line]:
        """Its Python frames in that interpreter, innermost first. Raises Torn where it ran on meanwhile."""
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
        """(code object, instruction) of each frame as lines, without what is no Python function. Raises Torn."""
        codes = (runtime or self._runtimes[0]).codes
        try:
            wanted = [(code & ~_TAGS, instruction) for code, instruction in frames]
            lines = [codes.line(code, instruction) for code, instruction in wanted if codes.is_code(code)]
        except (OSError, struct.error) as error:
            raise Torn(str(error)) from None
        return [line for line in lines if line.file != _SHIM]

    def stacks(self) -> list[PythonThread]:
        """Each thread of the system's with its frames, the main one first. Where one interpreter runs another, the frames of that one come
        before those that called it. Raises Torn, OSError, struct.error where it ran on meanwhile."""
        return list(self._stacks())

    def main_frames(self) -> list[Line]:
        """Those of the first of `stacks`. Raises Torn where it ran on meanwhile."""
        try:
            return next((thread.frames for thread in self._stacks()), [])
        except (OSError, struct.error) as error:
            raise Torn(str(error)) from None

    def _stacks(self) -> Iterator[PythonThread]:
        threads = self.threads()
        pthreads = [thread.pthread for thread in threads if thread.main]
        c_stacks = [] if len(pthreads) == len(threads) else self._c_stacks(pthreads)
        found: dict[int, list[Thread]] = {}
        for thread in threads:
            ran_by = thread.pthread if thread.main else self._ran_by(thread, c_stacks, pthreads)
            found.setdefault(ran_by or -thread.address, []).append(thread)
        for number, (pthread, own) in enumerate(found.items()):
            frames = [line for thread in reversed(own) for line in self.frames(thread)][:MAX_FRAMES]
            if own[0].main or frames:  # an interpreter that rests is no thread
                tid = own[0].native_id if pthread > 0 else None
                yield PythonThread("" if number else "MainThread", tid, max(0, pthread), False, False, frames)

    def _interpreters(self, runtime: Runtime) -> list[int]:
        """The oldest first."""
        found: list[int] = []
        address = self._word(runtime.address + runtime.layout.interpreters)
        while address and address not in found and len(found) < MAX_INTERPRETERS:
            found.append(address)
            address = self._word(address + runtime.layout.next_interpreter)
        return found[::-1]

    def _threads_of(self, runtime: Runtime, interpreter: int, main: bool, most: int) -> list[Thread]:
        at = runtime.layout
        found: list[Thread] = []
        address = self._word(interpreter + at.threads)
        while address and len(found) < most:
            native = struct.unpack("<I", self.read(address + at.native_id, 4))[0] if at.native_id >= 0 else None
            found.append(Thread(address, native, self._word(address + at.pthread), runtime, main))
            address = self._word(address + at.next)
        return found[::-1]

    def _c_stacks(self, pthreads: list[int]) -> list[tuple[int, int, int]]:
        """(first address, the one behind the last, pthread) of C stacks: libc keeps a thread's ``struct pthread`` above its stack, but the
        main thread's elsewhere. The mapping of one may go on with something else."""
        found: list[tuple[int, int, int]] = []
        for one in elf.mappings(self._base, named=False):
            start, end = one.addresses
            for pthread in sorted(pthread for pthread in pthreads if start <= pthread < end):
                found.append((start, pthread, pthread))
                start = pthread
            if one.name == "[stack]" and pthreads:
                found.append((start, end, pthreads[0]))
        return found

    def _ran_by(self, thread: Thread, c_stacks: list[tuple[int, int, int]], pthreads: list[int]) -> int | None:
        """The pthread of whoever executes it; None where that cannot be told. Until 3.12 an interpreter's first thread keeps the ids of who
        made it, whoever runs it: what tells then is whose C stack its innermost call of the evaluation loop lies on."""
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
        """That of its main thread first, and those without interpreters, which a library may have brought for no use, last. Raises
        Unreadable, OSError, struct.error."""
        told = [self._runtime(one, symbols) for one, symbols in self._exporting()]
        if not (found := [one for one in told if isinstance(one, Runtime)]):
            raise next((one for one in told if isinstance(one, Unreadable)), Unreadable("not-python", "not Python"))
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
        """As its own pid namespace numbers it."""
        with open(f"{self._base}/status", encoding="utf-8", errors="replace") as file:
            return next((int(line.split()[-1]) for line in file if line.startswith("NSpid:")), 0)

    def _exporting(self) -> Iterator[tuple[elf.Mapping, dict[str, int]]]:
        """Addresses of what each Python exports."""
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
        """Where what can hold a Python begins, libpython before the program itself, and its file."""
        program = os.readlink(f"{self._base}/exe")
        found: dict[tuple[str, str], elf.Mapping] = {}
        for one in elf.mappings(self._base):
            if one.offset == 0 and (one.name == program or _LIBRARY.search(one.name)):
                found.setdefault(one.file, one)
        for one in sorted(found.values(), key=lambda one: one.name == program)[-MAX_RUNTIMES:]:
            with suppress(OSError):
                yield one, elf.opened(f"{self._base}/exe") if one.name == program else elf.open_mapped(self._base, one)

    def _version(self, symbol: int | None, name: str) -> int | None:
        """3.11 and later export it; before, the file's name says it."""
        if symbol is not None:
            return self._word(symbol) >> 16 & 0xFF
        named = re.search(r"python3\.(\d+)", name)
        return int(named[1]) if named else None


def is_beyond_py_spy(pid: int, root: str = "/") -> bool:
    """Whether py-spy would miss what it runs: a build without GIL, which it takes for another, or several interpreters; False where that
    cannot be told."""
    try:
        with Interpreter(pid, root) as python:
            return python.layout.free_threaded or python.is_several()
    except Unreadable:
        return False


def dump(pid: int, root: str = "/") -> list[PythonThread]:
    """All Python threads of ``pid``, as `pyspy.dump` gives them, without a pause. Raises `Unreadable`."""
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
