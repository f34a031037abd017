"""Edges of the wait-for graph (a thread's activity over time), and what a walk over them books."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.facts import Facts
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.facts.wakes import Wake
from gputop.findings import policy

RUN, READY, GIL, WORKERS, PACED, HELD = "run", "ready", "gil", "workers", "paced", "held"


class Edge(NamedTuple):
    """A part of a thread's time: its activity, or the thread it waited for."""

    kind: str  # `RUN`, `READY` or a word of `facts.waits`
    share: float  # of the window
    pid: int = 0  # of the process that ended the sleep; 0: an interrupt, or unknown
    tid: int = 0
    address: int = 0  # of the futex that it slept at
    measured: bool = True  # False: inferred from samples
    ended: bool = True  # False: the sleep still lasts


RESOURCES = (
    "work", "cpu", "quota", "mask", "memory", waits.DISK, waits.NETWORK, waits.PIPE, waits.POLL, waits.TIMER, waits.CHILD, waits.DRIVER,
    waits.LOCK, waits.UNKNOWN, waits.QUEUE, GIL, "thread", "peer", "reader", "copy", "gap", "gpu", "birth", "ahead", "nobody",
    "rank", "pause", "turn", "launch", "unasked", PACED, "step", "wire", "front", "schedule",
    "kv", "load",
)  # fmt: skip
"""Resources that a walk may end at (`gputop.diagnosis.graph.waitgraph.Walk.book`)."""


class Leaf(NamedTuple):
    """The end of a walk: a resource and its holder."""

    resource: str
    holder: str

    def __str__(self) -> str:
        return f"{self.resource} x {self.holder}"


class Hop(NamedTuple):
    """One step of the walk: a thread's activity in the time for which the step before waited."""

    pid: int
    tid: int
    kind: str  # as `Edge.kind`
    share: float  # of the window
    measured: bool


Trail = tuple[Hop, ...]


class LeafTrail(NamedTuple):
    """The steps of the walk to a leaf."""

    leaf: Leaf = Leaf("", "")
    trail: Trail = ()


class LeafLoss:
    """The share that the walk booked to one leaf, and its trails."""

    __slots__ = ("share", "trails")

    def __init__(self) -> None:
        self.share = 0.0  # of the window
        self.trails: dict[tuple[tuple[int, str], ...], tuple[float, Trail]] = {}  # (pid, kind) of each step -> share, and the steps

    def book(self, share: float, trail: Trail) -> None:
        """Add a share that came along ``trail``."""
        self.share += share
        key = tuple((hop.pid, hop.kind) for hop in trail)
        known = self.trails.get(key)
        self.trails[key] = (share, trail) if known is None else (known[0] + share, tuple(map(_joined, known[1], trail)))

    @property
    def trail(self) -> Trail:
        """The trail with the largest share."""
        return max(self.trails.values(), key=lambda one: one[0])[1] if self.trails else ()


def _joined(one: Hop, other: Hop) -> Hop:
    """Two steps of one process and kind added up; a step joined with itself is unchanged."""
    if one is other:
        return one
    return (one if one.share >= other.share else other)._replace(share=one.share + other.share)


Leaves = dict[Leaf, LeafLoss]


def edges_of(proc: ProcFacts, facts: Facts) -> list[Edge]:
    """The time of a process's main thread as edges; their shares sum to 1."""
    asleep, woken = proc.asleep, [_plain(wake, proc.pid) for wake in facts.wakes.get(proc.pid, [])]
    woken = [wake for wake in woken if wake.pid or wake.kind != waits.UNKNOWN]  # samples know more about sleeps that an interrupt ended
    found = [Edge(RUN, proc.run), Edge(READY, proc.runnable)]
    known = sum(wake.share for wake in woken)
    scale = min(1.0, asleep / known) if known > 0.0 else 0.0
    found += [Edge(wake.kind, wake.share * scale, wake.pid, wake.tid, wake.address) for wake in woken]
    rest = asleep - known * scale
    kinds = _rest_of(proc.kinds, {wake.kind: wake.share * scale for wake in woken}, rest) if known else proc.kinds
    stopped = proc.kinds.get(waits.STOPPED, 0.0) - kinds.get(waits.STOPPED, 0.0)  # e.g. by a debugger, which wakes it up again
    if stopped > 0.0:
        slept = tuple(dict.fromkeys(edge.kind for edge in found[2:]))  # no set: their order would change from run to run
        found, missing = take(found, stopped, slept, lambda edge: edge.pid not in (0, proc.info.ppid))
        kinds = kinds | {waits.STOPPED: kinds.get(waits.STOPPED, 0.0) + stopped - missing}
    edges = [edge for edge in found if edge.share > 0.0] + [Edge(kind, share, measured=False, ended=False) for kind, share in kinds.items()]
    if not any(edge.kind == waits.DISK for edge in edges):
        return edges
    remote, served = proc.reads_remotely, facts.file_servers
    return [edge._replace(kind=waits.NETWORK) if edge.kind == waits.DISK and (remote or edge.pid in served) else edge for edge in edges]


def _plain(wake: Wake, pid: int) -> Wake:
    """The wake-up; one of unknown kind between threads of one process counts as a lock (futex)."""
    return wake._replace(kind=waits.LOCK) if wake.kind == waits.UNKNOWN and wake.pid == pid else wake


def _rest_of(kinds: dict[str, float], known: dict[str, float], rest: float) -> dict[str, float]:
    """Kind of wait -> share, by samples beyond the shares ``known`` from wake-ups; scaled to ``rest``, the unexplained sleep."""
    beyond = {kind: max(0.0, share - known.get(kind, 0.0)) for kind, share in kinds.items()}
    total = sum(beyond.values())
    if rest <= policy.TRIFLE:
        return {}
    return {kind: share * rest / total for kind, share in beyond.items() if share > 0.0} if total > 0.0 else {waits.UNKNOWN: rest}


def take(
    edges: Iterable[Edge], share: float, kinds: tuple[str, ...], which: Callable[[Edge], bool] = lambda _: True
) -> tuple[list[Edge], float]:
    """(edges after taking ``share`` from the ones of ``kinds``, earlier kinds first; the share that could not be taken)."""
    left = list(edges)
    for kind in kinds if share > 0.0 else ():
        for number, edge in enumerate(left):
            if edge.kind == kind and share > 0.0 and which(edge):
                taken = min(share, edge.share)
                left[number] = edge._replace(share=edge.share - taken)
                share -= taken
    return [edge for edge in left if edge.share > 0.0], max(0.0, share)
