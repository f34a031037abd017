"""The scheduler probe's maps -> SchedThread, Preempt and Wakeup (probes/sched.c describes what it counts).

Each drain reads the maps whole, as one batch per map, and sends what has changed. Threads of hot processes, and threads that preempted or
woke them, are sent each time, other threads about once a second, spread by their position in the map.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Mapping
from itertools import compress
from operator import attrgetter, ne

from msgspec import Struct
from msgspec.structs import replace

from gputop.model.frame import Preempt, Probes, SchedThread, Wakeup
from gputop.model.histogram import COUNT, FIRST
from gputop.sources import parse
from gputop.sources.ebpf.maps import Map
from gputop.sources.ebpf.wakes import CROWDED, LITTLE_NS, TOLD_NS, Calls, WakeReader

_THREAD = struct.Struct("<11QIIBBHIIIIIQ")
_PAIR = struct.Struct("<QQII")
_HISTOGRAM = struct.Struct(f"<{COUNT}I")
_COUNT_BITS = 32
_BUCKETS = range(FIRST, FIRST + COUNT)
_WORDS = _THREAD.size // 8
_SINCE, _ID, _STATE = 0, 11, 12  # words of a record
_HOT = 97  # position of the byte `hot` in a record
_STATES = ("", "running", "runnable", "runnable", "sleeping", "uninterruptible", "dead")
_RUNNING, _RUNNABLE, _PREEMPTED, _SLEEPING, _UNINTERRUPTIBLE, _DEAD = range(1, 7)

_GOING_ON = (_RUNNING, _RUNNABLE, _PREEMPTED)
_GONE_AFTER_NS = 1_000_000_000  # ns after a thread's end until it is reported gone: a reader that looks twice a second sees its last sums
_PRUNE_S = 2  # s between two clean-ups of the maps
NEAR_MOST = 2048  # threads near trainers that one drain sends, 3 us each (measured); if there are more, in rotation
CHECKED = 512  # threads without an event that are looked for in /proc after a window, 3 us each
PAIRS_EVERY = 2  # slots between two reads of preemptions and wake-ups: sums, in the largest maps


class Drain(Struct, frozen=True):
    """One read of the maps."""

    now: int
    number: int  # its number, from 0; also that of the epoch of maxima that it ends
    slot: int  # the last time slot that it stands for, from 0
    slots: int  # how many slots it stands for: more than 1 if there are many processes
    per_second: int  # slots in a second
    hot: frozenset[int]
    key: bool
    opened: int = 0  # ns: when the programs were attached last; 0: they have been attached all the time

    @property
    def second(self) -> int:
        """The epoch of maxima of threads that are sent once a second."""
        return self.slot // self.per_second

    @property
    def prunes(self) -> bool:
        """True if this drain deletes the entries of ended threads, after reading them."""
        return self.is_due(_PRUNE_S * self.per_second)

    def is_due(self, every: int) -> bool:
        """True if something done every ``every`` slots is due in one of its slots."""
        return self.slot % every < self.slots


class SchedReader:
    """Turns the maps of one loaded sched.c into samples of what changed."""

    def __init__(self, maps: Mapping[str, Map], proc: str = "/proc") -> None:
        self._proc = proc
        self._threads, self._dead, self._histograms = maps["threads"], maps["dead"], maps["histograms"]
        self._deaths, self._dead_before = maps["deaths"], b""
        calls = Calls()
        calls.send_to_probe(maps["arguments"])
        self._preempts, self._wakeups = _Preempts(maps["preempts"]), WakeReader(maps["wakeups"], calls)
        self._since: dict[int, int] = {}  # (tid | pid << 32) -> `since` of the record sent last
        self._sums: dict[int, tuple[int, int]] = {}  # tid -> (on-CPU ns, runnable ns) sent last, of threads sent in every drain
        self._histogram_cache: dict[int, tuple[bytes, dict[int, int]]] = {}
        self._ended: list[tuple[int, int]] = []  # (when to report it gone, tid)
        self.slices: dict[int, int] = {}  # tid -> times it got a CPU, when `with_kernel_sums` read it last
        self._ids: list[int] = []  # (tid | pid << 32) by position in the map of threads, at the last read
        self._checked = 0  # threads that `forget_ended` has looked for

    def read(self, drain: Drain) -> Probes:
        """Changes since the last drain."""
        preempts, culprits, wakeups, wakers = self._read_pairs(drain)
        dead = self._take_dead(drain)
        threads, ids = self._living(drain, culprits | wakers)
        self._ids = ids
        threads = sorted([*threads, *dead], key=attrgetter("tid"))
        self._ended += [(drain.now + _GONE_AFTER_NS, thread.tid) for thread in dead]
        gone = [tid for due, tid in self._ended if due <= drain.now]
        self._ended = [ended for ended in self._ended if ended[0] > drain.now]
        forgotten = self._prune(frozenset(ids)) if drain.prunes else []
        return Probes(drain.now, threads=threads, preempts=preempts, wakeups=wakeups, gone=gone, forgotten=sorted(forgotten))

    @property
    def alive(self) -> frozenset[int]:
        """Tids in the map of threads, at the last read."""
        return frozenset(who & 0xFFFFFFFF for who in self._ids)

    def forget_ended(self, opened: int) -> list[int]:
        """Forget threads that ended unseen before ``opened``; checks `CHECKED` of the threads that did nothing since. Returns their
        tids."""
        words, count = self._threads.words(len(self._ids)), len(self._ids)
        unseen = [i for i in range(count) if words[i * _WORDS + _SINCE] < opened and self._ids[i] & 0xFFFFFFFF]
        first = self._checked % max(1, len(unseen))
        some = (unseen[first:] + unseen[:first])[:CHECKED]
        self._checked = first + len(some)
        ended = [i for i in some if not os.path.exists(self._path(self._ids[i] >> 32, self._ids[i] & 0xFFFFFFFF))]
        keys = self._threads.key_list(count)
        self._threads.delete(keys[i] for i in ended)
        tids = sorted(self._ids[i] & 0xFFFFFFFF for i in ended)
        gone = frozenset(ended)
        self._ids = [who for i, who in enumerate(self._ids) if i not in gone]
        known = self.alive
        self._histograms.delete(tid for tid in self._histograms.key_list(self._histograms.used) if tid not in known)
        return tids

    def with_kernel_sums(self, thread: SchedThread) -> SchedThread:
        """A thread with the scheduler's own sums of its time on a CPU and runnable, from /proc."""
        found = read_sums(self._proc, thread.pid, thread.tid)
        if found is None:
            return thread
        before = self._sums.get(thread.tid, (0, 0))
        sums = self._sums[thread.tid] = max(found[0], before[0]), max(found[1], before[1])
        self.slices[thread.tid] = found[2]
        return replace(thread, oncpu_ns=sums[0], runnable_ns=sums[1])

    def _path(self, pid: int, tid: int) -> str:
        return f"{self._proc}/{pid}/task/{tid}"

    def _read_pairs(self, drain: Drain) -> tuple[list[Preempt], set[int], list[Wakeup], set[int]]:
        if not (drain.is_due(PAIRS_EVERY) or drain.key or drain.prunes):
            return [], set(), [], set()
        return *self._preempts.read(drain.key), *self._wakeups.read(drain.key)

    def _living(self, drain: Drain, kin: set[int]) -> tuple[list[SchedThread], list[int]]:
        """(samples of living threads, (tid | pid << 32) of all living threads). ``kin``: tids that preempted or woke hot ones."""
        count = self._threads.read()
        words, histograms = self._threads.words(count), self._read_histograms()
        ids, known, threads = words[_ID::_WORDS].tolist(), self._since, []
        near = self._near(drain, kin, ids)
        rest = (range(slot % drain.per_second, count, drain.per_second) for slot in range(drain.slot, drain.slot - drain.slots, -1))
        for i in near.union(*rest):
            who, since, state = ids[i], words[i * _WORDS + _SINCE], words[i * _WORDS + _STATE] & 0xFF
            if known.get(who) == since and state not in _GOING_ON and not (drain.key and i in near):
                continue
            if who & 0xFFFFFFFF:  # 0 is the idle task
                known[who] = since
                threads.append(self._thread(_THREAD.unpack_from(self._threads.values, i * _THREAD.size), drain, histograms, i in near))
        return threads, ids

    def _near(self, drain: Drain, kin: set[int], ids: list[int]) -> set[int]:
        """Positions of the threads sent in every drain. Between key frames the programs' own mark finds hot threads without a loop."""
        if drain.key:
            return _some({i for i, who in enumerate(ids) if who >> 32 in drain.hot or who & 0xFFFFFFFF in kin}, drain)
        marks = bytes(memoryview(self._threads.values)[_HOT : len(ids) * _THREAD.size : _THREAD.size])
        near = {found.start() for found in re.finditer(b"\1", marks) if ids[found.start()] >> 32 in drain.hot}
        if kin:
            near.update(i for i, who in enumerate(ids) if who & 0xFFFFFFFF in kin)
        return _some(near, drain)

    def _prune(self, ids: frozenset[int]) -> list[int]:
        """Forget threads that left the map, and their pairs; returns the pairs of `Probes.forgotten`."""
        alive = {who & 0xFFFFFFFF for who in ids}
        self._since = {who: since for who, since in self._since.items() if who in ids}
        self._sums = {tid: sums for tid, sums in self._sums.items() if tid in alive}
        self._wakeups.prune(alive)
        return self._preempts.prune(alive)

    def _thread(self, record: tuple[int, ...], drain: Drain, histograms: Mapping[int, int], keep: bool, comm: str = "") -> SchedThread:
        """The sample of a record, with the present state counted up to now. ``keep``: its sums must not fall."""
        since, start, oncpu, runnable, preempted, sleeping, uninterruptible, vol, invol, even, odd, tid, pid, state, hot = record[:15]
        # Other threads may be sent before their second is over: a maximum is rather sent twice than never.
        longest = epoch_max(even, odd, drain.number if hot else drain.second)
        if not hot:
            longest = max(longest, epoch_max(even, odd, drain.second - 1))
        ns, is_stale = max(0, drain.now - since), since < drain.opened
        if state in _GOING_ON and is_stale:  # whether it still is, is not known
            pass
        elif state == _RUNNING:
            oncpu += ns
        elif state in (_RUNNABLE, _PREEMPTED):
            runnable, longest = runnable + ns, max(longest, ns)
            preempted += ns if state == _PREEMPTED else 0
        elif state == _SLEEPING:
            sleeping += ns
        elif state == _UNINTERRUPTIBLE:
            uninterruptible += ns
        if keep:  # the clock counts stolen time; at the next switch the scheduler's own sums do not
            before = self._sums.get(tid, (0, 0))
            oncpu, runnable = self._sums[tid] = max(oncpu, before[0]), max(runnable, before[1])
        thread = SchedThread(
            tid=tid, pid=pid, oncpu_ns=oncpu, runnable_ns=runnable, preempted_ns=preempted, sleeping_ns=sleeping,
            uninterruptible_ns=uninterruptible, vol=vol, invol=invol, max_run_delay_ns=longest, hist=self._histogram(tid, histograms),
            start_ns=start, state=_STATES[state], comm=comm,
        )  # fmt: skip
        return self.with_kernel_sums(thread) if is_stale and keep and self._proc else thread

    def _take_dead(self, drain: Drain) -> list[SchedThread]:
        """Take the threads that ended since the last drain out of the maps, with their final sums."""
        deaths = self._deaths.get(0)  # first: a thread that ends from here on is taken next time
        if deaths == self._dead_before:
            self._dead.used = 0
            return []
        self._dead_before = deaths
        count, size = self._dead.read(take=True), self._dead.shape.value_bytes
        if not count:
            return []
        histograms, threads = self._read_histograms(), []
        for at in range(0, count * size, size):
            record = _THREAD.unpack_from(self._dead.values, at)
            comm = self._dead.values[at + _THREAD.size : at + size].split(b"\0")[0].decode(errors="replace")
            threads.append(self._thread(record, drain, histograms, False, comm))
            self._sums.pop(record[11], None)
        self._histograms.delete(thread.tid for thread in threads if thread.tid in histograms)
        for thread in threads:
            self._histogram_cache.pop(thread.tid, None)
        return threads

    def _read_histograms(self) -> dict[int, int]:
        """Read the histograms; tid -> position."""
        count = self._histograms.read()
        return dict(zip(self._histograms.key_list(count), range(count), strict=True))

    def _histogram(self, tid: int, positions: Mapping[int, int]) -> dict[int, int]:
        position = positions.get(tid)
        if position is None:
            return {}
        size = self._histograms.shape.value_bytes
        raw = self._histograms.values[position * size : (position + 1) * size]
        cached = self._histogram_cache.get(tid)
        if cached is None:
            counts = _HISTOGRAM.unpack(raw)
            cached = self._histogram_cache[tid] = raw, dict(zip(compress(_BUCKETS, counts), filter(None, counts), strict=True))
        elif cached[0] != raw:
            cached = self._histogram_cache[tid] = raw, counted_on(*cached, raw)
        return cached[1]


def _some(near: set[int], drain: Drain) -> set[int]:
    """All of ``near`` if they are few, else a part in rotation; the rest is sent once a second like other threads."""
    parts = -(-len(near) // NEAR_MOST)
    return near if parts <= 1 else {i for i in near if i % parts == drain.number % parts}


def counted_on(before: bytes, counts: dict[int, int], raw: bytes) -> dict[int, int]:
    """Counts of a histogram from its bytes ``before`` and now (``raw``): few counts change between two drains."""
    counts = counts.copy()
    changed = int.from_bytes(before, "little") ^ int.from_bytes(raw, "little")
    while changed:
        at = (changed.bit_length() - 1) // _COUNT_BITS
        counts[FIRST + at] = int.from_bytes(raw[at * _COUNT_BITS // 8 : (at + 1) * _COUNT_BITS // 8], "little")
        changed &= (1 << at * _COUNT_BITS) - 1
    return counts


def epoch_max(even: int, odd: int, epoch: int) -> int:
    """The longest duration in ``epoch`` in ns, 0 if there was none (probes/common.h, keep_max)."""
    tagged = odd if epoch & 1 else even
    return tagged & ((1 << 48) - 1) if tagged >> 48 == epoch & 0xFFFF else 0


def read_sums(proc: str, pid: int, tid: int) -> tuple[int, int, int] | None:
    """(ns on a CPU, ns runnable, times it got a CPU) by the scheduler's own count; None if it has ended."""
    try:
        with open(f"{proc}/{pid}/task/{tid}/schedstat", "rb") as file:
            return parse.schedstat(file.read())
    except (OSError, ValueError, IndexError):
        return None


class _Preempts:
    """The map of preemptions: (victim tid, culprit tid) -> (ns, times, culprit's pid)."""

    def __init__(self, table: Map) -> None:
        self._map = table
        self._room = int(table.shape.entries * CROWDED)
        self._times: dict[int, int] = {}  # pair -> times sent last
        self._last: tuple[list[int], list[int]] = ([], [])
        """Keys and times of the last read: while no pair comes or goes, the kernel keeps their order."""
        self._then: dict[int, int] = {}  # pair -> times at the last clean-up, while the map is crowded

    def read(self, key: bool) -> tuple[list[Preempt], set[int]]:
        """(pairs that changed, or all in a key frame; the culprits' tids)."""
        count = self._map.read()
        keys, known = self._map.key_list(count), self._times
        times = self._map.words(count)[1 :: _PAIR.size // 8].tolist()
        if key:
            changed: Iterable[int] = range(count)
        elif keys == self._last[0]:
            changed = compress(range(count), map(ne, times, self._last[1]))
        else:
            changed = [i for i in range(count) if known.get(keys[i]) != times[i]]
        self._last = keys, times
        least_ns = TOLD_NS if count > self._room else 0
        samples, others = [], set()
        for i in sorted(changed, key=lambda i: (keys[i] & 0xFFFFFFFF, keys[i])):  # sorted they take an eighth less in a recording
            ns, count, pid, _ = _PAIR.unpack_from(self._map.values, i * _PAIR.size)
            if ns >= least_ns:
                known[keys[i]] = times[i]
                samples.append(Preempt(keys[i] & 0xFFFFFFFF, keys[i] >> 32, pid, ns, count))
                others.add(keys[i] >> 32)
        return samples, others

    def prune(self, alive: set[int]) -> list[int]:
        """Delete pairs with an ended thread, and negligible pairs; returns the negligible ones that had been sent.

        Tid 0, the idle CPU or an interrupt, never ends.
        """
        alive = alive | {0}
        stale = {pair for pair in self._last[0] if pair & 0xFFFFFFFF not in alive or pair >> 32 not in alive}
        negligible = [pair for pair in self._negligible() if pair not in stale]
        sent = [pair for pair in negligible if pair in self._times]
        stale.update(negligible)
        self._map.delete(stale)
        for pair in stale:
            self._times.pop(pair, None)
        return sent

    def _negligible(self) -> list[int]:
        keys, times = self._last
        excess = len(keys) - self._room
        if excess <= 0:
            self._then = {}
            return []
        then, self._then = self._then, dict(zip(keys, times, strict=True))
        sums = self._map.words(len(keys))[:: _PAIR.size // 8].tolist()
        still = sorted((ns, key) for key, count, ns in zip(keys, times, sums, strict=True) if then.get(key) == count)
        return [key for at, (ns, key) in enumerate(still) if at < excess or ns < LITTLE_NS]
