"""Pauses: whether, and how long, a trainer deliberately gives its GPU no work, for a save, an evaluation, a log. Pure."""

from __future__ import annotations

from math import inf

from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob, late_job
from gputop.findings import policy


def paused(job: WalkedJob, facts: WalkedFacts) -> float:
    """Upper bound of the share of the window in which the trainer gave no work to a GPU that it could have fed; 0 without a pause. A server
    that has requests under way by its own metrics, or a front at a full core, does not pause, however long its GPU rests."""
    server = facts.servers.get(job.trainer.pid)
    if server is not None and (server.running or server.full_front is not None):
        return 0.0
    if waits_for_first(job, facts):
        return inf
    most_s, ahead = policy.HALF * (job.idle or 0.0) * facts.seconds, is_ahead(job)
    alone = not (job.workers or job.feeders.pids) and breaks_s(job) >= most_s > 0.0  # without workers it is unknown whether it could go on
    if (ahead or alone) and _saves(job):
        return inf
    found = [_rest_s(job) if _rest_s(job) >= policy.PAUSE_S else 0.0]
    if ahead:
        found += [breaks_s(job), away_s(job)]
        found += [min(gpu.dips_s for gpu in job.gpus)] if job.gpus and waits_for_programs(job) else []
    return max(found) / facts.seconds if max(found) >= most_s > 0.0 else 0.0


def away_s(job: WalkedJob) -> float:
    """Seconds in which the trainer gave its GPU some work, but not the batches that its workers have ready."""
    asks_nobody = is_ahead(job) and min(worker.rest_s for worker in job.workers) >= policy.PAUSE_S
    sunk_s = min((gpu.sunk_s for gpu in job.gpus), default=0.0) if asks_nobody else 0.0
    return max(sunk_s, job.pauses.away_s if job.pauses.away_s >= policy.PAUSE_S else 0.0)


def waits_for_first(job: WalkedJob, facts: WalkedFacts) -> bool:
    """True if the job is one of the ranks that wait while the first rank saves, or does something else (an evaluation) for all after steady
    work; also true for that first rank."""
    late = late_job(job, facts)
    if job.ranks.straggler is None:
        return False
    ranks = [other.trainer.role.rank or 0 for other in facts.jobs if other.trainer.pid in late.ranks.kin]
    first = late.trainer.role.rank == min(ranks, default=0)
    return (_writes_weights(late) and (first or is_ahead(late))) or (first and _rests_long(late, facts))


def is_ahead(job: WalkedJob) -> bool:
    """True if the job has workers, and they wait for the trainer."""
    return bool(job.workers) and sum(worker.ahead for worker in job.workers) >= policy.MOST * len(job.workers)


def waits_for_programs(job: WalkedJob) -> bool:
    """True if the trainer has waited for programs that ran while its GPU idled: git, a scorer. Ended workers do not count."""
    return job.trainer.children >= policy.AT_WORK * (job.idle or 0.0) > 0.0 and not job.loader.births


def breaks_s(job: WalkedJob) -> float:
    """Seconds in breaks, by the GPUs' readings or by missing CUDA calls."""
    return max(min((gpu.breaks_s for gpu in job.gpus), default=0.0), job.pauses.quiet_s)


def _rests_long(job: WalkedJob, facts: WalkedFacts) -> bool:
    """True if one rest of the GPUs, after steady work, holds most of the loss."""
    return _rest_s(job) >= max(policy.PAUSE_S, policy.HALF * (job.idle or 0.0) * facts.seconds)


def _rest_s(job: WalkedJob) -> float:
    return min((gpu.stretch_s for gpu in job.gpus), default=0.0)


def _saves(job: WalkedJob) -> bool:
    """True if the trainer saves in short pauses that readings of a second each do not show."""
    waits = job.trainer.state.fractions.get("disk", 0.0) >= policy.LITTLE
    return _writes_weights(job) and (waits or _rest_s(job) * 1e9 >= policy.BREAK_NS)


def _writes_weights(job: WalkedJob) -> bool:
    return (job.trainer.write_bytes_per_s or 0.0) >= policy.SAVED_BYTES_PER_S
