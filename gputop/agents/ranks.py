"""Tool `ranks`: the ranks of each job, and which ranks the others wait for."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gputop.agents.answer import SHORT, Answer, Asked, Next, Row, untrusted
from gputop.agents.diagnose import late_rows
from gputop.agents.look import NOW, cause_of, follow, jobs_of, missing_of, summary_of, symptom_of
from gputop.agents.places import LIVE, Places
from gputop.fleet.jobs import LATE, TROUBLED, Job, JobRank, divided
from gputop.model.parallel import DIMENSIONS

SAYS = "Jobs and their ranks at the end of the window: what each does (late: the others wait for it), lost share, pace. Late ones first."
_FIRST = (LATE, TROUBLED)
MOST_JOBS, MOST_RANKS = 8, 256  # of an answer


class RanksQuestion(Asked):
    window: str = NOW
    limit: Annotated[int, Meta(ge=1, le=MOST_RANKS)] = 16

    def wider(self) -> Row:
        """A limit that lists all ranks that may be listed; empty if this is it."""
        return {"limit": MOST_RANKS} if self.limit < MOST_RANKS else {}


class RanksAnswer(Answer):
    jobs: list[Row] = []
    ranks: list[Row] = []


def run(places: Places, asked: RanksQuestion) -> RanksAnswer:
    target = asked.target or places.default
    if places.has_many(asked.target):
        fleet = places.hosts.fleet()
        jobs, missing = fleet.jobs, [f"{row.host}: {row.sight.problem or row.says}" for row in fleet.rows if not row.sight.is_seen]
    else:
        with places.recording(asked.target) as recording:
            following = follow(recording, asked.window)
            jobs, missing = jobs_of(LIVE, summary_of(following)), missing_of(recording, following.board)
    members = sorted(
        ((one, i) for i, job in enumerate(jobs) for one in job.members),
        key=lambda item: (_FIRST.index(item[0].does) if item[0].does in _FIRST else len(_FIRST), item[1], item[0].number),
    )
    late = next((one for one, _ in members if one.does == LATE), None)
    at = f"host:{late.host}" if late and places.has_many(asked.target) else target
    return RanksAnswer(
        target=target, truncated=len(members) > asked.limit or len(jobs) > MOST_JOBS,
        jobs=[_job(one, i) for i, one in enumerate(jobs[:MOST_JOBS])],
        ranks=[_rank(one, i, places.has_many(asked.target)) for one, i in members[: asked.limit]],
        not_measured_untrusted=[untrusted(line) for line in missing],
        next=Next("stacks", {"target": at, "pids": [late.rank.pid]}) if late else None,
    )  # fmt: skip


def _job(job: Job, number: int) -> Row:
    parallel = divided(job)
    return {
        "job": number, "name_untrusted": untrusted(job.name, SHORT), "size": job.size, "seen": len(job.members),
        "symptom": symptom_of(job.symptom), "cause": cause_of(job.cause), "lost_share_now": job.lost, "steps_per_s": job.steps_per_s,
        "headline_untrusted": untrusted(job.headline), "detail_untrusted": untrusted(job.detail),
        "parallel": None if parallel is None else {"dp": parallel.dp, **{name: getattr(parallel, name) for name in DIMENSIONS}},
        "late": late_rows(job), "missing_ranks": [list(pair) for pair in job.missing],
    }  # fmt: skip


def _rank(one: JobRank, job: int, has_many: bool) -> Row:
    found = {
        "job": job, "rank": one.number, "pid": one.rank.pid, "does": one.does, "lost_share_now": one.lost,
        "steps_per_s": one.rank.steps_per_s, "cause": cause_of(one.rank.cause), "gpus": one.rank.gpus,
        "workers": one.rank.workers, "starving_workers": one.rank.starving,
        "ways_untrusted": untrusted(one.rank.ways, SHORT),
    }  # fmt: skip
    return {**found, "target": f"host:{one.host}"} if has_many else found
