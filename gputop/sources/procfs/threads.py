"""The threads of one trainer or worker.

Those that ran lately are read whenever the process is; those that rest (64 of a pool of 80 do nothing all day) about once a
second, in rotation, and in key frames. A thread that was not read in a tick is left out of that tick's sample.
"""

from __future__ import annotations

import os

import msgspec

from gputop.model.frame import ThreadInfo, ThreadSample
from gputop.sources import parse
from gputop.sources.files import Descriptors, KeptFile, read_once
from gputop.sources.procfs.tick import Tick
from gputop.sources.procfs.waits import UNKNOWN, Waits

FOLLOWED = 64
"""Threads of one process that are read each time; what ran beyond them is read about once a second."""
NEVER_REST = 8
"""So few are read each time, resting or not."""
LISTED = 1024
"""Threads of one process that are known at all."""
RESTING_READ = 64  # threads that rest which one reading comes to: with 100 ms between two, 640 a second
NAMED = 512
"""Threads of one process whose names are told."""
RESTING_AFTER = 50
"""Readings without running after which a thread is taken to rest."""
_STATE_EVERY = 5
ASKED, ASKED_FEW = 16, 4
"""Threads of one process that are asked what they wait in at a look: while its main thread waits for a lock, and otherwise. A main
thread that keeps time with the looks may never be met at the lock."""
DOZING_AFTER = 20
"""Readings without running after which a thread is read with the looks only; it wakes for us a tick late, nothing is lost."""


class Thread:
    """One thread. While its schedstat stays the same it has not left or got a CPU, so its switches are the same too."""

    __slots__ = (
        "_data", "_folder", "_pool", "_sched", "_stale", "_stat", "_status", "_wait", "_waits", "comm", "idle", "looks", "resting",
        "sample", "tid",
    )  # fmt: skip

    def __init__(self, folder: str, tid: int, pool: Descriptors) -> None:
        base = self._folder = f"{folder}task/{tid}/"
        self._pool = pool
        self.tid = tid
        self.comm = ""
        self.looks = 0
        self.idle = 0
        self.resting = False
        self.sample: ThreadSample | None = None
        self._data = b""
        self._stale = False
        """Its numbers changed after the last look."""
        self._wait = UNKNOWN
        self._waits: Waits | None = None
        self._sched = KeptFile(base, "schedstat", 128, pool)
        self._stat = KeptFile(base, "stat", 1024, pool)
        self._status = KeptFile(base, "status", 16_384, pool)

    def read(self, tick: Tick, look: bool) -> ThreadSample | None:
        """Its sample, with state and switches as of the last ``look``; None where the kernel keeps no schedstat.

        Raises ProcessLookupError when it has ended.
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
        # It may have been woken and wait for a CPU: run delay is booked when the wait is over, only the state tells before.
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
        self.sample = ThreadSample(self.tid, oncpu, delay, slices, state, vol, invol, *self._wait)
        return self.sample

    def _read_state(self, sample: ThreadSample) -> ThreadSample:
        state = parse.state(self._stat.read())
        if state != sample.state:
            counts = (sample.oncpu_ns, sample.run_delay_ns, sample.timeslices)
            sample = self.sample = ThreadSample(self.tid, *counts, state, sample.vol, sample.invol, *self._wait)
        return sample

    def ask(self, asked: bool) -> ThreadSample | None:
        """Its sample with what it waits in, or without where that is not ``asked`` any more."""
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
    """All threads of one process but its main one, which is the process's own sample."""

    __slots__ = (
        "_asked", "_counted", "_folder", "_followed", "_known", "_listed_ns", "_listings", "_lost", "_main", "_pool", "_readings",
        "_resting", "_woke", "infos", "unfollowed",
    )  # fmt: skip

    def __init__(self, folder: str, pid: int, pool: Descriptors) -> None:
        self._folder = folder
        self._main = pid
        self._pool = pool
        self._known: dict[int, Thread] = {}
        self._followed: list[Thread] = []
        self._resting: list[Thread] = []
        self._listed_ns = -(10**10)
        self._listings = self._readings = self._counted = 0
        self._asked = 0
        """How many may still be asked in this look."""
        self._lost = False
        self._woke = False
        self.infos: list[ThreadInfo] = []
        self.unfollowed = 0
        """Threads that ran of late and are read with those that rest."""

    def read(self, tick: Tick, count: int, look: bool, since: int = 1, locked: bool = False) -> list[ThreadSample]:
        """Samples of those read in this tick, ``since`` ticks after the last reading. ``count`` is what stat says: it tells when to list
        them again.

        Those that work are asked what they wait in, more of them where the main thread is ``locked``.
        """
        self._readings += 1
        self._list_if_due(tick, count)
        if look:
            self._asked = ASKED if locked else ASKED_FEW
        due = self._due(tick, since)
        samples = [sample for thread in due if (sample := self._read(thread, tick, look)) is not None]
        if tick.key and len(due) < len(self._known):  # a key frame restates those that it does not read
            told = {sample.tid for sample in samples}
            samples += [thread.sample for thread in self._resting if thread.sample is not None and thread.tid not in told]
        if self._lost or self._woke or (self._resting and not self._readings % RESTING_AFTER):
            self._sort()
        return samples

    def _read(self, thread: Thread, tick: Tick, look: bool) -> ThreadSample | None:
        try:
            sample = thread.read(tick, look)
            if look and sample is not None and thread.idle < DOZING_AFTER:
                sample, self._asked = thread.ask(self._asked > 0), self._asked - 1
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
        """Threads get their names late: look again at the young, and now and then at the old."""
        for thread in self._known.values():
            thread.looks += 1
            if thread.looks <= 3 or (thread.tid + self._listings) % 10 == 0:
                comm = read_once(f"{self._folder}task/{thread.tid}/comm", 64)
                thread.comm = thread.comm if comm is None else parse.text(comm.rstrip(b"\n"))
        infos = [ThreadInfo(thread.tid, thread.comm) for thread in self._known.values()][:NAMED]
        if infos != self.infos:
            self.infos = infos

    def _sort(self) -> None:
        """Those that ran lately first."""
        self._lost = self._woke = False
        order = sorted(self._known.values(), key=_idle)
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


def _idle(thread: Thread) -> int:
    return thread.idle
