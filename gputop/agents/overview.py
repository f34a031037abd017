"""Tool `overview`: what is there, and what cannot be seen."""

from __future__ import annotations

from gputop.agents.answer import SHORT, Answer, Asked, Next, Row, untrusted
from gputop.agents.look import SHORT as BRIEFLY
from gputop.agents.look import cause_of, follow, missing_of, summary_of
from gputop.agents.places import Places
from gputop.findings.explanation import Episode
from gputop.findings.verdict import ANY, SEVERITIES
from gputop.fleet.overview import SILENT, Overview, worst_first
from gputop.fleet.summary import Rank
from gputop.model.serving import ServingNow
from gputop.stream.snapshot import servers_of

SAYS = (
    "What is there: machine, GPUs, trainers, what cannot be measured and why. target, here and in all tools: 'live' (this machine), a "
    "recording's path, 'host:NAME', or 'hosts' (all together); '' is the server's default."
)
INFO = SEVERITIES[0]
MOST_GPUS = MOST_TRAINERS = MOST_NODES = MOST_SERVERS = 16  # of an answer


class OverviewQuestion(Asked):
    """Arguments of the tool, as every tool has them."""


class OverviewAnswer(Answer):
    """The overview of one machine, or of several hosts (``nodes``)."""

    machine_untrusted: str | None = None
    simulated_gpu: bool = False
    from_unix_s: float | None = None
    seconds: float | None = None
    cpus: int | None = None
    gpus: list[Row] = []
    trainers: list[Row] = []
    servers: list[Row] = []
    incidents: list[Row] = []
    nodes: list[Row] = []
    targets_untrusted: list[str] = []


def run(places: Places, asked: OverviewQuestion) -> OverviewAnswer:
    target = asked.target or places.default
    if places.has_many(asked.target):
        return _hosts(places, target)
    with places.recording(asked.target, seen_s=1.0) as recording:
        following = follow(recording, BRIEFLY)
        summary, header = summary_of(following), recording.header
        return OverviewAnswer(
            target=target, machine_untrusted=untrusted(header.host), simulated_gpu=header.simulated,
            from_unix_s=round(recording.unix_ns_of(recording.start_ns) / 1e9, 1),
            seconds=round((recording.end_ns - recording.start_ns) / 1e9, 1), cpus=header.cpus,
            gpus=[
                {"index": one.index, "name_untrusted": untrusted(one.name, SHORT), "util_pct": one.util_pct,
                 "memory_used_bytes": one.mem_used_bytes, "memory_total_bytes": one.mem_total_bytes, "power_w": one.power_w,
                 "lost": one.lost}
                for one in summary.gpus[:MOST_GPUS]
            ],
            trainers=[trainer_row(one) for one in summary.ranks[:MOST_TRAINERS]],
            servers=[server_row(one) for one in servers_of(following.engine, following.board)[:MOST_SERVERS]],
            incidents=[incident_row(one) for one in summary.incidents if one.end_unix_s is None and one.severity != INFO],
            truncated=max(len(summary.gpus) - MOST_GPUS, len(summary.ranks) - MOST_TRAINERS) > 0,
            not_measured_untrusted=[untrusted(line) for line in missing_of(recording, following.board)],
            targets_untrusted=[untrusted(one) for one in places.known()], next=Next("diagnose", {"target": target}),
        )  # fmt: skip


def trainer_row(rank: Rank) -> Row:
    """Row of a trainer."""
    return {
        "pid": rank.pid, "name_untrusted": untrusted(rank.program, SHORT), "rank": rank.rank, "gpus": rank.gpus, "workers": rank.workers,
        "phase": rank.phase if rank.phase in ANY else None, "steps_per_s": rank.steps_per_s, "lost_share_now": rank.lost,
    }  # fmt: skip


def server_row(one: ServingNow) -> Row:
    """Row of a model that an inference server serves; null is what its page does not have."""
    return {
        "pid": one.pid or None, "engine": one.family, "model_untrusted": untrusted(one.model, SHORT), "running": one.running,
        "waiting": one.waiting, "kv_used_pct": one.kv_used_pct, "generated_tokens_per_s": one.generated_tokens_per_s,
        "first_token_p50_s": one.first_token_p50_s, "first_token_p99_s": one.first_token_p99_s, "per_token_p50_s": one.per_token_p50_s,
        "not_read_untrusted": untrusted(one.missing.get("running", "")) or None,
    }  # fmt: skip


def incident_row(one: Episode) -> Row:
    """An incident that lasts; tool `incidents` has its evidence and fixes."""
    return {
        "severity": one.severity if one.severity in SEVERITIES else None, "cause": cause_of(one.cause), "gpu": one.gpu,
        "trainer_pid": one.trainer_pid, "headline_untrusted": untrusted(one.headline),
    }  # fmt: skip


def _hosts(places: Places, target: str) -> OverviewAnswer:
    return places.hosts.fleet().used(lambda fleet: _found(places, target, fleet))


def _found(places: Places, target: str, fleet: Overview) -> OverviewAnswer:
    rows = worst_first(fleet.rows)
    return OverviewAnswer(
        target=target, truncated=len(rows) > MOST_NODES,
        nodes=[
            {"target": f"host:{row.host}", "does": row.does, "says_untrusted": untrusted(row.says), "lost_share_now": row.lost,
             "gpus": len(row.sight.summary.gpus) if row.sight.summary else None}
            for row in rows[:MOST_NODES]
        ],
        trainers=[trainer_row(one.rank) for job in fleet.jobs for one in job.members][:MOST_TRAINERS],
        not_measured_untrusted=[untrusted(f"{row.host}: {row.sight.problem or row.says}") for row in rows if row.does == SILENT],
        targets_untrusted=[untrusted(one) for one in places.known()], next=Next("diagnose", {"target": target}),
    )  # fmt: skip
