"""The CUDA probe: finds the trainers' libcuda, attaches uprobes to it, reads what they counted (probes/cuda.c).

Finding libraries and attaching takes tens of milliseconds, so a thread does it; the beat only reads maps.
"""

from __future__ import annotations

import errno
import os
import queue
import struct
import threading
import time
from collections import deque
from io import FileIO

from gputop.model.frame import CudaCall, LaunchRate, ThreadCalls
from gputop.model.histogram import COUNT, FIRST
from gputop.sources import elf
from gputop.sources.ebpf import libcuda
from gputop.sources.ebpf.budget import ENTERED, RECORD, SAMPLED, Library, ProbeBudget, unsampled
from gputop.sources.ebpf.helper import HelperFailed
from gputop.sources.ebpf.maps import Map
from gputop.sources.ebpf.sched import PAIRS_EVERY, Drain, epoch_max

_END_S = 5.0  # s to wait for the thread to end
_OWN = struct.Struct("<QQII")  # value of the map thread_calls
COUNTS = 5  # counts that are averaged
_LONGEST_PAUSE = 16  # rounds between two looks at a process: 1, 2, 4 … up to this
LOOK_S = 0.2  # s of CPU time that looks may take in a second; a look that takes more is paid for by the next rounds
MOST, MOST_OF_ONE = 64, 16  # libraries probed at a time, in all and of one user's processes: a stranger may map any number

Inode = tuple[int, int]


class Attacher:
    """Finds the libcuda of the processes it is given and has it probed, once per inode. A thread of its own does the work."""

    def __init__(self, budget: ProbeBudget, root: str = "/") -> None:
        self.budget = budget
        self.libraries: dict[Inode, Library] = {}
        self.failures: dict[str, str] = {}  # library -> why nothing is attached there, of the libraries that are mapped now
        self._refused: dict[tuple[int, ...], str] = {}  # `elf.facts` of a file -> why it has no probe points
        self._used: dict[int, set[Inode]] = {}  # pid -> which of ``libraries`` it maps
        self._failed: dict[int, dict[str, str]] = {}  # pid -> its part of ``failures``
        self._root = root
        self._asked: queue.SimpleQueue[tuple[int, frozenset[int], frozenset[int]] | None] = queue.SimpleQueue()
        self._pids: frozenset[int] = frozenset()
        self._on_gpu: frozenset[int] = frozenset()
        self._settled: dict[int, int] = {}  # pid of a process with all libraries probed -> KiB of code that it mapped then
        self._pauses: dict[int, tuple[int, int]] = {}  # pid -> (round of its next look, rounds until the look after that)
        self._looks = self._round = 0  # rounds asked for, and the round under way
        self._paid, self._left_s = 0, 0.0
        """The round up to which the budget for looks was granted, and what is left of it; below 0 after a long look."""
        self._thread: threading.Thread | None = None
        """Started with the first look: a thread from before root was left has not the capabilities that were kept."""

    def look(self, pids: frozenset[int], on_gpu: frozenset[int] = frozenset()) -> None:
        """Have these processes looked at, about once a second; returns at once. ``on_gpu``: those with a context on a GPU.

        The thread is not woken if there is nothing to do: it would take the GIL from the beat.
        """
        self._looks += 1
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="gputop-uprobes", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads: the next look tries again
                return
            self._thread = thread
        if self._asked.empty() and self._is_due(pids, on_gpu):
            self._asked.put((self._looks, pids, on_gpu))

    def _is_due(self, pids: frozenset[int], on_gpu: frozenset[int]) -> bool:
        """True if a process is to be looked at."""
        if (pids, on_gpu) != (self._pids, self._on_gpu):
            return True
        pauses = self._pauses
        return any(pid not in pauses or pauses[pid][0] <= self._looks for pid in pids)

    def remedy(self, why: str) -> str:
        """The remedy for a failure to attach."""
        return "gputop --sudo" if why in (os.strerror(1), os.strerror(13)) else "gputop doctor"

    def close(self) -> None:
        """Stop and detach."""
        self._asked.put(None)
        if self._thread is not None:
            self._thread.join(_END_S)
        self.libraries.clear()
        self.budget.close()

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            self._round, pids, on_gpu = asked
            for table in (self._settled, self._used, self._failed):
                for pid in table.keys() - pids:
                    del table[pid]
            # A process that has a context now has loaded libcuda.
            self._pauses = {pid: self._pauses[pid] for pid in self._pauses.keys() & pids - (on_gpu - self._on_gpu)}
            self._pids, self._on_gpu = pids, on_gpu
            self._detach_changed()
            self._look_at_all(pids)

    def _look_at_all(self, pids: frozenset[int]) -> None:
        """Look at the processes, longest due first, as far as `LOOK_S` goes."""
        self._left_s = min(LOOK_S, self._left_s + LOOK_S * (self._round - self._paid))
        self._paid = self._round
        for pid in sorted(pids, key=lambda pid: (self._pauses.get(pid, (0, 1))[0], pid)):
            if self._left_s <= 0:
                break
            began = time.thread_time()
            self._look_at(pid)
            self._left_s -= time.thread_time() - began
        self.failures = {name: why for failed in self._failed.values() for name, why in failed.items()}

    def _look_at(self, pid: int) -> None:
        """Find a process's libcuda, if a look is due and it has mapped more code since: a library may open another libcuda at any time."""
        due, pause = self._pauses.get(pid, (0, 1))
        if self._round < due:
            return
        self._pauses[pid] = self._round + pause, min(2 * pause, _LONGEST_PAUSE)
        try:
            code_kib = libcuda.mapped_code_kib(pid, self._root)
            if self._settled.get(pid) == code_kib:
                return
            found = libcuda.find(pid, self._root)
        except OSError:
            return
        self._used[pid], failed = set(), dict[str, str]()
        for one in found:
            if why := self._attach(pid, one):
                failed[one.name] = why
        self._failed[pid] = failed
        if not failed:
            self._settled[pid] = code_kib

    def _attach(self, pid: int, one: elf.Mapping) -> str:
        """Probe the library of a mapping of ``pid``; returns why that fails, empty if it is probed."""
        try:
            file = libcuda.opened(pid, one, self._root)
        except OSError as error:
            return error.strerror or str(error)
        facts = elf.facts(file)
        inode = facts[:2]
        try:
            if inode not in self.libraries:
                if why := self._refused.get(facts) or self._no_room(owner := _owner(pid, self._root)):
                    return why
                self.libraries[inode] = self._probe(one.name, owner, file, facts)
            self._used[pid].add(inode)
            return ""
        except libcuda.NoFunctions as error:
            if len(self._refused) >= MOST:
                self._refused.clear()
            self._refused[facts] = str(error)
            return str(error)
        except (OSError, HelperFailed) as error:
            return getattr(error, "strerror", None) or str(error)
        finally:
            if inode not in self.libraries or self.libraries[inode].file is not file:
                file.close()

    def _probe(self, name: str, owner: int, file: FileIO, facts: tuple[int, ...]) -> Library:
        library = Library(name=name, owner=owner, file=file, facts=facts, points=libcuda.points(file))
        self.budget.add(library)
        if elf.facts(file) != facts:
            self.budget.remove(library)
            raise OSError(errno.EAGAIN, "it was changed while it was read")
        return library

    def _no_room(self, owner: int) -> str:
        """Why no further library may be probed, empty if one may. Libraries that no process maps any more are detached."""
        if not self._is_full(owner):
            return ""
        for inode in self.libraries.keys() - set().union(*self._used.values()):
            self._detach(inode)
        return f"the limit of probed libraries is reached ({MOST_OF_ONE} of one user, {MOST} in all)" if self._is_full(owner) else ""

    def _is_full(self, owner: int) -> bool:
        return len(self.libraries) >= MOST or sum(one.owner == owner for one in self.libraries.values()) >= MOST_OF_ONE

    def _detach_changed(self) -> None:
        """Detach libraries that were written into since; the next look at their processes reads them again."""
        for inode, one in list(self.libraries.items()):
            if elf.facts(one.file) != one.facts:
                self._detach(inode)
                for pid in [pid for pid, used in self._used.items() if inode in used]:
                    self._settled.pop(pid, None)
                    self._pauses.pop(pid, None)

    def _detach(self, inode: Inode) -> None:
        self.budget.remove(self.libraries.pop(inode))


def _owner(pid: int, root: str) -> int:
    return os.stat(os.path.join(root, "proc", str(pid))).st_uid


class CudaReader:
    """Turns the maps of one loaded cuda.c into samples of what changed."""

    def __init__(self, maps: dict[str, Map], budget: ProbeBudget) -> None:
        self._calls, self._inflight, self._own = maps["calls"], maps["inflight"], maps["thread_calls"]
        self._own_counts: dict[int, int] = {}  # (tid | call << 32) -> count sent last
        self._budget = budget
        self._counts: dict[int, int] = {}  # (pid | call << 32) -> count sent last
        self._counts_seen = 0  # counts of launches in ``_rates``
        self._launched: deque[tuple[int, dict[int, int]]] = deque([(0, {})], COUNTS + 1)
        """(ns of counting in all, pid -> launches in all) after each of the last counts."""
        self._rates: list[LaunchRate] = []

    def read(self, drain: Drain) -> list[CudaCall]:
        """Calls that returned since the last drain or are under way; in a key frame all calls."""
        if not self._budget.names:
            return []
        under_way, count = self._read_inflight(drain.now), self._calls.read()
        keys, calls = self._calls.key_list(count), []
        counts = self._calls.words(count)[:: RECORD.size // 8].tolist()
        places: dict[int, list[int]] = {}
        for i, who in enumerate(keys):
            if unsampled(who) >> 32 < len(self._budget.names):  # else of a calibration
                places.setdefault(unsampled(who), []).append(i)
        for who, found in places.items():
            unseen, grows = self._budget.estimates.unseen(who, drain.now)
            total = sum(counts[i] for i in found)
            if drain.key or grows or who in under_way or self._counts.get(who) != total:
                self._counts[who] = total
                records = [RECORD.unpack_from(self._calls.values, i * RECORD.size) for i in found]
                calls.append(self._call(who, records, unseen, drain, under_way.pop(who, 0)))
        calls += [self._call(who, [], {}, drain, ns) for who, ns in under_way.items()]
        if drain.is_due(drain.per_second):
            self._prune(keys)
        return calls

    def thread_calls(self, drain: Drain) -> list[ThreadCalls]:
        """Calls by thread that changed, or all in a key frame. Unseen calls are not estimated."""
        names = self._budget.names
        if not names or not (drain.key or drain.is_due(PAIRS_EVERY)):
            return []
        found: dict[int, list[int]] = {}
        for i, key in enumerate(self._own.key_list(self._own.read())):
            if (who := unsampled(key)) >> 32 < len(names):
                count, total, pid, _ = _OWN.unpack_from(self._own.values, i * _OWN.size)
                sums = found.setdefault(who, [0, 0, pid])
                sums[0], sums[1] = sums[0] + count, sums[1] + total
        if drain.key:
            found = {who: sums for who, sums in found.items() if os.path.exists(f"/proc/{sums[2]}/task/{who & 0xFFFFFFFF}")}
        before, self._own_counts = self._own_counts, {who: sums[0] for who, sums in found.items()}
        changed = [who for who, sums in found.items() if drain.key or before.get(who) != sums[0]]
        return [ThreadCalls(who & 0xFFFFFFFF, names[who >> 32], found[who][2], *found[who][:2]) for who in changed]

    def launches(self, drain: Drain) -> list[LaunchRate]:
        """Launch rate of each process, after a count and in key frames."""
        times, counted_ns, counts = self._budget.counted
        if times == self._counts_seen:
            return self._rates if drain.key else []
        self._counts_seen = times
        self._launched.append((counted_ns, counts))
        self._rates = _launch_rates(*self._launched[0], *self._launched[-1])
        return self._rates

    def _call(self, who: int, records: list[tuple[int, ...]], unseen: dict[int, float], drain: Drain, inflight_ns: int) -> CudaCall:
        """The sample of a function's records, the exact one and the sampled one, and of what was estimated besides."""
        record = [sum(values) for values in zip(*records, strict=True)] or [0] * (5 + 2 * COUNT)
        for position, value in unseen.items():
            record[position] += int(value)
        count, total, _, _, size = record[:5]
        sums = {FIRST + bucket: ns for bucket, ns in enumerate(record[5 : 5 + COUNT]) if ns}
        hist = {FIRST + bucket: n for bucket, n in enumerate(record[5 + COUNT :]) if n}
        name = self._budget.names[who >> 32]
        has_bytes = self._budget.arguments[name] > 0
        longest = max((epoch_max(one[2], one[3], drain.number) for one in records), default=0)
        return CudaCall(
            pid=who & 0xFFFFFFFF,
            call=name,
            count=count,
            total_ns=total,
            max_ns=longest,
            hist=hist,
            bytes=size if has_bytes else None,
            sums=sums,
            inflight_ns=inflight_ns,
            share=self._budget.estimates.share(who >> 32),
        )

    def _read_inflight(self, now: int) -> dict[int, int]:
        """(pid | call << 32) -> ns since the oldest call began that has not returned."""
        longest: dict[int, int] = {}
        count = self._inflight.read()
        for i, who in enumerate(self._inflight.key_list(count)):
            if who >> 32 & SAMPLED:  # its end may not be seen
                continue
            start, _, _, pid, _ = ENTERED.unpack_from(self._inflight.values, i * ENTERED.size)
            key = pid | who >> 32 << 32
            longest[key] = max(longest.get(key, 0), now - start)
        return longest

    def _prune(self, keys: list[int]) -> None:
        """Delete the calls of ended processes, also calls that never returned."""
        ended = {pid for pid in {who & 0xFFFFFFFF for who in keys} if not os.path.exists(f"/proc/{pid}")}
        if ended:
            stale = [who for who in keys if who & 0xFFFFFFFF in ended]
            self._calls.delete(stale)
            stale = [unsampled(who) for who in stale]
            self._budget.estimates.forget(stale)
            for who in stale:
                self._counts.pop(who, None)
        count = self._inflight.used
        tids = self._inflight.key_list(count)
        self._inflight.delete(who for who in tids if not os.path.exists(f"/proc/{who & 0xFFFFFFFF}"))


def _launch_rates(since_ns: int, before: dict[int, int], until_ns: int, counts: dict[int, int]) -> list[LaunchRate]:
    """Launches per second by process. An entry of a full map may have been dropped and begun again: its rate is left out."""
    seconds = max(1e-9, (until_ns - since_ns) / 1e9)
    launched = {pid: count - before.get(pid, 0) for pid, count in counts.items()}
    return [LaunchRate(pid, round(count / seconds, 1)) for pid, count in launched.items() if count >= 0]
