"""Tool `diagnose`: why training is slow: cause, culprits, evidence and fixes."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from gputop.agents.answer import SHORT, Answer, Asked, Next, Row, untrusted
from gputop.agents.look import ALL, NOW, Look, cause_of, look, symptom_of
from gputop.agents.places import Places
from gputop.findings.explanation import Episode
from gputop.findings.verdict import SEVERITIES, Fix, Requests
from gputop.fleet.jobs import LATE, WAITS, Job
from gputop.fleet.overview import Overview

SAYS = (
    "Why training is slow: symptom, cause, share of GPU time lost, culprits, evidence, fixes. symptom null: not enough was seen, ask "
    "again with more time. window: all, 60s or 5m (the last), or FROM..UNTIL as in 14:03..14:05; '' is all of a file, 60s of a machine."
)
MOST_NAMED, MOST_FIXES, MOST_CAUSES = 5, 4, 6  # of an answer
MOST_EVIDENCE = 18  # all that an incident of slower-than-usual has: what changed stands last
LOOKED_INTO = (
    "hung-worker", "lock-contention", "gil-contention", "main-thread-preprocessing", "slow-transform", "unexplained", "pause", "network-io",
    "output-blocked", "host-optimizer", "frontend-bound", "scheduler-bound",
)  # fmt: skip
"""Causes inside a process: its stacks show where."""


class DiagnoseQuestion(Asked):
    window: str = ""


class DiagnoseAnswer(Answer):
    """The verdict over the window, with the numbers of the cause's worst incident."""

    seconds: float | None = None
    symptom: str | None = None
    cause: str | None = None
    severity: str | None = None
    confidence: float | None = None
    headline_untrusted: str = ""
    detail_untrusted: str = ""
    lost_share: float | None = None
    lost_by_cause: dict[str, float] = {}
    speedup_max: float | None = None
    steps_per_s: float | None = None
    trainer_pid: int | None = None
    culprits: list[Row] = []
    victims: list[int] = []
    evidence_untrusted: list[str] = []
    request_way_untrusted: list[str] | UnsetType = UNSET  # of an inference server
    fixes: list[Row] = []
    next_test: Row | UnsetType = UNSET  # absent where the cause is clear
    what_if_untrusted: list[str] = []
    late_ranks: list[Row] = []
    incidents: int = 0
    also: list[Row] = []


def run(places: Places, asked: DiagnoseQuestion) -> DiagnoseAnswer:
    target = asked.target or places.default
    if places.has_many(asked.target):
        return places.hosts.fleet().used(lambda fleet: _of_worst_job(target, fleet))
    window = asked.window or (NOW if places.is_now(asked.target) else ALL)
    return _of_machine(target, look(places, asked.target, window), window)


def _of_machine(target: str, seen: Look, window: str) -> DiagnoseAnswer:
    """The answer for a stretch that was looked at."""
    said, ledger, incidents = seen.explanation.verdict, seen.explanation.ledger, seen.explanation.incidents
    cause, share = cause_of(said.cause), ledger.lost_share
    worst = max((one for one in incidents if one.cause == cause), key=lambda one: one.gpu_lost_s, default=None)
    others = _others(incidents, cause)
    by_cause = sorted(((one, part) for one, part in ledger.cause_shares.items() if cause_of(one)), key=lambda item: -item[1])
    return DiagnoseAnswer(
        target=target, seconds=seen.seconds, symptom=symptom_of(said.symptom), cause=cause,
        headline_untrusted=untrusted(said.headline), detail_untrusted=untrusted(said.detail),
        lost_share=None if share is None else round(share, 3), speedup_max=said.speedup_max, steps_per_s=said.steps_per_s,
        lost_by_cause={one: round(part, 3) for one, part in by_cause[:MOST_CAUSES] if part >= 0.001},
        what_if_untrusted=[untrusted(f"{one.change}: {one.factor} times as fast") for one in seen.explanation.what_if[:3]],
        incidents=len(incidents), also=[*map(_beside, others)],
        not_measured_untrusted=[untrusted(line) for line in seen.missing],
        next=_next(target, symptom_of(said.symptom), cause, window, others),
        **({} if worst is None else details(worst)),
    )  # fmt: skip


def _others(incidents: list[Episode], cause: str | None) -> list[Episode]:
    """The worst incidents that last and are not the verdict's: lost GPUs, memory that grows, workers that outlived their trainer."""
    lasting = [one for one in incidents if one.end_unix_s is None and one.cause != cause and one.severity != SEVERITIES[0]]
    return sorted(lasting, key=lambda one: -SEVERITIES.index(one.severity))[:MOST_NAMED]


def _beside(one: Episode) -> Row:
    return {"id": one.id, "severity": one.severity, "cause": cause_of(one.cause), "headline_untrusted": untrusted(one.headline)}


def details(one: Episode) -> dict[str, Any]:
    """Fields of the answer for an incident: severity, trainer, culprits, victims, evidence and fixes."""
    return {
        "severity": one.severity, "confidence": one.confidence, "trainer_pid": one.trainer_pid,
        "culprits": [
            {"pid": who.pid, "name_untrusted": untrusted(who.name, SHORT), "cpu_s": who.cpu_s}
            for who in sorted(one.culprits, key=lambda who: -(who.cpu_s or 0.0))[:MOST_NAMED]
        ],
        "victims": [who.pid for who in one.victims][: 2 * MOST_NAMED],
        "evidence_untrusted": [
            untrusted(f"{item.metric} = {'not measured' if item.value is None else item.value} {item.unit}: {item.text}")
            for item in one.evidence[:MOST_EVIDENCE]
        ],
        **({} if one.requests is None else _way(one.requests)),
        "fixes": [_fix(fix) for fix in one.fixes[:MOST_FIXES]],
        **({} if one.next_test is None else {"next_test": _fix(one.next_test)}),
    }  # fmt: skip


def _way(found: Requests) -> dict[str, Any]:
    """The way of a request through an inference server."""
    return {"request_way_untrusted": [untrusted(stage.line().strip()) for stage in found.way]}


def _fix(fix: Fix) -> Row:
    return {"text_untrusted": untrusted(fix.text), "command_untrusted": untrusted(fix.command), **({"look": True} if fix.look else {})}


def _next(target: str, symptom: str | None, cause: str | None, window: str, others: list[Episode]) -> Next | None:
    if symptom is None:
        return Next("diagnose", {"target": target, "window": ALL}) if window.strip() != ALL else None
    if cause in LOOKED_INTO:
        return Next("stacks", {"target": target})
    if cause == "straggler-rank":
        return Next("ranks", {"target": target})
    return Next("incidents", {"target": target, "window": window, "id": others[0].id}) if others and cause == "none" else None


def _of_worst_job(target: str, fleet: Overview) -> DiagnoseAnswer:
    """The answer for the job that loses most GPU time over all hosts."""
    silent = [untrusted(f"{row.host}: {row.sight.problem or row.says}") for row in fleet.rows if not row.sight.is_seen]
    if not fleet.jobs:
        return DiagnoseAnswer(target=target, not_measured_untrusted=silent, headline_untrusted="no training on these hosts")
    job = fleet.jobs[0]
    ledger, asked = fleet.books.ledgers.get(job.key), [requests for _, requests in fleet.servers_of(job)[:1]]
    return DiagnoseAnswer(
        target=target, symptom=symptom_of(job.symptom), cause=cause_of(job.cause), severity=job.severity,
        headline_untrusted=untrusted(job.headline), detail_untrusted=untrusted(job.detail),
        lost_share=None if job.lost is None else round(job.lost, 3), steps_per_s=job.steps_per_s,
        lost_by_cause={} if ledger is None or not ledger.gpu_total_s else {
            cause: round(lost_s / ledger.gpu_total_s, 3) for cause, lost_s in ledger.by_cause.items() if cause_of(cause)
        },
        culprits=[{"pid": one.pid, "name_untrusted": untrusted(one.name, SHORT), "cpu_s": one.cpu_s} for one in job.culprits[:MOST_NAMED]],
        late_ranks=late_rows(job), not_measured_untrusted=silent, next=_where(job),
        **(_way(asked[0]) if asked else {}),
    )  # fmt: skip


def late_rows(job: Job) -> list[Row]:
    """The ranks that the others wait for."""
    return [{"rank": one.number, "target": f"host:{one.host}", "pid": one.rank.pid, "gpus": one.rank.gpus} for one in job.late[:MOST_NAMED]]


def _where(job: Job) -> Next | None:
    """The host to look at: of the late rank, or of the one that loses most."""
    members = [*job.late, *(one for one in job.members if one.does not in (LATE, WAITS) and one.rank.cause != "none")]
    return Next("diagnose", {"target": f"host:{members[0].host}"}) if members else None
