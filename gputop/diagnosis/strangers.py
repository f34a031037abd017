"""Processes outside the jobs, as far as a window needs them: their CPU time, their memory, and what they waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, ProcInfo, ProcSample
from gputop.model.roles import program_name
from gputop.system.text import clean

RESTING_CORES = 0.1  # who runs less than this between two looks rests
BEFORE_NS = 4_000_000_000  # so long before the window samples are kept that say what somebody waited for
LEAD_NS = 5_000_000_000
"""So long may somebody have run before what he takes is felt: prefetched batches, and CPUs that were idle, last for a while."""
NEWBORN_NS = 2_000_000_000  # who is younger when first seen held no memory before
LOADS_BELOW = 3  # between the collector and what loads its probes stand sudo and sudo's own child


class Used(NamedTuple):
    """CPU time taken until ``t_ns``, by itself and by children that it has waited for; what it moved to and from storage; and the CPU on
    which it ran last, in the kernel's numbering (/proc/PID/stat 39)."""

    t_ns: int
    own_ns: int
    children_ns: int
    moved_bytes: int | None
    cpu: int | None = None


class Stranger(Struct):
    """One process outside the jobs; kept for as long as its end may lie in the window."""

    latest: ProcSample
    name: str
    info: ProcInfo | None
    used: list[Used]  # of the window. There are hundreds of strangers: whole samples, and a deque for each, would take megabytes.
    began: Used  # how it stood when it last rested
    first_rss_bytes: int
    asked: tuple[ProcSample, ...] = ()
    """Samples that say what it waited for: of who was started by a trainer or worker, of the window and for a few seconds before it."""

    @classmethod
    def met(cls, sample: ProcSample, board: Board) -> Stranger:
        """One that has not been seen before."""
        used = _used(sample)
        held_bytes = 0 if sample.t_ns - born_ns(sample, board) < NEWBORN_NS else sample.rss_bytes
        return cls(sample, name_of(board, sample.pid), board.infos.get(sample.pid), [used], used, held_bytes, _asked(sample))

    def push(self, sample: ProcSample, board: Board, oldest_ns: int) -> None:
        """Its next sample."""
        info = board.infos.get(sample.pid)
        if info is not None and info is not self.info:
            self.info, self.name = info, name_of(board, sample.pid)
        used, last = _used(sample), self.used[-1]
        if used.own_ns - last.own_ns < RESTING_CORES * (used.t_ns - last.t_ns):
            self.began = used
        self.latest = sample
        asked = _asked(sample)
        if asked or self.asked:
            self.asked = tuple(one for one in self.asked if one.t_ns > oldest_ns - BEFORE_NS) + asked
        self.used.append(used)
        while len(self.used) > 2 and self.used[1].t_ns <= oldest_ns:
            del self.used[0]

    def asked_since(self, t_ns: int) -> list[ProcSample]:
        """Those of `asked` that are later."""
        return [sample for sample in self.asked if sample.t_ns > t_ns]

    @property
    def ns_on(self) -> Counter[int]:
        """CPU -> ns that it ran in the window, by where it was met behind that; empty where that is not told."""
        taken: Counter[int] = Counter()
        for old, new in pairwise(self.used):
            if new.cpu is not None and new.own_ns > old.own_ns:
                taken[new.cpu] += new.own_ns - old.own_ns
        return taken

    @property
    def moved_bytes_per_s(self) -> float:
        """To and from storage over the window; 0 where that may not be read."""
        old, new = self.used[0], self.used[-1]
        if old.moved_bytes is None or new.moved_bytes is None or new.t_ns <= old.t_ns:
            return 0.0
        return (new.moved_bytes - old.moved_bytes) * SECOND_NS / (new.t_ns - old.t_ns)

    def before_ns(self, oldest_ns: int) -> int:
        """CPU time it had taken when the window began, or shortly before where it has run ever since."""
        first = self.used[0]
        return (self.began if oldest_ns - LEAD_NS <= self.began.t_ns < first.t_ns else first).own_ns


def shares(ns_on: Mapping[int, int]) -> dict[int, float]:
    """Of all of it that on each CPU."""
    total = sum(ns_on.values())
    return {cpu: ns / total for cpu, ns in ns_on.items() if total}


def recorders(strangers: Mapping[int, Stranger], collector_pid: int) -> frozenset[int]:
    """Who makes this stream: its collector, the gputop that started that, and what it started itself, as to load the probes.

    What these take stands on the screen, and is no trouble of the training's. By pid, for anybody may call himself gputop.
    """
    collector = strangers.get(collector_pid)
    if collector is None or collector.info is None:
        return frozenset()
    parent = strangers.get(collector.info.ppid)
    found = {collector_pid}
    for _ in range(LOADS_BELOW):
        found |= {pid for pid, one in strangers.items() if one.info is not None and one.info.ppid in found}
    return frozenset(found | {collector.info.ppid} if parent is not None and parent.name == "gputop" else found)


def born_ns(sample: ProcSample, board: Board) -> int:
    """When a process was started, on the clock of the samples."""
    return sample.start_ticks * SECOND_NS // board.header.clock_tick_hz


def _asked(sample: ProcSample) -> tuple[ProcSample, ...]:
    return () if sample.syscall is None and sample.wchan is None else (sample,)


def _used(sample: ProcSample) -> Used:
    moved = None if sample.read_bytes is None or sample.write_bytes is None else sample.read_bytes + sample.write_bytes
    return Used(sample.t_ns, sample.utime_ns + sample.stime_ns, sample.children_ns or 0, moved, sample.processor)


def name_of(board: Board, pid: int) -> str:
    """The name people know a process by."""
    info = board.infos.get(pid)
    if info is None:
        return f"pid {pid}"
    name = program_name(info)
    return name if name != "python" else clean(info.comm, 32)
