"""The states of a trainer and its workers, as shares of the window, by the edges of the wait-for graph. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.life import may_spin
from gputop.diagnosis.facts.proc import ProcFacts, knowing
from gputop.diagnosis.graph import owners
from gputop.diagnosis.graph.edges import READY, RUN, Edge
from gputop.diagnosis.graph.job import WalkedJob
from gputop.diagnosis.graph.waitgraph import Walk
from gputop.findings import policy
from gputop.findings.verdict import ProcState

_COUNTED = ("running", "computing", "runnable", "throttled", "disk", "memory", "stopped")  # states that are never guessed from sleeps


def with_states(walk: Walk) -> WalkedJob:
    """The job with the state of its trainer and of each worker, and its data wait."""
    job = replace(walk.job, data=walk.data, locked_by=walk.locked_by, trainer=knowing(walk.trainer, state=_of_trainer(walk)))
    return replace(job, workers=[knowing(worker, state=_of_worker(walk, job, worker)) for worker in job.workers])


def host_side_loss(job: WalkedJob) -> float:
    """Share of time in which the trainer neither computed nor, as far as one can see, waited for its GPU; a substitute for the loss if no
    GPU is measured."""
    fractions = job.trainer.state.fractions
    return max(0.0, 1.0 - fractions.get("computing", 0.0) - fractions.get("waiting-gpu", 0.0))


def _of_trainer(walk: Walk) -> ProcState:
    trainer, job = walk.trainer, walk.job
    mine = [edge for edge in walk.main if (edge.pid not in walk.feeds or walk.is_at_lock(edge)) and edge.pid not in job.feeders.pids]
    parts, slept = _parts(walk, trainer, mine)
    parts["computing"] = parts.pop("running")
    fed = sum(edge.share for edge in walk.main if edge.pid in job.feeders.pids and edge.pid not in walk.feeds)
    parts |= {"waiting-data": walk.data + fed, "waiting-gpu": walk.waited, "transfer": walk.copied}
    state = _state(trainer, parts, slept, 0.5 if may_spin(job) else 1.0, _unread(walk, trainer))
    sure = bool(walk.facts.wakes) or job.cuda.calls is not None
    inferred = not sure and state.state not in _COUNTED and trainer.kinds.get(waits.UNKNOWN, 0.0) > policy.HALF * trainer.asleep
    return replace(state, inferred=inferred)


def _of_worker(walk: Walk, job: WalkedJob, worker: ProcFacts) -> ProcState:
    ahead = walk.ahead(worker)
    parts, slept = _parts(walk, worker, walk.at_work(worker))
    kept = 1.0 - parts["running"] - ahead
    parts["ahead"] = ahead
    held = job.data >= policy.LOST and kept >= policy.QUARTER and ahead < policy.HALF
    starving = held if worker.seconds >= policy.WATCHED_S else None
    state = _state(worker, parts, slept, 1.0 if walk.facts.wakes or job.loader.is_torchs else 0.6, _unread(walk, worker))
    guessed = 0.0 if worker.unsampled else worker.kinds.get(waits.UNKNOWN, 0.0)
    unread = state.state not in _COUNTED and not walk.facts.wakes and 2 * guessed > sum(worker.kinds.values()) > 0.0
    starving = starving and state.state != "ahead"
    return replace(state, starving=starving, inferred=job.trainer.state.inferred if starving else unread)


def _unread(walk: Walk, proc: ProcFacts) -> float:
    """Share of the window that the process slept for reasons that neither wake-ups nor samples show."""
    return 0.0 if walk.facts.wakes else proc.kinds.get(waits.UNKNOWN, 0.0)


def _parts(walk: Walk, proc: ProcFacts, edges: Iterable[Edge]) -> tuple[dict[str, float], dict[str, float]]:
    """(word of a state -> share of the window, kind of wait -> its share of ``blocked``)."""
    parts, slept = {"running": 0.0}, dict[str, float]()
    for edge in edges:
        kind, share = edge.kind, edge.share
        if kind == RUN:
            stalled = min(share, proc.system) if walk.job.limits.pressed else 0.0
            parts["running"] += share - stalled
            word, share = "memory", stalled
        elif kind == READY:
            throttled = share * owners.throttled_part(walk.job.limits.throttled_periods)
            parts["throttled"] = parts.get("throttled", 0.0) + throttled
            word, share = "runnable", share - throttled
        elif kind == waits.DISK:
            word = "memory" if walk.is_short_of_memory(proc) else "disk"
        elif kind == waits.STOPPED:
            word = "stopped"
        else:
            word = "blocked"
            slept[kind] = slept.get(kind, 0.0) + share
        parts[word] = parts.get(word, 0.0) + share
    return parts, slept


def _state(proc: ProcFacts, parts: dict[str, float], slept: dict[str, float], confidence: float, unread: float) -> ProcState:
    total = sum(parts.values())
    if total <= 0.0:
        return ProcState(proc.pid, "blocked", False, {"blocked": 1.0}, 0.0)
    fractions = {word: share / total for word, share in parts.items() if share > 0.0}
    word = max(fractions, key=fractions.__getitem__)
    sure = min(confidence, 1.0 - 0.5 * min(1.0, unread))
    return ProcState(proc.pid, word, False, fractions, round(sure, 2), waits=slept)
