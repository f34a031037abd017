"""The scheduler probe's maps -> SchedThread, Preempt and Wakeup (probes/sched.c says what it counts).

Everything is read in every tick, as one batch per map; what has changed is sent: threads of hot processes and those who
preempted or woke them at once, the others about once a second, spread over its ticks by where they stand in the map.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from itertools import compress
from operator import ne
from typing import Generic, TypeVar

from msgspec import Struct

from gputop.model.frame import Preempt, Probes, SchedThread, Wakeup
from gputop.model.histogram import COUNT, FIRST
from gputop.sources.ebpf.maps import Map

_THREAD = struct.Struct("<11QIIBBHIIIII")
_PAIR = struct.Struct("<QQII")
_HISTOGRAM = struct.Struct(f"<{COUNT}I")
_COUNT_BITS = 32
_BUCKETS = range(FIRST, FIRST + COUNT)
_WORDS = _THREAD.size // 8
_SINCE, _ID, _STATE = 0, 11, 12
_HOT = 97
"""Position of the byte `hot` in a record."""
_STATES = ("", "running", "runnable", "runnable", "sleeping", "uninterruptible", "dead")
_RUNNING, _RUNNABLE, _PREEMPTED, _SLEEPING, _UNINTERRUPTIBLE, _DEAD = range(1, 7)

_GOING_ON = (_RUNNING, _RUNNABLE, _PREEMPTED)
_MOURN_NS = 1_000_000_000
_PRUNE_S = 2
NEAR_MOST = 2048  # threads of trainers, workers and their kin that one turn tells of, 3 us each (measured); more take turns
PAIRS_EVERY = 2
"""Slots: who preempted or woke whom is asked for in every other one. They are sums, and the largest maps."""

CROWDED = 1 / 16
"""Where many threads meet, most pairs meet once, and each is read again and again, and kept by whoever looks on. From this share of a map
on, sums below `TOLD_NS` are not told, and those that have stopped growing make room for others: the little ones, and the smallest."""
TOLD_NS, LITTLE_NS = 100_000, 1_000_000

PairSample = TypeVar("PairSample", Preempt, Wakeup)


class Turn(Struct, frozen=True):
    """One reading of the maps."""

    now: int
    number: int
    """Of the reading, and of the epoch of maxima that it ended: they count from 0."""
    slot: int
    """The last of the time slots, counted from 0, that this reading is for,"""
    slots: int
    """and how many: fewer readings do for a crowd."""
    per_second: int
    """Slots."""
    hot: frozenset[int]
    key: bool

    @property
    def second(self) -> int:
        """The epoch of maxima of threads that are told of once a second."""
        return self.slot // self.per_second

    @property
    def prunes(self) -> bool:
        """Whether what the dead had is forgotten in this turn, once it has been read."""
        return self.is_due(_PRUNE_S * self.per_second)

    def is_due(self, every: int) -> bool:
        """Whether one of its slots is one of those, ``every`` so many, in which something is done."""
        return self.slot % every < self.slots


class SchedReader:
    """Turns the maps of one loaded sched.c into what is new in each tick."""

    def __init__(self, maps: Mapping[str, Map]) -> None:
        self._threads, self._dead, self._histograms = maps["threads"], maps["dead"], maps["histograms"]
        self._deaths, self._dead_before = maps["deaths"], b""
        self._preempts, self._wakeups = _Pairs(maps["preempts"], _preempt), _Pairs(maps["wakeups"], _wakeup)
        self._since: dict[int, int] = {}
        """(tid | pid << 32) -> `since` of the record that was sent last."""
        self._sums: dict[int, tuple[int, int]] = {}
        """tid -> (on-CPU ns, runnable ns) sent last, of threads sent in every tick."""
        self._histogram_cache: dict[int, tuple[bytes, dict[int, int]]] = {}
        self._graves: list[tuple[int, int]] = []
        """(when to say it is gone, tid), so that a reader that looks twice a second sees its last counts."""

    def read(self, turn: Turn) -> Probes:
        """What changed since the last turn."""
        preempts, culprits, wakeups, wakers = self._read_pairs(turn)
        dead = self._bury(turn)
        threads, ids = self._living(turn, culprits | wakers)
        threads += dead
        self._graves += [(turn.now + _MOURN_NS, thread.tid) for thread in dead]
        gone = [tid for due, tid in self._graves if due <= turn.now]
        self._graves = [grave for grave in self._graves if grave[0] > turn.now]
        forgotten = self._prune(frozenset(ids)) if turn.prunes else []
        return Probes(turn.now, threads=threads, preempts=preempts, wakeups=wakeups, gone=gone, forgotten=forgotten)

    def _read_pairs(self, turn: Turn) -> tuple[list[Preempt], set[int], list[Wakeup], set[int]]:
        if not (turn.is_due(PAIRS_EVERY) or turn.key or turn.prunes):
            return [], set(), [], set()
        return *self._preempts.read(turn.key), *self._wakeups.read(turn.key)

    def _living(self, turn: Turn, kin: set[int]) -> tuple[list[SchedThread], list[int]]:
        """What is told of those that live, and (tid | pid << 32) of them all."""
        count = self._threads.read()
        words, histograms = self._threads.words(count), self._read_histograms()
        ids, known, threads = words[_ID::_WORDS].tolist(), self._since, []
        near = self._near(turn, kin, ids)
        rest = (range(slot % turn.per_second, count, turn.per_second) for slot in range(turn.slot, turn.slot - turn.slots, -1))
        for i in near.union(*rest):
            who, since, state = ids[i], words[i * _WORDS + _SINCE], words[i * _WORDS + _STATE] & 0xFF
            if known.get(who) == since and state not in _GOING_ON and not (turn.key and i in near):
                continue
            if who & 0xFFFFFFFF:  # 0 is the idle task
                known[who] = since
                threads.append(self._thread(_THREAD.unpack_from(self._threads.values, i * _THREAD.size), turn, histograms, i in near))
        return threads, ids

    def _near(self, turn: Turn, kin: set[int], ids: list[int]) -> set[int]:
        """Positions of those to send in every tick. Between key frames the programs' own mark finds hot threads without a loop."""
        if turn.key:
            return _some({i for i, who in enumerate(ids) if who >> 32 in turn.hot or who & 0xFFFFFFFF in kin}, turn)
        marks = bytes(memoryview(self._threads.values)[_HOT : len(ids) * _THREAD.size : _THREAD.size])
        near = {found.start() for found in re.finditer(b"\1", marks) if ids[found.start()] >> 32 in turn.hot}
        if kin:
            near.update(i for i, who in enumerate(ids) if who & 0xFFFFFFFF in kin)
        return _some(near, turn)

    def _prune(self, ids: frozenset[int]) -> list[int]:
        """Forget those who are in the map no more, and what others had with them; the pairs of `Probes.forgotten`."""
        alive = {who & 0xFFFFFFFF for who in ids}
        self._since = {who: since for who, since in self._since.items() if who in ids}
        self._sums = {tid: sums for tid, sums in self._sums.items() if tid in alive}
        self._wakeups.prune(alive)
        return self._preempts.prune(alive)

    def _thread(self, record: tuple[int, ...], turn: Turn, histograms: Mapping[int, int], keep: bool, comm: str = "") -> SchedThread:
        """One record, with what is still going on counted up to now."""
        since, start, oncpu, runnable, preempted, sleeping, uninterruptible, vol, invol, even, odd, tid, pid, state, hot = record[:15]
        # Of the others one may be told of twice rather than never: they may have been told of before their second was over.
        longest = epoch_max(even, odd, turn.number if hot else turn.second)
        if not hot:
            longest = max(longest, epoch_max(even, odd, turn.second - 1))
        ns = max(0, turn.now - since)
        if state == _RUNNING:
            oncpu += ns
        elif state in (_RUNNABLE, _PREEMPTED):
            runnable, longest = runnable + ns, max(longest, ns)
            preempted += ns if state == _PREEMPTED else 0
        elif state == _SLEEPING:
            sleeping += ns
        elif state == _UNINTERRUPTIBLE:
            uninterruptible += ns
        if keep:  # our clock counts time a hypervisor stole; at the next switch the scheduler's own sums take it back
            before = self._sums.get(tid, (0, 0))
            oncpu, runnable = self._sums[tid] = max(oncpu, before[0]), max(runnable, before[1])
        hist = self._histogram(tid, histograms)
        return SchedThread(
            tid, pid, oncpu, runnable, preempted, sleeping, uninterruptible, vol, invol, longest, hist, start, _STATES[state], comm
        )

    def _bury(self, turn: Turn) -> list[SchedThread]:
        """Take the threads that died since the last tick out of the maps, with their final sums."""
        deaths = self._deaths.get(0)  # first: who dies meanwhile is buried next time
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
            threads.append(self._thread(record, turn, histograms, False, comm))
            self._sums.pop(record[11], None)
        self._histograms.delete(thread.tid for thread in threads if thread.tid in histograms)
        for thread in threads:
            self._histogram_cache.pop(thread.tid, None)
        return threads

    def _read_histograms(self) -> dict[int, int]:
        """tid -> position in the histograms that were just read."""
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


def _some(near: set[int], turn: Turn) -> set[int]:
    """All while they are few, else a part of them, another one in each turn; the others are told of once a second as everybody is."""
    parts = -(-len(near) // NEAR_MOST)
    return near if parts <= 1 else {i for i in near if i % parts == turn.number % parts}


def counted_on(before: bytes, counts: dict[int, int], raw: bytes) -> dict[int, int]:
    """The counts of a histogram that was ``before``: within a fifth of a second some few of them grow."""
    counts = counts.copy()
    changed = int.from_bytes(before, "little") ^ int.from_bytes(raw, "little")
    while changed:
        at = (changed.bit_length() - 1) // _COUNT_BITS
        counts[FIRST + at] = int.from_bytes(raw[at * _COUNT_BITS // 8 : (at + 1) * _COUNT_BITS // 8], "little")
        changed &= (1 << at * _COUNT_BITS) - 1
    return counts


def _preempt(pair: int, ns: int, times: int, other_pid: int, _: int) -> Preempt:
    return Preempt(pair & 0xFFFFFFFF, pair >> 32, other_pid, ns, times)


def _wakeup(pair: int, ns: int, times: int, other_pid: int, _: int) -> Wakeup:
    return Wakeup(pair & 0xFFFFFFFF, pair >> 32, other_pid, times, ns)


def epoch_max(even: int, odd: int, epoch: int) -> int:
    """The longest duration of ``epoch`` in ns, 0 if there was none (probes/common.h, keep_max)."""
    tagged = odd if epoch & 1 else even
    return tagged & ((1 << 48) - 1) if tagged >> 48 == epoch & 0xFFFF else 0


class _Pairs(Generic[PairSample]):
    """A map of (one, other) -> (ns, times, other's pid)."""

    def __init__(self, table: Map, make: Callable[[int, int, int, int, int], PairSample]) -> None:
        self._map = table
        self._make: Callable[[int, int, int, int, int], PairSample] = make
        self._room = int(table.shape.entries * CROWDED)
        self._times: dict[int, int] = {}
        """Of the pairs that have been told."""
        self._last: tuple[list[int], list[int]] = ([], [])
        """Keys and times of the last reading: while no pair comes or goes, the kernel gives them in the same order."""
        self._then: dict[int, int] = {}
        """The times as they were when it was last pruned, while the map is crowded."""

    def read(self, key: bool) -> tuple[list[PairSample], set[int]]:
        """Pairs that changed (all of them in a key frame), and the tids of the others in them."""
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
        for i in changed:
            ns, *rest = _PAIR.unpack_from(self._map.values, i * _PAIR.size)
            if ns >= least_ns:
                known[keys[i]] = times[i]
                samples.append(self._make(keys[i], ns, *rest))
                others.add(keys[i] >> 32)
        return samples, others

    def prune(self, alive: set[int]) -> list[int]:
        """Delete the pairs one of which lives no more (0, the idle CPU or an interrupt, never dies), and what is not worth its place:
        of the latter, those that had been told."""
        alive = alive | {0}
        stale = {pair for pair in self._last[0] if pair & 0xFFFFFFFF not in alive or pair >> 32 not in alive}
        negligible = [pair for pair in self._negligible() if pair not in stale]
        told = [pair for pair in negligible if pair in self._times]
        stale.update(negligible)
        self._map.delete(stale)
        for pair in stale:
            self._times.pop(pair, None)
        return told

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
