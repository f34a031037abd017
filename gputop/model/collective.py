"""Collectives by name, as NCCL's Inspector writes them (a profiler plug-in of NCCL and RCCL): which one, its size, time, bus bandwidth.

In a collective each rank waits for the last one, in the kernel of the collective. So the rank with the shortest time came last, and that
time is the wire's alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gputop.model.ranges import Bytes, Count, Pid, Ranks

COLLECTIVE_KEY = ("pid", "comm", "coll")
COUNTERS = ("times", "bytes", "time_us", "bus_bytes", "compared", "late", "awaited_us")
SPAN_NS = 15_000_000_000  # ns of now, after which a rank writes no more; a choice: dumps may be seconds apart


class Collective(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One kind of collective of one rank in one communicator. Counters are cumulative over what gputop read, since it began to read."""

    pid: Pid  # of the rank
    comm: str  # the communicator's hash: ``0x7f8c496ae9f661``
    coll: str  # ``AllReduce``, ``AllGather`` …; also ``Send`` and ``Recv``
    t_ns: int = 0  # when the latest was read (CLOCK_MONOTONIC)
    name: str = ""  # the communicator's, where the application gave one: ``DP Group 0``
    rank: Ranks | None = None  # in the communicator
    ranks: Ranks | None = None  # of the communicator
    nodes: Ranks | None = None  # on which these are
    algo: str = ""  # of the latest: ``Ring``
    proto: str = ""  # of the latest: ``LL128``
    size_bytes: Bytes | None = None  # of the latest one's message
    last_us: Count | None = None  # time of the latest one
    last_busbw_mb_per_s: Count | None = None  # bus bandwidth of the latest one
    times: Count = 0
    bytes: Count = 0  # of messages
    time_us: Count = 0  # execution times together
    bus_bytes: Count = 0  # bus bandwidth times execution time, together
    compared: Count = 0  # those of which all ranks' times were read: only then it is known who came last
    late: Count = 0  # those of them in which this rank came last
    awaited_us: Count = 0  # for so long the other ranks, on average, waited for it in those together
    of_means: bool = False  # ``last_us`` and bandwidth are means of all since the dump before; how many these were is not known


class CollectiveNow(msgspec.Struct, frozen=True, gc=False):
    """One kind of collective of one rank now, over the last seconds. Null is what was not measured; ``missing`` has the reason."""

    comm: str
    name: str
    coll: str
    algo: str
    proto: str
    rank: int | None
    ranks: int | None
    nodes: int | None
    size_bytes: int | None  # of the latest one's message
    last_us: int | None  # time of the latest one
    times: int  # read in these seconds
    mean_us: float | None
    busbw_gb_per_s: float | None
    time_share: float | None  # share of these seconds that it took
    late_share: float | None  # share of those compared in which this rank came last
    awaited_us: float | None  # for so long the others waited for it, on average over those in which it came last
    missing: dict[str, str] = {}


_UNTOLD = "the Inspector wrote none"
_ELSEWHERE = "not all ranks of the communicator write where gputop reads"
_MEANS = "the Inspector's text has means, and neither how many there were nor who came last"
_NONE_LATE = "it came last in none of the last seconds"
_ONE_READING = "not yet: it takes two readings"


def newest_of(read: Iterable[Collective]) -> dict[tuple[int, str, str], Collective]:
    """`COLLECTIVE_KEY` -> the newest reading."""
    return {(one.pid, one.comm, one.coll): one for one in read}


def collective_now(older: Collective | None, newer: Collective) -> CollectiveNow:
    """What came since an older reading; without one since gputop began to read."""
    begun = older is not None and older.times <= newer.times and older.t_ns < newer.t_ns
    grown = {name: getattr(newer, name) - (getattr(older, name) if begun else 0) for name in COUNTERS}
    times, time_us, compared, late = grown["times"], grown["time_us"], grown["compared"], grown["late"]
    if newer.of_means:
        times, time_us, bus_bytes = 1, newer.last_us or 0, (newer.last_us or 0) * (newer.last_busbw_mb_per_s or 0)
    else:
        bus_bytes = grown["bus_bytes"]
    own: dict[str, Any] = {name: getattr(newer, name) for name in _TOLD}
    span_us = None if older is None or not begun or newer.of_means else (newer.t_ns - older.t_ns) / 1e3
    made: dict[str, Any] = {
        "mean_us": round(time_us / times, 1) if times > 0 else None,
        "busbw_gb_per_s": round(bus_bytes / time_us / 1e3, 3) if time_us > 0 else None,
        "time_share": None if span_us is None else round(min(1.0, time_us / span_us), 4),
        "late_share": round(late / compared, 3) if compared > 0 else None,
        "awaited_us": round(grown["awaited_us"] / late, 1) if late > 0 else None,
    }
    reasons = {
        "late_share": _ELSEWHERE, "awaited_us": _NONE_LATE if compared > 0 else _ELSEWHERE, "time_share": _ONE_READING,
    }  # fmt: skip
    if newer.of_means:
        reasons |= dict.fromkeys(("late_share", "awaited_us", "time_share"), _MEANS)
    missing = {name: reasons.get(name, _UNTOLD) for name, value in (own | made).items() if value is None}
    return CollectiveNow(**own, **made, times=max(0, times), missing=missing)


_TOLD = ("comm", "name", "coll", "algo", "proto", "rank", "ranks", "nodes", "size_bytes", "last_us")


class CollectiveTracks:
    """The readings of the last seconds. Costs nothing where no rank has the Inspector."""

    def __init__(self) -> None:
        self._read: dict[tuple[int, str, str], list[Collective]] = {}

    def push(self, t_ns: int, board: Mapping[tuple[int, str, str], Collective]) -> None:
        """Take what a board of ``t_ns`` has; readings that are old are forgotten, and a rank that writes no more with them."""
        if not board and not self._read:
            return
        kept: dict[tuple[int, str, str], list[Collective]] = {}
        for key, one in board.items():
            if one.t_ns >= t_ns - SPAN_NS:
                known = self._read.get(key, [])
                known = [*known, one] if not known or one.t_ns > known[-1].t_ns else known
                young = [reading for reading in known if reading.t_ns >= t_ns - SPAN_NS]
                kept[key] = young if len(young) > 1 else known[-2:]
        self._read = kept

    def now(self) -> dict[int, tuple[CollectiveNow, ...]]:
        """Pid of a rank -> its collectives, those that take most time first."""
        found: dict[int, list[CollectiveNow]] = {}
        for (pid, _, _), read in self._read.items():
            found.setdefault(pid, []).append(collective_now(read[0] if len(read) > 1 else None, read[-1]))
        return {pid: tuple(sorted(own, key=lambda one: -(one.mean_us or 0.0) * one.times)) for pid, own in found.items()}
