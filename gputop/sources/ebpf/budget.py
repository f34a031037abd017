"""Bounds the cost of watching CUDA calls, and estimates the counts that are not watched.

A call of a probed function costs its process a microsecond, or ten where the kernel single-steps the function's first instruction. So a
library's functions are of two kinds:

- Most are attached all the time and counted exactly. The probe adds up what their calls cost (probes/cuda.c). A process that loses
  `ALWAYS_SHARE` of a second raises an alarm, and the function that it called becomes a sampled one.
- Sampled functions and launches of kernels are attached together for a few milliseconds at random times. A window cannot cost more
  than it lasts, whatever the calls cost, and the pause after it is as long as `WINDOWS_SHARE` demands. What a window counts stands for
  the time up to the next one.

A thread of its own does this: attaching takes 12 ms and detaching 60 ms, in which it waits for the kernel.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import select
import struct
import threading
import time
from collections.abc import Callable, Iterable
from io import FileIO

from msgspec import Struct, field

from gputop.model.histogram import COUNT
from gputop.sources.ebpf import libcuda, uprobe
from gputop.sources.ebpf.estimates import Estimates
from gputop.sources.ebpf.helper import Helper, HelperFailed
from gputop.sources.ebpf.maps import Map
from gputop.sources.ebpf.price import ASSUMED, ProbeOverhead, calibrate

ALWAYS_SHARE = 0.005  # of a second; probes/cuda.c has it as ALARM_NS and SPELL_NS
WINDOWS_SHARE = 0.003  # of the time that windows may cost a process
EDGES_S = 0.003  # s that a function is probed before its links are made, and after they are closed (measured)
FIXED_S = 0.0003  # s that a window costs a process without calls: its code is written to twice
SHORTEST_S, LONGEST_S = 0.005, 0.04  # s of a window
WINDOW_COST_S = 0.002  # s that calls may cost a process in a window; its length follows
SAMPLED_EVERY_S = 0.5  # s between two windows, at least
LAUNCHES_EVERY_S = 2.0  # s between two windows if only launches are sampled
MOST_SLOWED = 0.8  # largest share of a window that calls may have cost: beyond it, their undisturbed rate cannot be estimated
RETURN_SHARE = 0.001  # a sampled function with cheaper calls is attached all the time again …
HOLD_S, LONGEST_HOLD_S = 2.0, 64.0  # s … after so long, doubled with each alarm
_HELPER_S = 5.0  # s to wait for the privileged helper
_CLOSING_MS = 10.0  # ms between two looks whether the last window's links are closed
_CLOSERS = 8  # threads that close links

SAMPLED = 0x8000  # in a number of a call: the record of sampled calls (probes/cuda.c)
RECORD = struct.Struct(f"<5Q{COUNT}Q{COUNT}I")  # struct call of probes/cuda.c
ENTERED = struct.Struct("<QQQII")
_GATE = struct.Struct("<QQ")
_ALARM = struct.Struct("<II")
_CALLS, _TOTAL, _BYTES, _MAXIMA, _COUNTS = 0, 1, 4, (2, 3), 5 + COUNT  # positions in a record

Record = tuple[int, ...]
Tables = dict[str, Map]


class ProbeBundle(Struct):
    """Functions that are attached and detached together."""

    functions: list[libcuda.Function]
    links: list[int]


class Hold(Struct):
    """A function that is sampled."""

    until_s: float  # time.monotonic from which it may be attached all the time again
    quiet: int = 0  # windows in a row that found few calls


class Library(Struct):
    """A library that is probed."""

    name: str
    owner: int  # uid of the process in which it was found
    file: FileIO
    facts: tuple[int, ...]  # `elf.facts` when its probe points were read
    points: libcuda.ProbePoints
    slot: int = -1  # its number in cookies
    bundles: list[ProbeBundle] = field(default_factory=list)
    sampled: dict[str, Hold] = field(default_factory=dict)  # by call
    hold_s: dict[str, float] = field(default_factory=dict)  # call -> its next hold


class Linker:
    """Attaches programs; with ``sudo`` by a helper that stays, if this process may not."""

    def __init__(self, programs: list[int], way: str, sudo: bool) -> None:
        self._programs, self.way, self._sudo = programs, way, sudo
        self._helper: Helper | None = None

    def attach(self, library: int, cookies: dict[int, int]) -> list[int]:
        """Attach to entries and returns; returns the links' descriptors. Raises OSError or HelperFailed."""
        return self._attach(library, cookies, self._programs[:2])

    def attach_entries(self, library: int, offsets: Iterable[int]) -> list[int]:
        """Attach the program that counts launches to entries. Raises OSError or HelperFailed."""
        return self._attach(library, dict.fromkeys(offsets, 0), self._programs[2:])

    def attach_tracepoints(self, programs: dict[str, int], raw: bool) -> list[int]:
        """Attach to the scheduler's tracepoints (name -> program). Raises OSError or HelperFailed."""
        request: dict[str, object] = {"tracepoints": list(programs), "raw": raw}
        return self._here_or_helped(lambda: uprobe.attach_tracepoints(programs, raw), request, list(programs.values()))

    def close(self) -> None:
        """Let the helper end."""
        if self._helper is not None:
            self._helper.close()
            self._helper = None

    def _attach(self, library: int, cookies: dict[int, int], programs: list[int]) -> list[int]:
        request: dict[str, object] = {"cookies": {str(offset): cookie for offset, cookie in cookies.items()}, "way": self.way}
        return self._here_or_helped(lambda: uprobe.attach(library, cookies, programs, self.way), request, [library, *programs])

    def _here_or_helped(self, attach: Callable[[], list[int]], request: dict[str, object], descriptors: list[int]) -> list[int]:
        if self._helper is None:
            try:
                return attach()
            except PermissionError:
                if not self._sudo:
                    raise
            self._helper = Helper(os.path.abspath(uprobe.__file__), sudo=True)
        try:
            self._helper.send(json.dumps(request).encode(), descriptors, _HELPER_S)
            answer, links = self._helper.wait(_HELPER_S)
        except (HelperFailed, OSError):
            self.close()
            raise
        if answer["error"]:
            raise HelperFailed(str(answer["error"]))
        return links


class Alarms:
    """The probe's ring of alarms (BPF_MAP_TYPE_RINGBUF, one page)."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        page = mmap.PAGESIZE
        self._consumer = mmap.mmap(fd, page)
        self._producer = mmap.mmap(fd, 3 * page, prot=mmap.PROT_READ, offset=page)

    def take(self) -> list[tuple[int, int]]:
        """(pid, low 32 bits of the cookie) of each alarm since the last call."""
        found, page = [], mmap.PAGESIZE
        at, end = (int.from_bytes(ring[:8], "little") for ring in (self._consumer, self._producer))
        while at < end:
            place = page + at % page
            (length,) = struct.unpack_from("<I", self._producer, place)
            if length >> 31:  # still being written
                break
            found.append(_ALARM.unpack_from(self._producer, place + 8))
            at += 8 + (length & 0x3FFFFFFF) + 7 & ~7
        struct.pack_into("<Q", self._consumer, 0, at)
        return found


class ProbeBudget:
    """Holds the libraries' probes, and keeps their cost within the budget."""

    def __init__(self, linker: Linker, tables: Tables | None = None, alarms: int = -1) -> None:
        self.names: list[str] = []  # names of calls by number
        self.arguments: dict[str, int] = {}  # call -> number of its argument that counts bytes, 0 without one
        self.estimates = Estimates()
        self.counted: tuple[int, int, dict[int, int]] = 0, 0, {}
        """(windows so far, ns they lasted in all, pid -> launches in all)."""
        self.uncounted = ""  # why the last window failed
        self._linker = linker
        self._tables = {name: Map(table.fd, table.shape) for name, table in tables.items()} if tables else None
        self._alarms = Alarms(alarms) if alarms >= 0 else None
        self._lock = threading.Lock()  # held while links change
        self._libraries: dict[int, Library] = {}  # by slot
        self._prices = ASSUMED
        self._may_calibrate = bool(tables)
        self._width_s = LONGEST_S
        self._due_s = 0.0  # time.monotonic of the next window
        self._may_sample = True
        self._sampled_before: dict[int, Record] = {}  # key of the map -> record after the last window
        self._closing: list[threading.Thread] = []
        self._thread: threading.Thread | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if tables else -1
        self._ended = False

    def add(self, library: Library) -> None:
        """Attach all functions of a library, and count launches at once. Raises OSError or HelperFailed."""
        with self._lock:
            self._calibrate()
            library.slot = next(slot for slot in range(len(self._libraries) + 1) if slot not in self._libraries)
            library.bundles = self._attach(library, library.points.functions)
            self._libraries[library.slot] = library
            self._due_s = 0.0
        self._start()

    def _calibrate(self) -> None:
        if self._may_calibrate and self._tables is not None:
            self._may_calibrate = False
            with contextlib.suppress(OSError, HelperFailed):  # attaching the library will report why
                self._prices, links = calibrate(self._linker, self._tables["calls"])
                self._closing += self._close(links)

    def remove(self, library: Library) -> None:
        """Detach a library."""
        with self._lock:
            self._libraries.pop(library.slot, None)
            links = [link for bundle in library.bundles for link in bundle.links]
            library.bundles = []
            for thread in self._close(links):
                thread.join()
            library.file.close()

    def close(self) -> None:
        """End the thread, and detach all libraries."""
        self._ended = True
        if self._thread is not None:
            os.eventfd_write(self._wake, 1)
            self._thread.join(_HELPER_S)
        for library in list(self._libraries.values()):
            self.remove(library)
        for thread in self._closing:
            thread.join(_HELPER_S)
        self._linker.close()
        if self._wake >= 0:
            os.close(self._wake)

    def sampled(self) -> list[str]:
        """Names of the calls that are counted in a share of the time."""
        return sorted({call for library in list(self._libraries.values()) for call in list(library.sampled)})

    def _start(self) -> None:
        if self._tables is None:
            return
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="gputop-budget", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads: the next library tries again
                thread.start()
                self._thread = thread
        os.eventfd_write(self._wake, 1)

    def _work(self) -> None:
        poll = select.poll()
        for fd in [self._wake, *([self._alarms.fd] if self._alarms is not None else [])]:
            poll.register(fd, select.POLLIN)
        while not self._ended:
            poll.poll(self._wait_ms())
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            with self._lock:
                self._hear_alarms()
                self._closing = [thread for thread in self._closing if thread.is_alive()]
                if self._due_s <= time.monotonic() and not self._closing and not self._ended:
                    self._due_s = time.monotonic() + LAUNCHES_EVERY_S
                    if self._may_sample:
                        self._count()

    def _wait_ms(self) -> float | None:
        if not self._libraries:
            return None
        return max(_CLOSING_MS if self._closing else 0.0, (self._due_s - time.monotonic()) * 1e3)

    def _hear_alarms(self) -> None:
        for _pid, what in self._alarms.take() if self._alarms is not None else []:
            library, call = self._libraries.get(what >> 20), what & 0xFFFF
            if library is not None and call < len(self.names) and self.names[call] not in library.sampled:
                self._begin_to_sample(library, self.names[call])

    def _begin_to_sample(self, library: Library, call: str) -> None:
        """Detach a function; its bundle is first attached again without it, so that the others' calls are not missed."""
        hold_s = library.hold_s.get(call, HOLD_S)
        library.hold_s[call] = min(2 * hold_s, LONGEST_HOLD_S)
        library.sampled[call] = Hold(time.monotonic() + hold_s)
        links: list[int] = []
        for bundle in [one for one in library.bundles if any(function.call == call for function in one.functions)]:
            library.bundles.remove(bundle)
            rest = [function for function in bundle.functions if function.call != call]
            try:
                library.bundles += self._attach(library, rest)
            except (OSError, HelperFailed) as error:
                self.uncounted = getattr(error, "strerror", None) or str(error)
                library.sampled.update((function.call, Hold(time.monotonic() + hold_s)) for function in rest)
            links += bundle.links
        now = time.monotonic_ns()
        for thread in self._close(links):
            thread.join()
        self._drop_inflight(self.names.index(call))
        for name in library.sampled:
            number = self.names.index(name)
            self.estimates.begin(number, now, self._pids_of(number) if name == call else ())
        self._width_s, self._due_s = SHORTEST_S, 0.0

    def _drop_inflight(self, number: int) -> None:
        """Forget the calls that will not be seen to return."""
        assert self._tables is not None
        inflight = self._tables["inflight"]
        inflight.delete(who for who in inflight.key_list(inflight.read()) if who >> 32 == number)

    def _pids_of(self, number: int) -> list[int]:
        assert self._tables is not None
        calls = self._tables["calls"]
        return [who & 0xFFFFFFFF for who in calls.key_list(calls.read()) if who >> 32 == number]

    def _end_sampling(self, library: Library, call: str) -> None:
        library.bundles += self._attach(library, [function for function in library.points.functions if function.call == call])
        del library.sampled[call]
        if not any(call in one.sampled for one in self._libraries.values()):
            self.estimates.end(self.names.index(call), time.monotonic_ns())

    def _count(self) -> None:
        """Count sampled functions and launches for one window."""
        assert self._tables is not None
        links: list[int] = []
        began = time.monotonic()
        try:
            for library in self._libraries.values():
                links += self._attach_sampled(library)
            self.uncounted = ""
        except (OSError, HelperFailed) as error:
            self._may_sample = not isinstance(error, PermissionError)
            self.uncounted = getattr(error, "strerror", None) or str(error)
            self._closing += self._close(links)
            return
        if not links:
            return
        attached = time.monotonic() if self._linker.way == "multi" else began  # perf events are attached one after the other
        launched, width_ns = self._launches(), int(self._width_s * 1e9)
        open_ns = time.monotonic_ns() + 200_000
        self._tables["gate"].put(0, _GATE.pack(open_ns, open_ns + width_ns))
        if self._alarm_within((open_ns + width_ns - time.monotonic_ns()) / 1e9):
            width_ns = max(0, min(time.monotonic_ns() - open_ns, width_ns))
            self._tables["gate"].put(0, _GATE.pack(open_ns, open_ns + width_ns))
        self._closing += self._close(links)
        if self._linker.way != "multi":  # and detached so
            for thread in self._closing:
                thread.join()
        attached_s = time.monotonic() - attached + EDGES_S  # on a busy machine more than the window
        if width_ns < SHORTEST_S * 1e9 / 2:  # too short for a judgement
            return
        after = self._launches()
        launched = {pid: max(0, count - launched.get(pid, 0)) for pid, count in after.items()}
        counted, missing = self._sampled_calls(open_ns + width_ns)
        slowed = self._slowed(counted, launched, width_ns)
        self._plan(counted, slowed, width_ns / 1e9, attached_s)
        unslowed = {pid: 1.0 / (1.0 - min(share, MOST_SLOWED)) for pid, share in slowed.items()}
        estimated = {who: self._undisturbed(who, deltas, unslowed.get(who & 0xFFFFFFFF, 1.0)) for who, deltas in counted.items()}
        self.estimates.add_window(open_ns, width_ns, estimated, missing)
        self._add_launches(width_ns, {pid: round(count * unslowed.get(pid, 1.0)) for pid, count in launched.items()})

    def _slowed(self, counted: dict[int, dict[int, int]], launched: dict[int, int], ns: int) -> dict[int, float]:
        """pid -> share of a window that its calls cost it."""
        launch_ns = self._prices[any(one.stepped for library in self._libraries.values() for one in library.points.launches)].launch_ns
        lost = {pid: count * launch_ns / ns for pid, count in launched.items()}
        for who, deltas in counted.items():
            pid = who & 0xFFFFFFFF
            lost[pid] = lost.get(pid, 0.0) + deltas.get(_CALLS, 0) * self._price(self.names[who >> 32]).call_ns / ns
        return lost

    def _undisturbed(self, who: int, deltas: dict[int, int], factor: float) -> dict[int, float]:
        """Counts that a window would have had if its probes had not slowed the process down. The calls themselves seemed longer, too."""
        inside_ns, found = self._price(self.names[who >> 32]).inside_ns, dict[int, float]()
        for at, value in deltas.items():
            calls = deltas.get(_CALLS if at == _TOTAL else at + COUNT, 0) if _TOTAL <= at < _COUNTS and at != _BYTES else 0
            found[at] = max(0, value - calls * inside_ns) * factor
        return found

    def _alarm_within(self, seconds: float) -> bool:
        """Wait so long, or until a function must be detached: that is more urgent than a full window."""
        if self._alarms is None:
            time.sleep(max(0.0, seconds))
            return False
        until, poll = time.monotonic() + seconds, select.poll()
        poll.register(self._alarms.fd, select.POLLIN)
        if poll.poll(max(0, int(seconds * 1e3))):
            return True
        time.sleep(max(0.0, until - time.monotonic()))  # what is less than a millisecond
        return False

    def _attach_sampled(self, library: Library) -> list[int]:
        """Attach the sampled functions and launches of a library for a window."""
        descriptor, links = library.file.fileno(), []
        functions = [function for function in library.points.functions if function.call in library.sampled]
        if library.points.launches:
            links += self._linker.attach_entries(descriptor, [function.offset for function in library.points.launches])
        try:
            if functions:
                links += self._linker.attach(descriptor, {one.offset: self._cookie(one, library, True) for one in functions})
        except (OSError, HelperFailed):
            for link in links:
                os.close(link)
            raise
        return links

    def _launches(self) -> dict[int, int]:
        """The probe's launches by pid, of living processes."""
        assert self._tables is not None
        return read_launches(self._tables["launches"])

    def _add_launches(self, ns: int, launched: dict[int, int]) -> None:
        times, counted_ns, counts = self.counted
        self.counted = times + 1, counted_ns + ns, {pid: counts.get(pid, 0) + count for pid, count in launched.items()}

    def _sampled_calls(self, closed_ns: int) -> tuple[dict[int, dict[int, int]], dict[int, dict[int, int]]]:
        """Calls of the last window: (all by position of the record, the ones that had not returned). Keys are without `SAMPLED`."""
        assert self._tables is not None
        calls, inflight = self._tables["calls"], self._tables["inflight"]
        counted: dict[int, dict[int, int]] = {}
        records: dict[int, Record] = {}
        for i, who in enumerate(calls.key_list(calls.read())):
            if who >> 32 & SAMPLED:
                record = records[who] = RECORD.unpack_from(calls.values, i * RECORD.size)
                before = self._sampled_before.get(who) or (0,) * len(record)
                counted[unsampled(who)] = {
                    at: new - old for at, (new, old) in enumerate(zip(record, before, strict=True)) if new > old and at not in _MAXIMA
                }
        self._sampled_before = records
        missing: dict[int, dict[int, int]] = {}
        under_way = [(i, who) for i, who in enumerate(inflight.key_list(inflight.read())) if who >> 32 & SAMPLED]
        for i, who in under_way:
            start, _, size, pid, _ = ENTERED.unpack_from(inflight.values, i * ENTERED.size)
            for table in (counted, missing):
                deltas = table.setdefault(pid | unsampled(who) >> 32 << 32, {})
                for at, value in ((_CALLS, 1), (_TOTAL, max(0, closed_ns - start)), (_BYTES, size)):
                    deltas[at] = deltas.get(at, 0) + value
        inflight.delete(who for _, who in under_way)
        return counted, missing

    def _plan(self, counted: dict[int, dict[int, int]], slowed: dict[int, float], width_s: float, attached_s: float) -> None:
        """Plan the next window and its length; end the sampling of functions that no longer need it."""
        shares: dict[str, float] = {}  # call -> what it cost the process that made most calls
        for who, deltas in counted.items():
            call = self.names[who >> 32]
            share = deltas.get(_CALLS, 0) * self._price(call).call_ns / 1e9 / width_s
            shares[call] = max(shares.get(call, 0.0), share)
        self._end_quiet(shares)
        busy = max(slowed.values(), default=0.0)
        cost_s = min(attached_s, busy * attached_s) + FIXED_S
        samples = any(library.sampled for library in self._libraries.values())
        pause_s = max(SAMPLED_EVERY_S if samples else LAUNCHES_EVERY_S, cost_s / WINDOWS_SHARE)
        longest_s = min(LONGEST_S, 2 * self._width_s)  # the process may only have had no CPU
        self._width_s = min(longest_s, max(SHORTEST_S, WINDOW_COST_S / busy if busy else LONGEST_S))
        # At random, so that windows do not keep time with the steps.
        self._due_s = time.monotonic() + pause_s * random.uniform(0.5, 1.5)

    def _end_quiet(self, shares: dict[str, float]) -> None:
        """Attach functions again that have become cheap."""
        now = time.monotonic()
        for library in self._libraries.values():
            for call, hold in list(library.sampled.items()):
                hold.quiet = hold.quiet + 1 if shares.get(call, 0.0) < RETURN_SHARE and self._width_s == LONGEST_S else 0
                if hold.quiet >= 2 and now >= hold.until_s:
                    with contextlib.suppress(OSError, HelperFailed):  # the next window tries again
                        self._end_sampling(library, call)

    def _price(self, call: str) -> ProbeOverhead:
        functions = [function for library in self._libraries.values() for function in library.points.functions]
        return self._prices[any(function.call == call and function.stepped for function in functions)]

    def _attach(self, library: Library, functions: list[libcuda.Function]) -> list[ProbeBundle]:
        """Attach functions all the time: as one bundle, or with perf events as one each."""
        parts = [functions] if self._linker.way == "multi" else [[function] for function in functions]
        bundles: list[ProbeBundle] = []
        try:
            for part in parts if functions or not library.bundles else []:
                cookies = {function.offset: self._cookie(function, library) for function in part}
                bundles.append(ProbeBundle(part, self._linker.attach(library.file.fileno(), cookies)))
        except (OSError, HelperFailed):
            for bundle in bundles:
                self._close(bundle.links)
            raise
        return bundles

    def _cookie(self, function: libcuda.Function, library: Library, sampled: bool = False) -> int:
        if function.call not in self.arguments:
            self.arguments[function.call] = function.bytes_argument
            self.names.append(function.call)
        what = self.names.index(function.call) | function.bytes_argument << 16 | library.slot << 20
        return what | SAMPLED if sampled else what | self._prices[function.stepped].call_ns << 32

    def _close(self, links: list[int]) -> list[threading.Thread]:
        """Detach: a function loses its probe at once, but the call takes long, so threads share the work. They are returned."""
        threads = []
        for first in range(min(_CLOSERS, len(links))):
            mine = links[first::_CLOSERS]
            thread = threading.Thread(target=_close_all, args=(mine,), name="gputop-detach", daemon=True)
            try:
                thread.start()
                threads.append(thread)
            except RuntimeError:  # no more threads
                _close_all(mine)
        return threads


def _close_all(links: list[int]) -> None:
    for link in links:
        os.close(link)


def unsampled(who: int) -> int:
    """The key of a call in the maps without `SAMPLED`."""
    return who & ~(SAMPLED << 32)


def read_launches(table: Map) -> dict[int, int]:
    """Pid -> launches of living processes; entries of ended ones are deleted."""
    found = table.read()
    counts = dict(zip(table.key_list(found), table.words(found).tolist(), strict=True))
    ended = {pid for pid in counts if not os.path.exists(f"/proc/{pid}")}
    table.delete(ended)
    return {pid: count for pid, count in counts.items() if pid not in ended}
