"""The threads of one trainer or worker.

Threads that ran lately are read whenever the process is. Threads that rest (64 of a pool of 80 do nothing all day) are read about once a
second, in rotation, and in key frames. A thread that a tick does not read is not in that tick's sample.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from operator import attrgetter

import msgspec
from msgspec import Struct

from gputop.model.frame import ThreadInfo, ThreadSample
from gputop.model.syscalls import is_fuse
from gputop.sources import parse
from gputop.sources.files import DescriptorBudget, KeptFile, read_once
from gputop.sources.procfs.ends import ACCEPTS, READS, WRITES
from gputop.sources.procfs.locks import Locks
from gputop.sources.waits import UNKNOWN, Waits

FOLLOWED = 64  # most threads of one process that are read each time; others that ran are read about once a second
NEVER_REST = 8  # threads of one process that are read each time in any case
LISTED = 1024  # most threads of one process
RESTING_READ = 64  # most resting threads in one reading: 640 a second at 100 ms
NAMED = 512  # threads of one process that its identity names
RESTING_AFTER = 50  # readings without running after which a thread rests
_STATE_EVERY = 5  # readings of a sleeping thread between two of its state
ASKED, ASKED_FEW = 16, 4  # most threads with waits that one look reads: if the main thread waits for a lock, and otherwise
DOZING_AFTER = 20  # readings without running after which a thread is read with the looks only: its waking shows a tick late
STATUSES = 64  # most status texts of threads read in one tick (9 us each, measured); beyond, state and switches are None


class Tick(Struct):
    """One tick as processes and threads see it. ``number`` counts ticks without gaps, so that a rotation leaves no process out."""

    number: int
    t_ns: int
    key: bool
    per_second: int  # ticks in about a second, at least 1
    locks: Locks
    boot_ticks: int = 0  # CLOCK_BOOTTIME in clock ticks, the unit of start times
    delays: bool = True  # whether the kernel accounts delays (kernel.task_delayacct)
    statuses: int = STATUSES  # status texts that may still be read
    inner_pids: Callable[[int], Iterable[int]] = lambda _: ()  # see `gputop.sources.procfs.holders.InnerPids`

    def passes(self, every: int, slot: int, since: int) -> bool:
        """True if something done every ``every`` ticks, spread over the slots, became due in the last ``since`` ticks."""
        return (self.number + slot) % every < since

    def looks_at(self, slot: int, since: int, per_s: int) -> bool:
        """True if something done ``per_s`` times a second, and in key frames, is due."""
        return self.key or self.passes(max(1, self.per_second // per_s), slot, since)


class Thread:
    """One thread. While its schedstat stays the same it has neither left nor got a CPU, so its switches are the same too."""

    __slots__ = (
        "_data", "_folder", "_pool", "_sched", "_stale", "_stat", "_status", "_wait", "_waits", "comm", "idle", "looks", "resting",
        "sample", "tid",
    )  # fmt: skip

    def __init__(self, folder: str, tid: int, pool: DescriptorBudget) -> None:
        base = self._folder = f"{folder}task/{tid}/"
        self._pool = pool
        self.tid = tid
        self.comm = ""
        self.looks = 0
        self.idle = 0
        self.resting = False
        self.sample: ThreadSample | None = None
        self._data = b""
        self._stale = False  # whether its numbers changed after the last look
        self._wait = UNKNOWN
        self._waits: Waits | None = None
        self._sched = KeptFile(base, "schedstat", 128, pool)
        self._stat = KeptFile(base, "stat", 1024, pool)
        self._status = KeptFile(base, "status", 16_384, pool)

    def read(self, tick: Tick, look: bool) -> ThreadSample | None:
        """Sample of the thread, with state and switches of the last ``look``; None if the kernel keeps no schedstat.

        Raises ProcessLookupError if it has ended.
        """
        sample = self.sample
        if sample is not None and self.idle >= DOZING_AFTER and not look:
            return sample
        data = self._sched.read()
        if data != self._data or sample is None:
            self.idle = 0
            return self._read_changed(data, tick, look or sample is None)
        self.idle += 1
        if not look:
            return sample
        if self._stale:
            return self._read_changed(data, tick, look)
        # If it was woken and waits for a CPU, only the state shows it: the kernel books run delay when the wait is over.
        if sample.state == "R" or sample.state is None or not (tick.number + self.tid) % _STATE_EVERY:
            return self._read_state(sample)
        return sample

    def _read_changed(self, data: bytes, tick: Tick, look: bool) -> ThreadSample | None:
        if not data:
            return None
        oncpu, delay, slices = parse.schedstat(data)
        before = self.sample
        state, vol, invol = (before.state, before.vol, before.invol) if before and not look else (None, None, None)
        self._stale = not look
        if look and tick.statuses > 0:
            tick.statuses -= 1
            status = self._status.read()
            state, (vol, invol) = parse.status_state(status), parse.switches(status)
        self._data = data
        syscall, argument, wchan = self._wait
        self.sample = ThreadSample(
            tid=self.tid, oncpu_ns=oncpu, run_delay_ns=delay, timeslices=slices, state=state, vol=vol, invol=invol,
            syscall=syscall, syscall_arg=argument, wchan=wchan,
        )  # fmt: skip
        return self.sample

    def _read_state(self, sample: ThreadSample) -> ThreadSample:
        state = parse.state(self._stat.read())
        if state != sample.state:
            sample = self.sample = msgspec.structs.replace(sample, state=state)
        return sample

    def read_wait(self, asked: bool) -> ThreadSample | None:
        """Sample of the thread, with its wait if that is ``asked``."""
        sample, wait = self.sample, UNKNOWN
        if sample is not None and asked:
            self._waits = self._waits or Waits(self._folder, self._pool)
            wait = self._waits.read(sample.state or "S")
        if sample is not None and wait != self._wait:
            self._wait = wait
            self.sample = msgspec.structs.replace(sample, syscall=wait[0], syscall_arg=wait[1], wchan=wait[2])
        return self.sample

    def close(self) -> None:
        if self._waits is not None:
            self._waits.close()
        self._sched.close()
        self._stat.close()
        self._status.close()


class Threads:
    """All threads of one process but the main thread, which is in the process's own sample."""

    __slots__ = (
        "_asked", "_counted", "_folder", "_followed", "_known", "_listed_ns", "_listings", "_lost", "_main", "_pool", "_readings",
        "_resting", "_woke", "infos", "unfollowed",
    )  # fmt: skip

    def __init__(self, folder: str, pid: int, pool: DescriptorBudget) -> None:
        self._folder = folder
        self._main = pid
        self._pool = pool
        self._known: dict[int, Thread] = {}
        self._followed: list[Thread] = []
        self._resting: list[Thread] = []
        self._listed_ns = -(10**10)
        self._listings = self._readings = self._counted = 0
        self._asked = 0  # threads with waits that this look may still read
        self._lost = False
        self._woke = False
        self.infos: list[ThreadInfo] = []
        self.unfollowed = 0  # threads that ran lately and are read with the resting threads, for want of room

    def read(self, tick: Tick, count: int, look: bool, since: int = 1, locked: bool = False) -> list[ThreadSample]:
        """Samples of the threads read in this tick, ``since`` ticks after the last reading.

        ``count``: threads by the process's stat; a change lists the threads again. Waits of working threads are read too, of more threads
        if the main thread is ``locked``.
        """
        self._readings += 1
        self._list_if_due(tick, count)
        if look:
            self._asked = ASKED if locked else ASKED_FEW
        due = self._due(tick, since)
        samples = [sample for thread in due if (sample := self._read(thread, tick, look)) is not None]
        if tick.key and len(due) < len(self._known):  # a key frame restates what it does not read
            known = {sample.tid for sample in samples}
            samples += [thread.sample for thread in self._resting if thread.sample is not None and thread.tid not in known]
        if self._lost or self._woke or (self._resting and not self._readings % RESTING_AFTER):
            self._sort()
        return samples

    @property
    def serve(self) -> bool:
        """True if one thread waits for connections, and another reads what a client sends over one."""
        met = [one.sample for one in self._known.values() if one.sample is not None and one.sample.wchan]
        local = {(one.wchan or "").startswith("inet_") for one in met if one.syscall in ACCEPTS}
        return any((not (one.wchan or "").startswith("unix_")) in local for one in met if one.syscall in READS)

    @property
    def reads(self) -> list[int]:
        """Descriptors at which threads that ran lately slept in a read at the last look."""
        return self._asleep_in(READS)

    @property
    def writes(self) -> list[int]:
        """Descriptors at which threads that ran lately slept in a write at the last look."""
        return self._asleep_in(WRITES)

    @property
    def at_fuse(self) -> bool:
        """True if a thread that ran lately slept at the last look until a process of this host served a file."""
        return any(is_fuse(one.wchan) for one in self._met())

    def _met(self) -> Iterator[ThreadSample]:
        """Samples of threads that ran lately."""
        return (one.sample for one in self._followed if one.idle < DOZING_AFTER and one.sample is not None)

    def _asleep_in(self, calls: Collection[int]) -> list[int]:
        found = {one.syscall_arg for one in self._met() if one.syscall in calls and one.state == "S"}
        return sorted(descriptor for descriptor in found if descriptor is not None)

    def _read(self, thread: Thread, tick: Tick, look: bool) -> ThreadSample | None:
        try:
            sample = thread.read(tick, look)
            if look and sample is not None and thread.idle < DOZING_AFTER:
                sample, self._asked = thread.read_wait(self._asked > 0), self._asked - 1
        except ProcessLookupError:
            self._lost = True
            self._known.pop(thread.tid, None)
            thread.close()
            return None
        except (ValueError, IndexError):
            return None
        self._woke |= thread.resting and not thread.idle and len(self._followed) < FOLLOWED
        return sample

    def _due(self, tick: Tick, since: int) -> list[Thread]:
        few = len(self._resting) <= RESTING_READ
        if not self._resting or (tick.key and few):
            return self._followed + self._resting
        parts = max(1, tick.per_second // since, -(-len(self._resting) // RESTING_READ))
        return self._followed + self._resting[self._readings % parts :: parts]

    def _list_if_due(self, tick: Tick, count: int) -> None:
        age = tick.t_ns - self._listed_ns
        changed = self._lost or count != self._counted
        if age >= 1_000_000_000 or (changed and age >= 200_000_000):
            self._listed_ns, self._counted = tick.t_ns, count
            self._listings += 1
            self._list()

    def _list(self) -> None:
        try:
            tids = {int(name) for name in os.listdir(self._folder + "task")[:LISTED]}
        except OSError:
            return
        tids.discard(self._main)
        for tid in self._known.keys() - tids:
            self._known.pop(tid).close()
        for tid in tids - self._known.keys():
            self._known[tid] = Thread(self._folder, tid, self._pool)
        self._name()
        self._sort()

    def _name(self) -> None:
        """Read names. Threads get theirs late: of young threads it is read again at once, of old ones now and then."""
        for thread in self._known.values():
            thread.looks += 1
            if thread.looks <= 3 or (thread.tid + self._listings) % 10 == 0:
                comm = read_once(f"{self._folder}task/{thread.tid}/comm", 64)
                thread.comm = thread.comm if comm is None else parse.text(comm.rstrip(b"\n"))
        infos = [ThreadInfo(thread.tid, thread.comm) for thread in self._known.values()][:NAMED]
        if infos != self.infos:
            self.infos = infos

    def _sort(self) -> None:
        """Divide into threads that ran lately and threads that rest."""
        self._lost = self._woke = False
        order = sorted(self._known.values(), key=attrgetter("idle"))
        awake = sum(1 for thread in order if thread.idle < RESTING_AFTER)
        cut = min(max(awake, NEVER_REST), FOLLOWED)
        self._followed, self._resting, self.unfollowed = order[:cut], order[cut:], max(0, awake - cut)
        for place, thread in enumerate(order):
            thread.resting = place >= cut

    def close(self) -> None:
        for thread in self._known.values():
            thread.close()
        self._known.clear()
        self._followed, self._resting = [], []
