"""What it is (worker-respawn): workers are made anew at each epoch.

Why it costs: the GPU waits until the new ones have imported, opened their files and loaded their first batches.
How it is seen: row birth x worker: from the births of a set of workers until steps are made again, less what these take with warm workers
(`measure.respawns`). Where no pace of warm workers is known, a rule takes the loss in the workers' first `policy.YOUNG_NS`, and
for `policy.RECENT_NS` after the last birth what the trainer does: it makes them.
When it abstains: fewer than half of the workers were born lately: one was replaced. All else that the trainer waits for has a lasting
cause.
"""

from __future__ import annotations

from collections import Counter

from gputop.diagnosis import policy
from gputop.diagnosis.causes import Claims, Finding, Judge, Rule
from gputop.diagnosis.measure.facts import Facts, JobFacts
from gputop.diagnosis.model import Evidence, Fix
from gputop.system.text import counted

_MAKING = ("main.computing", "main.child", "main.sync", "main.lock", "main.pipe", "main.poll", "main.unknown", "main.timer", "main.network")
_POOLS = ("data.starting", "data.ahead", "data.running", *_MAKING)


def _claim(job: JobFacts, facts: Facts) -> Claims:
    if 2 * len(job.births) < len(job.workers):
        return {}
    claims = {"data.starting": 1.0}
    if job.respawned is not None:
        return claims
    since_ns = facts.t_ns - job.births[-1] if job.births else policy.FORMER_NS
    if since_ns < policy.RECENT_NS:
        claims |= dict.fromkeys(_MAKING, 1.0)
    if since_ns < policy.FORMER_NS:
        claims |= {"data.ahead": 1.0, "data.running": policy.HALF}
    return claims


def _tell(job: JobFacts, facts: Facts) -> Finding:
    born, in_a_set = len(job.births), max(Counter(job.births).values(), default=0)  # those of a set are first seen together
    span = max(1.0, (facts.t_ns - job.births[0]) / 1e9) if job.births else 0.0
    longer = f", {job.respawn_s:.1f} s longer than for later ones" if job.respawn_s > 0.0 else ""
    detail = f"{counted(born, 'worker')} made anew in the last {span:.0f} s: each epoch, or each loader, makes its own and waits for their "
    took = "from the birth of a set of workers until steps are made again, beyond what these take later on, in the mean"
    evidence = (
        Evidence("workers_started", float(born), "", f"workers born after the first set, in {span:.0f} s"),
        Evidence("respawn_s", round(job.respawn_s, 2) if job.respawned is not None else None, "s", took),
    )
    workers = len(job.workers) or (in_a_set if in_a_set > 1 else born)
    keep = "Keep the workers over epochs, in one DataLoader that is made once (over all files or shards)"
    fixes = [Fix(keep, f"DataLoader(..., num_workers={workers}, persistent_workers=True)")]
    if any("--multiprocessing-fork" in worker.info.cmdline for worker in job.workers):
        fixes.append(Fix("Spawned workers import everything again; fork does not", 'DataLoader(..., multiprocessing_context="fork")'))
    return Finding(f"{detail}first batches{longer}", evidence, tuple(fixes), (), tuple(worker.pid for worker in job.workers))


JUDGE = Judge(
    "worker-respawn", "input-bound", _tell, rows=(("birth", "worker"),), rule=Rule(30, _POOLS, _claim), needs="the process list",
)  # fmt: skip
