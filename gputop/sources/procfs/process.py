"""One process: its kept files, its last readings, and how it is read.

There are thousands of processes, so of a text that is only compared with the next one the hash is kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from gputop.model.frame import ProcInfo, ProcSample, ThreadInfo, ThreadSample
from gputop.model.syscalls import is_fuse, syscall_numbers
from gputop.sources import parse
from gputop.sources.files import DescriptorBudget, KeptFile, read_once
from gputop.sources.procfs.ends import POLLS, READS, WRITES, SocketUse
from gputop.sources.procfs.holders import Holders
from gputop.sources.procfs.identity import IdentityReader, Users
from gputop.sources.procfs.locks import CALLS, OpenFiles
from gputop.sources.procfs.semaphores import Sleep, sleep_of
from gputop.sources.procfs.threads import Threads, Tick
from gputop.sources.waits import FUTEX, RUNNING, SEMOPS, UNKNOWN, Wait, Waits

COLD_SHARE = 0.5  # of all descriptors, most that processes which are read once a second may keep
LOOKS_PER_S = 5  # readings of a hot process's state, waits, memory and switches; its CPU time and run delay are read in every tick
IO_PER_S = 1  # readings of a hot process's I/O
MEMORY_S = 1.5  # s between two readings of a hot process's anonymous memory, 8 us each (measured); twice in a stretch of `forecast.trend`
RESTS_AFTER, RESTS_BELOW = 3, 0.001  # readings in a row with less of a CPU used, after which a process rests
RESTS_S = 3  # s between two readings of a process that rests: of hundreds on a large machine most do nothing all day
LONG_AFTER, LONG_RESTS_S = 5, 9  # readings in a row with less, after which there are so many seconds between two, a multiple of `RESTS_S`
LONGEST_AFTER, LONGEST_RESTS_S = 8, 27  # the same again, a multiple of `LONG_RESTS_S`: whoever wakes up is seen in /proc/stat
_LONG_S = RESTS_AFTER + (LONG_AFTER - RESTS_AFTER) * RESTS_S  # s until a process that only rests is read so seldom
_LONGEST_S = _LONG_S + (LONGEST_AFTER - LONG_AFTER) * LONG_RESTS_S  # the same until it is read every `LONGEST_RESTS_S`
SLIGHT_NS = 1_000_000  # ns on a CPU, in which a process copies a few MB at most: one that rests has its I/O read after more (guess)
SERVES_AFTER = 10  # readings in which it was met at serving, after which a process serves (guess)
MOST_READS = 4  # descriptors followed at a look that threads read from (guess)
MOST_SERVED = 128  # threads of one that serves; of more it is not known
_APART = frozenset((RUNNING, *syscall_numbers("nanosleep", "clock_nanosleep")))
_SLEEPS = ("S", "I")  # states; a kernel thread idles
_NEVER_RESTS = 1 << 40  # readings
_NEVER = -(1 << 40)  # tick number before the first reading
_NO_NEWS: tuple[list[ThreadInfo], str] = ([], "")
_UNREAD = parse.Stat(
    comm=b"", state="", ppid=0, kthread=False, minflt=0, majflt=0, utime=0, stime=0, children=0, num_threads=0, start_ticks=0, rss=0,
    stack=b"", processor=0, blkio_ticks=0,
)  # fmt: skip


class Wire(Struct, frozen=True):
    """What the TCP connections of a rank or a feeder have done since it was first read: counters of connections that are closed since stay
    in."""

    busy_ns: int = 0  # time in which the busiest connection had data on the wire, summed over readings: a lower bound for all together
    sent_bytes: int = 0  # that peers have acknowledged
    received_bytes: int = 0
    retrans: int = 0  # segments that were sent again
    rtt_us: int | None = None  # smoothed round trip of the connection that was busiest
    interface: str = ""  # that it goes out by: ``eth0``; its own address if no interface is known by that
    arriving_ns: int = 0  # time in which data kept arriving at one of them, or a server's question to another host was open
    own: str = ""  # its own address and port: ``10.0.0.1:29500``
    peer: str = ""  # those of the other end


class Process:
    """A process that is read. Its methods raise ProcessLookupError once it is gone, or its pid belongs to another process.

    While its schedstat stays the same, its main thread has neither left nor got a CPU. So its switches and the system call it sleeps
    in are the same too, and are not read again.
    """

    __slots__ = (
        "_anon_bytes",
        "_files",
        "_holders",
        "_io",
        "_io_bytes",
        "_io_stale",
        "_lock_tid",
        "_locked_by",
        "_memory_due",
        "_news",
        "_number",
        "_ran",
        "_sched",
        "_sched_data",
        "_sched_numbers",
        "_semaphore",
        "_served",
        "_sockets",
        "_stat",
        "_stat_seen",
        "_status",
        "_switches",
        "_switches_due",
        "_text",
        "_threads",
        "_total_ns",
        "_wait",
        "_waits",
        "_whole_ns",
        "folder",
        "identity",
        "pid",
        "rested",
        "sample",
        "shared_bytes",
        "since",
        "slot",
        "stat",
        "used_ns",
        "wire",
    )  # fmt: skip

    def __init__(self, proc: str, pid: int, slot: int, pool: DescriptorBudget, users: Users) -> None:
        folder = self.folder = f"{proc}{pid}/"
        self.pid = pid
        self.slot = slot
        self._number = _NEVER
        self.since = 0  # ticks between the last two readings
        self.identity = IdentityReader(folder, pid, users)
        self.stat = _UNREAD
        self.sample: ProcSample | None = None
        self._stat = KeptFile(folder, "stat", 1024, pool, COLD_SHARE)
        self._sched = KeptFile(folder, "schedstat", 128, pool, COLD_SHARE)
        self._status = KeptFile(folder, "status", 16_384, pool, COLD_SHARE)
        self._io = KeptFile(folder, "io", 512, pool, COLD_SHARE)
        self._stat_seen, self._sched_data = hash(b""), b""
        self._ran = self._io_stale = True
        self.rested = 0  # readings in a row in which it hardly ran
        self._total_ns: tuple[bool, int | None] = (False, None)  # whether it has several threads, and its time on CPUs so far
        self.used_ns = 0  # ns on CPUs between the last two readings; 0 after the first
        self._whole_ns = 0  # its main thread's time on CPUs when switches and I/O were read
        self._switches_due = 2
        self._text = b""  # of its status, if that was read in this reading and the process is hot
        self._sched_numbers: tuple[int | None, int | None, int | None] = (None, None, None)
        self._switches: tuple[int | None, int | None] = (None, None)
        self._io_bytes: tuple[int | None, int | None, int | None] = (None, None, None)
        self._anon_bytes: int | None = None
        self._memory_due = 0
        self._sockets: SocketUse | None = None  # while it is hot, once it was asked for
        self.shared_bytes: int | None = None  # see `gputop.sources.procfs.shared`
        self.wire: Wire | None = None  # see `gputop.sources.procfs.wire`
        self._news = _NO_NEWS
        self._threads: Threads | None = None
        self._waits: Waits | None = None
        self._wait = UNKNOWN
        self._files: OpenFiles | None = None
        self._holders: Holders | None = None
        self._locked_by: int | None = None
        self._lock_tid: int | None = None
        self._semaphore: Sleep | None = None  # at the last look
        self._served = 0  # readings in which it served, since its main thread last did anything else

    @property
    def info(self) -> ProcInfo:
        return self.identity.info

    @property
    def reads(self) -> int | None:
        """The descriptor that its main thread read from at the last look."""
        return self._wait[1] if self._wait[0] in READS else None

    @property
    def all_reads(self) -> list[int]:
        """The descriptor that its main thread read from at the last look, else the descriptors that its other threads read from."""
        own = self.reads
        return [own] if own is not None else self._threads.reads[:MOST_READS] if self._threads is not None else []

    @property
    def writes(self) -> int | None:
        """The descriptor that its main thread waited to write to at the last look."""
        return self._wait[1] if self._wait[0] in WRITES and self.stat.state == "S" else None

    @property
    def all_writes(self) -> list[int]:
        """The descriptor that its main thread waited to write to at the last look, else those that its other threads waited to write to."""
        own = self.writes
        return [own] if own is not None else self._threads.writes[:MOST_READS] if self._threads is not None else []

    @property
    def shared_memory(self) -> list[str]:
        """The memory between processes in which its main thread waited at the last look: with its futex, see `Waits.shared_memory`, or
        guarded by System V semaphores."""
        if self._waits is None or self.stat.state != "S" or self._wait[0] is None:
            return []
        at_futex = self._waits.shared_memory if self._wait[0] == FUTEX else ""
        return [at_futex] if at_futex else self._waits.segments if self._wait[0] in SEMOPS else []

    @property
    def semaphore_users(self) -> tuple[int, ...]:
        """Pids of the processes that use the System V semaphores at which its main thread slept at the last look."""
        return self._semaphore.users if self._semaphore is not None else ()

    @property
    def at_fuse(self) -> bool:
        """True if its main thread or another thread slept at the last look until a process of this host served a file."""
        return is_fuse(self._wait[2]) or (self._threads is not None and self._threads.at_fuse)

    @property
    def at_pipe(self) -> bool:
        """True if the main thread slept in the kernel's pipe code."""
        return "pipe_" in (self._wait[2] or "")

    @property
    def is_apart(self) -> bool:
        """True if it has one thread, which ran at the last look or slept in a call that no other process ends: nobody is at another end."""
        return self._wait[0] in _APART and (self._threads is None or not self._threads.infos)

    @property
    def polls(self) -> bool:
        """True if its main thread slept in a poll at the last look."""
        return self._wait[0] in POLLS

    def use_of_sockets(self, above: Iterable[int]) -> str:
        """Use of the process's sockets: see `SocketUse.read`; the reader is kept while the process is hot."""
        if self._sockets is None:
            self._sockets = SocketUse(self.folder.removesuffix(f"{self.pid}/"), self.pid)
        return self._sockets.read(above, self.reads)

    def find_polled(self) -> list[int]:
        """The descriptors that its main thread polled at the last look."""
        return self._waits.polled if self._waits is not None else []

    def ticks_since_read(self, tick: Tick) -> int:
        """Ticks that have passed since the last reading."""
        return tick.number - self._number

    def has_slept(self) -> bool:
        """True if it has one thread, which has not run since the last reading: what was read then still holds. Takes 1 us (measured)."""
        try:
            return self.stat.num_threads == 1 and self._sched_data != b"" and self._sched.read() == self._sched_data
        except ProcessLookupError:
            return False

    def has_woken(self, tick: Tick) -> bool:
        """True if it has used more of a CPU since the last reading than one that rests, runs another program, got threads, or has ended."""
        if self.has_slept():
            return False
        several, before_ns = self._total_ns
        with suppress(ProcessLookupError, ValueError, IndexError):
            stat = parse.stat(self._stat.read())
            total_ns = _cpu_ns(stat, parse.schedstat(self._sched.read())[0])
            is_same = stat.start_ticks == self.stat.start_ticks and not _runs_another(self.stat, stat) and (stat.num_threads > 1) == several
            if is_same and total_ns is not None and before_ns is not None:
                return not _is_little(total_ns - before_ns, self.ticks_since_read(tick), tick)
        return True

    def address_space_bytes(self) -> int:
        """The size of its address space now: what was read last may be half a minute old."""
        pages = [] if self.has_slept() else (read_once(self.folder + "statm", 64) or b"").split()
        return int(pages[0]) * parse.PAGE_BYTES if pages else self.stat.vsize

    def read(self, tick: Tick, hot: bool, full: bool, near: bool = False, threaded: bool = False) -> bool:
        """Take a sample, per thread if ``hot`` or ``threaded``; True if the process runs another program since the last one.

        The main thread's wait is read if the process is ``hot`` or ``near`` (a child of a hot process, or a process that wakes one).

        On-CPU time and run delay are read every time. The rest of a hot process is read `LOOKS_PER_S` times a second. A process of one
        thread that did not run has the same counters as before: they are read only if ``full``. One that rests
        has its switches and I/O read after each `SLIGHT_NS` on a CPU.
        """
        t_ns = time.monotonic_ns()
        before = self.stat
        self.since, self._number = tick.number - self._number, tick.number
        self._text = b""
        look = not hot or self._threads is None or tick.looks_at(self.slot, self.since, LOOKS_PER_S)
        self._read_sched()
        is_whole = hot or near or not self._ran_slightly()
        if is_whole:
            self._whole_ns = self._sched_numbers[0] or 0
        if look and is_whole:
            self._read_switches(hot)
        if look and (self._ran or before.num_threads != 1 or (full and not before.kthread)):
            self._read_stat()
        self._account(tick)
        stat = self.stat
        threads: list[ThreadSample] = []
        if look:
            self._look(tick, hot, near, before, is_whole)
        if hot or (threaded and stat.num_threads > 1):
            threads = self._read_threads(tick, stat, look, locked=not hot)
        elif self._threads is not None:
            self._threads.close()
            self._threads = None
        self.sample = self._sample(tick, t_ns, stat, threads, self._wait if hot or near else UNKNOWN)
        return _runs_another(before, stat)

    def _read_sched(self) -> None:
        data = self._sched.read()
        if data != self._sched_data or not data:
            self._ran, self._switches_due = True, 2
            self._sched_data = data
            self._sched_numbers = parse.schedstat(data) if data else self._sched_numbers

    def _ran_slightly(self) -> bool:
        """True if a process of one thread rests, and has hardly run since all of it was read."""
        ns = self._sched_numbers[0]
        return self.rested >= RESTS_AFTER and self.stat.num_threads == 1 and ns is not None and ns - self._whole_ns < SLIGHT_NS

    def _read_switches(self, hot: bool) -> None:
        """Read the switches in status, after schedstat: if it runs in between, the next schedstat differs and status is read again.

        Status is read twice after a change: it shows a moment later than schedstat that the thread left the CPU.
        """
        if self._switches_due:
            self._switches_due -= 1
            status = self._status.read()
            self._switches = parse.switches(status) if status else (None, None)
            self._text = status if hot else b""

    def _account(self, tick: Tick) -> None:
        """Take the CPU time since the last reading: the schedstat of a process has its main thread alone, its stat is in clock ticks."""
        several, stat = self.stat.num_threads > 1, self.stat
        total_ns = _cpu_ns(stat, self._sched_numbers[0])
        before, self._total_ns = self._total_ns, (several, total_ns)
        known = total_ns is not None and before[1] is not None and before[0] == several
        self.used_ns = max(0, total_ns - before[1]) if known else 0  # type: ignore[operator]
        at_rest = known and _is_little(self.used_ns, self.since, tick)
        self.rested = self.rested + 1 if at_rest else 0 if self.sample is not None else self._rested_all_its_life(tick)

    def _rested_all_its_life(self, tick: Tick) -> int:
        """Readings in a row at rest that a process's first one stands for, if the process sleeps and has hardly run in its life."""
        age_ns, ran_ns = (tick.boot_ticks - self.stat.start_ticks) * parse.NS_PER_CLOCK_TICK, self._total_ns[1]
        if self.stat.state not in _SLEEPS or ran_ns is None or ran_ns >= RESTS_BELOW * age_ns or age_ns < _LONG_S * 1e9:
            return 0
        return LONG_AFTER if age_ns < _LONGEST_S * 1e9 else LONGEST_AFTER

    def _look(self, tick: Tick, hot: bool, near: bool, before: parse.Stat, is_whole: bool) -> None:
        ran, self._ran = self._ran, False
        self._io_stale |= ran or self.stat.num_threads > 1
        if self._io_stale and is_whole and (not hot or tick.looks_at(self.slot, self.since, IO_PER_S)):
            self._io_stale = False
            self._read_io()
        if hot and tick.number >= self._memory_due:
            self._memory_due = tick.number + int(MEMORY_S * tick.per_second)
            self._anon_bytes = parse.anon_bytes(self._text or self._status.read())
        if hot or near:
            self._read_wait(ran or self.stat.state != before.state, self.stat.state)
        self._locked_by = self._read_locks(tick) if hot and self._wait[0] in CALLS else None
        self._lock_tid = self._semaphore = None
        if (hot or near) and FUTEX is not None and self._wait[0] == FUTEX and self.stat.state == "S":
            self._locked_by, self._lock_tid = self._read_holder(tick)
        elif (hot or near) and self._waits is not None and (place := self._waits.semaphore) and self._wait[0] in SEMOPS:
            self._semaphore = found = sleep_of(self.folder, self.pid, *place)
            if found is not None and found.takes and found.holder:
                self._locked_by = self._lock_tid = found.holder

    def _read_stat(self) -> None:
        data = self._stat.read()
        seen = hash(data)
        if seen != self._stat_seen:
            stat = parse.stat(data)
            if self.stat is not _UNREAD and stat.start_ticks != self.stat.start_ticks:
                raise ProcessLookupError(self.pid)
            self._stat_seen, self.stat = seen, stat
        elif not data:
            raise ValueError(self._stat.reason)

    def _read_io(self) -> None:
        data = self._io.read()
        self._io_bytes = parse.io(data) if data else (None, None, None)

    def _read_wait(self, changed: bool, state: str) -> None:
        if self._waits is None:
            self._waits, changed = Waits(self.folder, self._stat.pool), True
        if state == "R":
            self._wait = (None if self._waits.unreadable() else RUNNING, None, "")
        elif changed or self._wait[0] == RUNNING:
            self._wait = self._waits.read(state)

    def _read_locks(self, tick: Tick) -> int | None:
        if self._files is None:
            self._files = OpenFiles(self.folder, self.pid)
        return self._files.locked_by(tick.locks.held(tick.t_ns), tick.t_ns, self.stat.ppid)

    def _read_holder(self, tick: Tick) -> tuple[int | None, int | None]:
        """(pid of another process that holds the mutex in which its main thread sleeps, the thread that holds it), each None if unknown."""
        named = self._waits.lock_holder if self._waits is not None else 0
        if self._waits is None or not named:
            return None, None
        if self._holders is None:
            self._holders = Holders(self.folder.removesuffix(f"{self.pid}/"), self.pid)
        is_inner = self.info.ns_pid is not None
        pid, tid = self._holders.find(named, self._waits.shared_memory, is_inner, tick.inner_pids)
        return pid if pid not in (0, self.pid) else None, tid if tid not in (0, self.pid) else None

    def _read_threads(self, tick: Tick, stat: parse.Stat, look: bool, locked: bool) -> list[ThreadSample]:
        """Samples of the threads. ``locked``: the main thread waits for them, whatever it sleeps in."""
        if self._threads is None:
            self._threads = Threads(self.folder, self.pid, self._stat.pool)
        locked |= FUTEX is not None and self._wait[0] == FUTEX
        several = stat.num_threads > 1 or self._threads.infos
        threads = self._threads.read(tick, stat.num_threads, look, self.since, locked) if several else []
        oncpu, delay, slices = self._sched_numbers
        if oncpu is not None and delay is not None and slices is not None:
            vol, invol = self._switches
            main = ThreadSample(tid=self.pid, oncpu_ns=oncpu, run_delay_ns=delay, timeslices=slices, state=stat.state, vol=vol, invol=invol)
            threads.insert(0, main)
        return threads

    def _sample(self, tick: Tick, t_ns: int, stat: parse.Stat, threads: list[ThreadSample], wait: Wait) -> ProcSample:
        ns = parse.NS_PER_CLOCK_TICK
        read_bytes, write_bytes, rchar_bytes = self._io_bytes
        call, argument, wchan = wait
        oncpu, delay, slices = self._sched_numbers
        vol, invol = self._switches
        may_know = stat.exit_code is not None and os.geteuid() in (0, self.info.uid)
        return ProcSample(
            pid=self.pid, start_ticks=stat.start_ticks, t_ns=t_ns, state=stat.state, utime_ns=stat.utime * ns, stime_ns=stat.stime * ns,
            children_ns=stat.children * ns, rss_bytes=stat.rss * parse.PAGE_BYTES, num_threads=stat.num_threads,
            oncpu_ns=oncpu, run_delay_ns=delay, timeslices=slices, vol=vol, invol=invol, minflt=stat.minflt, majflt=stat.majflt,
            blkio_delay_ns=blkio_delay_ns(stat, tick.boot_ticks) if tick.delays else None,
            read_bytes=read_bytes, write_bytes=write_bytes, rchar_bytes=rchar_bytes, processor=stat.processor,
            syscall=call, syscall_arg=argument, wchan=wchan, threads=threads, locked_by=self._locked_by, lock_tid=self._lock_tid,
            exit_code=stat.exit_code if may_know else None, unfollowed=self._threads.unfollowed if self._threads else 0,
            anon_bytes=self._anon_bytes, shared_bytes=self.shared_bytes,
            shared_futex=self._waits.shared_futex if self._waits is not None and (call == FUTEX or call in SEMOPS) else None,
            **({} if self.wire is None else to_fields(self.wire)),
        )  # fmt: skip

    def update_identity(self) -> bool:
        """Add the thread names and the reason for unreadable waits to its identity; True if they changed."""
        threads = self._threads.infos if self._threads else _NO_NEWS[0]
        reason = self._waits.unreadable() if self._waits else ""
        began = not self.info.serves and self._begins_to_serve(threads)
        if threads is self._news[0] and reason == self._news[1] and not began:
            return False
        self._news = (threads, reason)
        return self.identity.change(threads=threads, wait_unreadable=reason, serves=began or self.info.serves)

    def _begins_to_serve(self, threads: list[ThreadInfo]) -> bool:
        """True if the process has been seen serving for long enough. A Manager's main thread does nothing but wait, a second at a time."""
        if self._wait[0] not in (FUTEX, None, RUNNING):
            self._served = 0
        elif self._threads is not None and 1 < len(threads) <= MOST_SERVED and self._threads.serve:
            self._served += 1
        return self._served >= SERVES_AFTER

    def refresh(self, titled: bool) -> bool:
        """See `IdentityReader.refresh`."""
        return self.identity.refresh(self.stat, self._text or self._status.read(), titled)

    def retry(self) -> None:
        """Try refused files again: the process runs another program. One that sleeps since is read as if it had run."""
        self._ran = True
        for file in (self._stat, self._sched, self._status, self._io, *((self._waits,) if self._waits else ())):
            file.retry()

    def cool(self) -> None:
        """Close its threads and waits: it is no trainer or worker any more."""
        for part in (self._threads, self._waits):
            if part is not None:
                part.close()
        self._threads = self._waits = self._anon_bytes = self.shared_bytes = self._sockets = self._holders = self.wire = None
        self.rested = 0

    def close(self) -> None:
        self.cool()
        for file in (self._stat, self._sched, self._status, self._io):
            file.close()


def _cpu_ns(stat: parse.Stat, sched_ns: int | None) -> int | None:
    """The time on CPUs of all threads of a process: its schedstat has its main thread alone."""
    return (stat.utime + stat.stime) * parse.NS_PER_CLOCK_TICK if stat.num_threads > 1 else sched_ns


def _runs_another(before: parse.Stat, now: parse.Stat) -> bool:
    """True if a process runs another program, or has another name. A kworker's name changes with its work."""
    return now.stack != before.stack or (now.comm != before.comm and not before.kthread)


def _is_little(used_ns: int, ticks: int, tick: Tick) -> bool:
    """True if so much CPU time in so many ticks is that of a process at rest."""
    return used_ns < RESTS_BELOW * 1e9 * max(1.0, ticks / tick.per_second)


def to_fields(wire: Wire) -> dict[str, Any]:
    """The fields of `ProcSample` for what a rank's connections have done."""
    return {f"wire_{name}": value for name, value in zip(Wire.__struct_fields__, astuple(wire), strict=True)}


def rests_from(second: int) -> int:
    """Readings at rest from which on a process is not read in this second. All are due in the same seconds: recordings are smaller."""
    if second % RESTS_S:
        return RESTS_AFTER
    if second % LONG_RESTS_S:
        return LONG_AFTER
    return LONGEST_AFTER if second % LONGEST_RESTS_S else _NEVER_RESTS


def blkio_delay_ns(stat: parse.Stat, boot_ticks: int) -> int | None:
    """Field 42 of stat in ns; None if it is longer than the process's life, as some kernels leave garbage there."""
    alive = boot_ticks - stat.start_ticks + 2
    return stat.blkio_ticks * parse.NS_PER_CLOCK_TICK if 0 <= stat.blkio_ticks <= alive else None
