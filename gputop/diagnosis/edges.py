"""What a thread did with its time: the edges of the wait-for graph, and what a walk over them books."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from gputop.diagnosis.measure import waits
from gputop.diagnosis.measure.facts import Facts
from gputop.diagnosis.measure.proc import ProcFacts
from gputop.diagnosis.measure.wakes import Wake
from gputop.findings import policy

RUN, READY, GIL, WORKERS = "run", "ready", "gil", "workers"


class Edge(NamedTuple):
    """A part of a thread's time: what it did, or whom it waited for."""

    kind: str  # `RUN`, `READY` or a word of `measure.waits`
    share: float  # of the window
    pid: int = 0  # of who ended the sleep; 0: an interrupt, or nobody known
    tid: int = 0
    address: int = 0  # of the futex that it slept at
    measured: bool = True  # False: met by samples
    ended: bool = True  # False: the sleep lasts, so nobody has ended it yet


RESOURCES = (
    "work", "cpu", "quota", "mask", "memory", waits.DISK, waits.NETWORK, waits.PIPE, waits.POLL, waits.TIMER, waits.CHILD, waits.DRIVER,
    waits.LOCK, waits.UNKNOWN, waits.QUEUE, GIL, "thread", "peer", "reader", "copy", "gap", "gpu", "birth", "ahead", "nobody",
    "rank", "pause", "turn", "launch",
)  # fmt: skip
"""What a walk may end at (`gputop.diagnosis.waitgraph.Walk.book`)."""


class Leaf(NamedTuple):
    """Where the walk ends."""

    resource: str
    holder: str

    def __str__(self) -> str:
        return f"{self.resource} x {self.holder}"


class Hop(NamedTuple):
    """One step of the walk: what a thread did of the time for which the step before it waited."""

    pid: int
    tid: int
    kind: str  # as `Edge.kind`
    share: float  # of the window
    measured: bool


Trail = tuple[Hop, ...]


class Way(NamedTuple):
    """How the walk came to a leaf."""

    leaf: Leaf = Leaf("", "")
    trail: Trail = ()


class Booked:
    """What the walk booked to one leaf."""

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
        """The steps along which most of it came."""
        return max(self.trails.values(), key=lambda one: one[0])[1] if self.trails else ()


def _joined(one: Hop, other: Hop) -> Hop:
    """Two steps of a process of one kind; the same step stays as it is."""
    if one is other:
        return one
    return (one if one.share >= other.share else other)._replace(share=one.share + other.share)


Leaves = dict[Leaf, Booked]


def edges_of(proc: ProcFacts, facts: Facts) -> list[Edge]:
    """The time of a process's main thread; shares sum to 1."""
    asleep, woken = proc.asleep, [_plain(wake, proc.pid) for wake in facts.wakes.get(proc.pid, [])]
    woken = [wake for wake in woken if wake.pid or wake.kind != waits.UNKNOWN]  # what an interrupt ended, samples know better
    found = [Edge(RUN, proc.run), Edge(READY, proc.runnable)]
    known = sum(wake.share for wake in woken)
    scale = min(1.0, asleep / known) if known > 0.0 else 0.0
    found += [Edge(wake.kind, wake.share * scale, wake.pid, wake.tid, wake.address) for wake in woken]
    rest = asleep - known * scale
    kinds = _rest_of(proc.kinds, {wake.kind: wake.share * scale for wake in woken}, rest) if known else proc.kinds
    stopped = proc.kinds.get(waits.STOPPED, 0.0) - kinds.get(waits.STOPPED, 0.0)  # by a debugger, say, who wakes it up again
    if stopped > 0.0:
        slept = tuple(dict.fromkeys(edge.kind for edge in found[2:]))  # no set: their order would change from run to run
        found, missing = take(found, stopped, slept, lambda edge: edge.pid not in (0, proc.info.ppid))
        kinds = kinds | {waits.STOPPED: kinds.get(waits.STOPPED, 0.0) + stopped - missing}
    edges = [edge for edge in found if edge.share > 0.0] + [Edge(kind, share, measured=False, ended=False) for kind, share in kinds.items()]
    return [edge._replace(kind=waits.NETWORK) if edge.kind == waits.DISK else edge for edge in edges] if proc.reads_remotely else edges


def _plain(wake: Wake, pid: int) -> Wake:
    """Threads of one process wake one another at futexes."""
    return wake._replace(kind=waits.LOCK) if wake.kind == waits.UNKNOWN and wake.pid == pid else wake


def _rest_of(kinds: dict[str, float], known: dict[str, float], rest: float) -> dict[str, float]:
    """What samples met beyond what wake-ups tell, scaled to the ``rest`` of the sleep."""
    beyond = {kind: max(0.0, share - known.get(kind, 0.0)) for kind, share in kinds.items()}
    total = sum(beyond.values())
    if rest <= policy.TRIFLE:
        return {}
    return {kind: share * rest / total for kind, share in beyond.items() if share > 0.0} if total > 0.0 else {waits.UNKNOWN: rest}


def take(
    edges: Iterable[Edge], share: float, kinds: tuple[str, ...], which: Callable[[Edge], bool] = lambda _: True
) -> tuple[list[Edge], float]:
    """The edges less ``share`` of those of ``kinds``, the first kinds rather; what could not be taken."""
    left = list(edges)
    for kind in kinds:
        for number, edge in enumerate(left):
            if edge.kind == kind and which(edge) and share > 0.0:
                taken = min(share, edge.share)
                left[number] = edge._replace(share=edge.share - taken)
                share -= taken
    return [edge for edge in left if edge.share > 0.0], max(0.0, share)
