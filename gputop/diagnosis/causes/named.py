"""Collectives by name as evidence of causes that ranks have in common, where NCCL's Inspector writes them."""

from __future__ import annotations

from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings.sentence import filled
from gputop.findings.verdict import Evidence
from gputop.model.collective import CollectiveNow


def carried(job: WalkedJob, facts: WalkedFacts) -> tuple[Evidence, ...]:
    """The collective that takes the job's ranks here most of their time: its size, and time and bus bandwidth of the rank that waited least
    in it, for these are the wire's own. Empty where none is known."""
    ranks = [one for pid in sorted(job.ranks.kin or {job.trainer.pid}) for one in facts.collectives.get(pid, ()) if one.mean_us]
    most = max(ranks, key=lambda one: (one.mean_us or 0.0) * one.times, default=None)
    if most is None:
        return ()
    least = min((one for one in ranks if (one.comm, one.coll) == (most.comm, most.coll)), key=lambda one: one.mean_us or 0.0)
    return (
        Evidence("collective_bytes", _whole(least.size_bytes), "B", filled("is the message of {} of {}", least.coll, _ranks(least))),
        Evidence("collective_ms", _ms(least.mean_us), "ms", filled("is what {} takes the rank that waits least in it", least.coll)),
        Evidence("collective_busbw_gb_per_s", least.busbw_gb_per_s, "GB/s", filled("is its bus bandwidth there{}", _how(least))),
    )


def last_in(own: WalkedJob, facts: WalkedFacts) -> tuple[Evidence, ...]:
    """How often a rank came last in the collective in which the others wait for it most. Empty where that is not known."""
    known = [one for one in facts.collectives.get(own.trainer.pid, ()) if one.late_share is not None]
    most = max(known, key=lambda one: one.times * (one.late_share or 0.0) * (one.awaited_us or 0.0), default=None)
    if most is None:
        return ()
    last = filled("of {}, {} came last of all ranks", most.coll, own.trainer.role.label)
    return (
        Evidence("came_last_pct", round(100 * (most.late_share or 0.0), 1), "%", last),
        Evidence("awaited_ms", _ms(most.awaited_us), "ms", filled("is what the others then waited for it in {}", most.coll)),
    )


def _ranks(one: CollectiveNow) -> str:
    return filled("{:d} ranks", one.ranks) if one.ranks else "its ranks"


def _how(one: CollectiveNow) -> str:
    return filled(" ({} {})", one.algo, one.proto) if one.algo and one.proto else ""


def _ms(us: float | None) -> float | None:
    return None if us is None else round(us / 1e3, 3)


def _whole(count: int | None) -> float | None:
    return None if count is None else float(count)
