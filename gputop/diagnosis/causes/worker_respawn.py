"""worker-respawn: workers are made anew at each epoch, and the GPU waits until they have imported, opened and loaded.

It gets what the births cost: from each until steps are made again, less what these take with warm workers (`gputop.diagnosis.respawns`).
All else that the trainer waits for has a lasting cause. Where no pace of warm workers is known, it is the loss in the workers' first
`chain.YOUNG_NS` or in the trainer's making of them.
"""

from __future__ import annotations

from collections import Counter

from gputop.diagnosis.causes import Claims, Finding, Judge, Rule
from gputop.diagnosis.facts import Facts, JobFacts
from gputop.diagnosis.model import Evidence, Fix
from gputop.system.text import counted

RECENT_NS, WHILE_NS = 3_000_000_000, 5_000_000_000
"""Since the last birth: what the trainer does so soon after it is the making of workers. A window longer the loss is still that of their
start: while all are ahead the trainer waited for those that have already gone again, and half of the running counts as starting."""
_MAKING = ("main.computing", "main.child", "main.sync", "main.lock", "main.pipe", "main.poll", "main.unknown", "main.timer", "main.network")
_POOLS = ("data.starting", "data.ahead", "data.running", *_MAKING)


def _claim(job: JobFacts, facts: Facts) -> Claims:
    if 2 * len(job.births) < len(job.workers):  # one that was replaced
        return {}
    claims = {"data.starting": 1.0}
    if job.respawned is not None:
        return claims
    since_ns = facts.t_ns - job.births[-1] if job.births else WHILE_NS
    if since_ns < RECENT_NS:
        claims |= dict.fromkeys(_MAKING, 1.0)
    if since_ns < WHILE_NS:
        claims |= {"data.ahead": 1.0, "data.running": 0.5}
    return claims


def _tell(job: JobFacts, facts: Facts) -> Finding:
    born = len(job.births)
    span = max(1.0, (facts.t_ns - job.births[0]) / 1e9) if job.births else 0.0
    each = "each epoch, or each loader, makes its own and waits for their first batches"
    if job.respawn_s > 0.0:
        each += f", {job.respawn_s:.1f} s longer than for later ones"
    detail = f"{counted(born, 'worker')} made anew in the last {span:.0f} s: {each}"
    took = "from the birth of a set of workers until steps are made again, beyond what these take later on, in the mean"
    evidence = (
        Evidence("workers_started", float(born), "", f"workers born after the first set, in {span:.0f} s"),
        Evidence("respawn_s", round(job.respawn_s, 2) if job.respawned is not None else None, "s", took),
    )
    keep = "Keep the workers over epochs, in one DataLoader that is made once (over all files or shards)"
    fixes = [Fix(keep, f"DataLoader(..., num_workers={len(job.workers) or _in_a_set(job.births)}, persistent_workers=True)")]
    if any("--multiprocessing-fork" in worker.info.cmdline for worker in job.workers):
        fixes.append(Fix("Spawned workers import everything again; fork does not", 'DataLoader(..., multiprocessing_context="fork")'))
    return Finding(detail, evidence, tuple(fixes), (), tuple(worker.pid for worker in job.workers))


def _in_a_set(births: list[int]) -> int:
    """How many are made at a time: those of a set are first seen together. All, where they come one by one."""
    most = max(Counter(births).values(), default=0)
    return most if most > 1 else len(births)


JUDGE = Judge(
    "worker-respawn", "input-bound", _tell, rows=(("birth", "worker"),), rule=Rule(30, _POOLS, _claim), needs="the process list",
)  # fmt: skip
