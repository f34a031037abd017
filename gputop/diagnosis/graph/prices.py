"""Prices of mechanisms on the GPU's own side of a loss: each with its share of the window, the dearest first.

The wait-for graph books the whole loss to the holders of the host's time. A part of it is known to be something else: a price has the
leaf, an upper bound of its share of the window, and the pools from which the share is taken. The rest stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from gputop.diagnosis.facts import transport, wire
from gputop.diagnosis.facts.feeders import threads_at_work
from gputop.diagnosis.graph import gpuside, pausing, placement, starting, stuck
from gputop.diagnosis.graph.edges import Leaf, LeafTrail
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.waitgraph import Walk, pools_of
from gputop.findings import policy


class Price(NamedTuple):
    """The part of a loss that belongs to a mechanism."""

    leaf: Leaf
    share: float  # of the window, at most
    takes: Callable[[str], bool]  # whether a pool (`gputop.diagnosis.graph.waitgraph.Walk.pools`) may be reduced for it
    measured: bool = False  # its share is measured apart from the others': it takes that before them


def put_down(walk: Walk, job: WalkedJob, facts: WalkedFacts) -> WalkedJob:
    """Move booked shares to the leaves that have prices; return the job with its ``pools`` and ``way`` from before."""
    parts = walk.parts
    pools = pools_of(parts)
    most = max((pool for pool in pools if not pool.startswith("gpu.")), key=pools.__getitem__, default="")
    way = max(((share, way) for pool, share, way in parts if pool == most), key=lambda one: one[0], default=(0.0, LeafTrail()))[1]
    job = replace(job, pools=pools, way=way)
    walk.see(job, facts)
    prices = [price for find in _PRICES for price in find(walk)]
    for leaf, price, takes, _ in sorted((one for one in prices if one.share > 0.0), key=lambda one: (not one.measured, -one.share)):
        total = sum(share for pool, share, _ in parts if takes(pool))
        if total <= 0.0:
            continue
        part = min(1.0, price / total)
        taken = [part * share if takes(pool) else 0.0 for pool, share, _ in parts]
        for (_, _, way), share in zip(parts, taken, strict=True):
            if share > 0.0:
                walk.rebook(way, share, leaf)
        parts = [(pool, share - less, way) for (pool, share, way), less in zip(parts, taken, strict=True)]
    _move_of_copies(walk)
    return job


def _move_of_copies(walk: Walk) -> None:
    """Move from the copies, whatever found them, what they take because a link is narrower than it could be, and of the rest what they take
    because they come from another NUMA node."""
    ways = [(share, way) for _, share, way in walk.parts if way.leaf == _COPIES]
    if not ways:
        return
    whole = sum(share for share, _ in ways)
    narrowed = min(whole, gpuside.narrowed(walk.job))
    for leaf, part in ((Leaf("copy", "narrow"), narrowed), (Leaf("copy", "far"), placement.remote(walk.job, whole - narrowed))):
        for share, way in ways:
            walk.rebook(way, part * share / whole, leaf)


_AWAITED = ("main.lock", "main.pipe", "main.poll", "main.network", "main.unknown", "main.timer")  # waits that may never end


def _unanswered(walk: Walk) -> Iterator[Price]:
    """Price of a wait for a process that does not answer: it has no end, and other activity does not shorten it."""
    if stuck.is_unanswered(walk.job):
        yield Price(Leaf("nobody", "worker"), inf, lambda pool: pool.startswith("data.") or pool in _AWAITED)


_ASLEEP_AT_RANKS = ("network", "poll", "lock", "pipe", "unknown", "sync", "timer")
_AT_RANKS = frozenset(("gpu.peer", "gpu.light", *(f"main.{kind}" for kind in _ASLEEP_AT_RANKS)))
"""Waits of a main thread, or of its GPU, that may be for other ranks: in a collective on the host, or in a kernel on the GPU."""


def _on_wire(walk: Walk) -> Iterator[Price]:
    """Price of the wire between ranks: as long as their data are on it, they wait. It is a fallback's where a faster way lies idle."""
    at_ranks = sum(share for pool, share, _ in walk.parts if pool in _AT_RANKS)
    waited = wire.busy_share(walk.job, walk.facts.wires, at_ranks)
    found = transport.fallback(walk.job, walk.facts) if waited > 0.0 or walk.job.gpu_use.waste.get("light") else None
    if found is not None and found.used is None:
        light = sum(share for pool, share, _ in walk.parts if pool == "gpu.light")
        yield Price(Leaf("wire", "fallback"), light - gpuside.launches(walk.job), {"gpu.light"}.__contains__)
    else:
        yield Price(Leaf("wire", "ranks" if found is None else "fallback"), waited, _AT_RANKS.__contains__, measured=True)


def _other_rank(walk: Walk) -> Iterator[Price]:
    """Price of the late or absent rank: in a collective all wait for the last, so its delay is lost to all, whatever they do but wait for
    data on the wire."""
    if walk.job.ranks.absent:
        yield Price(Leaf("rank", "gone"), inf, lambda _: True)
    elif walk.job.ranks.straggler is not None and not pausing.waits_for_first(walk.job, walk.facts):
        yield Price(Leaf("rank", "late"), inf, lambda _: True)


_MADE = ("computing", "child", "sync", "lock", "pipe", "poll", "unknown", "timer", "network")
_MAKING = frozenset({"data.ahead", "data.running", *(f"main.{kind}" for kind in _MADE)})  # activity of a trainer that starts workers


def _born(walk: Walk) -> Iterator[Price]:
    """Price of replaced workers if the pace of warm ones is unknown: all the trainer's time is theirs for a while."""
    births, least_ns = walk.job.loader.births, walk.facts.t_ns - policy.FORMER_NS
    if births and births[-1] > least_ns and walk.job.loader.respawned is None and 2 * len(births) >= len(walk.job.workers):
        yield Price(Leaf("birth", "worker"), inf, _MAKING.__contains__)


_FOR_CPU = ("main.runnable", "main.behind")  # waits for a CPU: its own, or a feeder's


def _paused(walk: Walk) -> Iterator[Price]:
    """Price of a pause: time in which the trainer does something else, unless a worker owes it a batch or its own threads hold it up."""
    pools = walk.job.pools
    owed = sum(share for pool, share in pools.items() if pool.startswith("data.") and pool != "data.ahead")
    if max(owed, pools.get("main.gil", 0.0)) < policy.LOST:
        may_pause = {pool for pool in pools if pool in ("data.ahead", "gpu.peer") or (pool.startswith("main.") and pool not in _FOR_CPU)}
        yield Price(Leaf("pause", "main"), pausing.paused(walk.job, walk.facts), may_pause.__contains__)


_BETWEEN = ("computing", "sync", "timer", "driver", "poll", "lock", "unknown", "transfer")
_OF_MAIN = frozenset(f"main.{kind}" for kind in _BETWEEN)  # activity of a main thread between two calls for its GPU


def _turns(walk: Walk) -> Iterator[Price]:
    """Price of waits for the GPU: each ends with a GPU that has nothing to do."""
    if gpuside.copying(walk.job, pinned=True) >= policy.HALF * (walk.job.idle or 0.0) > 0.0:
        return  # the sleeps are for its copies
    ready = {"main.runnable"} if gpuside.wakes_per_s(walk.job) >= policy.SYNCS_PER_S else set[str]()
    yield Price(Leaf("turn", "main"), gpuside.turns(walk.job), (_OF_MAIN | ready).__contains__)


_COPIES = Leaf("copy", "link")
_ASLEEP = ("main.sync", "main.timer", "main.driver", "main.poll", "main.unknown", "main.lock")


def _copies(walk: Walk) -> Iterator[Price]:
    """Prices of bytes over the link: for that time the main thread copies them itself, or sleeps, or waits for its GPU."""
    job, leaf = walk.job, _COPIES
    if job.idle is not None and job.cuda.calls is None and job.cuda.sampled is None:
        yield Price(leaf, gpuside.copying(job, pinned=False), {"main.computing"}.__contains__)
    if job.idle is not None and job.trainer.still_s < policy.STUCK_S:
        yield Price(leaf, gpuside.copying(job, pinned=True), _ASLEEP.__contains__)


def _launches(walk: Walk) -> Iterator[Price]:
    """Price of launches: each kernel costs the host the same, however short it is."""
    backward = {"main.lock"} if threads_at_work(walk.job) else set[str]()
    yield Price(Leaf("launch", "main"), gpuside.launches(walk.job), ({"gpu.light", "main.computing"} | backward).__contains__)


_UPDATING = frozenset(("main.computing", "main.lock"))  # the main thread's work, and its waits for threads of its own


def _updates(walk: Walk) -> Iterator[Price]:
    """Price of an optimizer on the host: it computes between two copies."""
    busy = sum(share for pool, share, _ in walk.parts if pool in _UPDATING)
    yield Price(Leaf("step", "host"), gpuside.updating(walk.job, busy), _UPDATING.__contains__)


_LOADED = frozenset(("main.disk", "data.disk"))  # waits for weights on a disk
_FETCHED = _LOADED | {"main.network", "data.network"}  # or on another machine
_ASKED = frozenset(f"main.{kind}" for kind in ("pipe", "network", "poll", "lock", "unknown", "timer", "child", "unasked"))
"""Waits of an engine's main thread that may be for requests."""


def _of_server(walk: Walk) -> Iterator[Price]:
    """Prices of what keeps an inference engine that has requests, by its server's own metrics."""
    server = walk.facts.servers.get(walk.job.trainer.pid)
    if server is not None and server.is_loading:
        yield Price(Leaf("load", "engine"), inf, (_FETCHED if starting.fetches_by_network(walk.job) else _LOADED).__contains__)
    if server is None or not server.is_asked:
        return
    if server.lacks_memory:
        yield Price(Leaf("kv", "engine"), inf, (_ASKED | {"gpu.light", "main.computing"}).__contains__)
        return
    if walk.job.ranks.straggler is not None:
        return  # its other workers, and what asks them, wait for that one
    if server.full_front is not None:
        yield Price(Leaf("front", "server"), inf, _ASKED.__contains__)
    elif (core := server.scheduler) is not None and core.pid != walk.trainer.pid and server.running and core.is_full:
        yield Price(Leaf("schedule", "engine"), inf, _ASKED.__contains__)  # of several GPUs: a worker waits for the next batch
    computing = sum(share for pool, share, _ in walk.parts if pool == "main.computing")
    for_gpu = gpuside.launches(walk.job) + gpuside.turns(walk.job)  # what these take of it has prices of its own
    yield Price(Leaf("schedule", "engine"), computing - for_gpu, {"main.computing"}.__contains__)


_PRICES = (_of_server, _on_wire, _other_rank, _unanswered, _born, _paused, _updates, _turns, _copies, _launches)
