"""The object that `gputop --host LIST --once --json` prints: nodes and jobs; None is not measured."""

from __future__ import annotations

import time

from msgspec import Struct

from gputop.findings.verdict import Culprit, Ledger, page_of
from gputop.fleet.jobs import Job, JobRank
from gputop.fleet.overview import NodeRow, Overview
from gputop.fleet.summary import Summary
from gputop.fleet.wires import RankLink
from gputop.stacks.nccl import NcclReport

SCHEMA = 1


class FleetNode(Struct, frozen=True):
    """A node of several."""

    host: str
    state: str  # ``up`` or ``silent``
    reason: str | None
    since_s: float
    age_s: float | None
    skew_s: float | None
    notes: tuple[str, ...]
    does: str
    says: str
    lost: float | None
    summary: Summary | None


class FleetVerdict(Struct, frozen=True):
    """The verdict on a job of several nodes."""

    symptom: str
    cause: str
    severity: str
    headline: str
    detail: str
    skewed: bool
    help_url: str  # of the page about the cause; empty: there is none


class Late(Struct, frozen=True):
    """A rank that the others wait for."""

    rank: int
    host: str
    pid: int
    gpus: list[int]


class FleetRank(Struct, frozen=True):
    """A rank of a job."""

    rank: int
    host: str
    pid: int
    does: str
    lost: float | None
    steps_per_s: float | None
    cause: str


class FleetLink(Struct, frozen=True):
    """A connection between two ranks that the others wait for; a null is not seen."""

    from_rank: int
    from_host: str
    from_interface: str
    from_address: str
    to_rank: int | None
    to_host: str | None
    to_interface: str | None
    to_address: str
    busy: float
    sent_bytes_per_s: float
    retrans_per_s: float


class FleetJob(Struct, frozen=True):
    """A job of several nodes."""

    key: str
    name: str
    size: int
    hosts: list[str]
    identity: dict[str, str]
    verdict: FleetVerdict
    late: list[Late]
    culprits: tuple[Culprit, ...]
    lost: float | None
    ranks: list[FleetRank]
    hangs: bool
    nccl: NcclReport | None
    missing: tuple[tuple[int, int], ...]  # (first, last) of ranks
    silent: tuple[str, ...]
    steps_per_s: float | None
    apart: tuple[int, ...]
    ledger: Ledger | None
    links: list[FleetLink]


class Fleet(Struct, frozen=True):
    """Output of `gputop --host LIST --once --json`."""

    schema: int
    unix_s: float
    nodes: list[FleetNode]
    jobs: list[FleetJob]


def fleet(seen: Overview) -> Fleet:
    """The fleet as it stands."""
    return Fleet(
        SCHEMA, round(time.time(), 3), [_node(row) for row in seen.rows], [_job(job, seen.books.ledgers.get(job.key)) for job in seen.jobs]
    )


def _node(row: NodeRow) -> FleetNode:
    sight = row.sight
    return FleetNode(
        row.host, "up" if sight.is_seen else "silent", sight.problem or None, round(sight.since_s, 1),
        round(sight.age_s, 2) if sight.summary else None, round(sight.skew_s, 3) if sight.summary else None, sight.notes, row.does,
        row.says, row.lost, sight.summary,
    )  # fmt: skip


def _job(job: Job, ledger: Ledger | None) -> FleetJob:
    return FleetJob(
        key=job.key, name=job.name, size=job.size, hosts=job.hosts, identity=job.identity,
        verdict=FleetVerdict(job.symptom, job.cause, job.severity, job.headline, job.detail, job.skewed, page_of(job.cause)),
        late=[Late(one.number, one.host, one.rank.pid, one.rank.gpus) for one in job.late], culprits=job.culprits, lost=job.lost,
        ranks=[_rank(one) for one in job.members], hangs=job.hangs, nccl=job.report, missing=job.missing, silent=job.silent,
        steps_per_s=job.steps_per_s, apart=job.apart, ledger=ledger, links=[_link(one) for one in job.links],
    )  # fmt: skip


def _link(one: RankLink) -> FleetLink:
    sender, receiver = one.sender, one.receiver
    return FleetLink(
        from_rank=sender.rank, from_host=sender.host, from_interface=sender.wire.interface, from_address=sender.wire.own,
        to_rank=receiver.rank if receiver else None, to_host=receiver.host if receiver else None,
        to_interface=receiver.wire.interface if receiver else None, to_address=sender.wire.peer,
        busy=sender.wire.busy, sent_bytes_per_s=sender.wire.sent_bytes_per_s, retrans_per_s=sender.wire.retrans_per_s,
    )  # fmt: skip


def _rank(one: JobRank) -> FleetRank:
    return FleetRank(one.number, one.host, one.rank.pid, one.does, one.lost, one.rank.steps_per_s, one.rank.cause)
