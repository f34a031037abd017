"""worker-respawn: workers are started again at each epoch.

Costs: the GPU waits until the new ones have imported, opened their files and loaded their first batches.
Seen: row birth x worker: from the births of a set of workers until steps are made again, less the time of these steps with warm workers
(`facts.respawns`). If the pace of warm workers is unknown: the loss in the workers' first `policy.YOUNG_NS`; for `policy.FORMER_NS` after
the last birth the trainer's own work, for it starts them, and its waits for workers that are ahead.
Abstains: fewer than half of the workers were born lately: one was replaced. All other waits of the trainer have a lasting cause.
"""

from __future__ import annotations

from collections import Counter

from gputop.diagnosis.causes import Finding, Judge, advice
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings.sentence import filled
from gputop.findings.verdict import Evidence, Fix
from gputop.system.text import counted


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    born, in_a_set = len(job.loader.births), max(Counter(job.loader.births).values(), default=0)  # workers of a set are first seen together
    span = max(1.0, (facts.t_ns - job.loader.births[0]) / 1e9) if job.loader.births else 0.0
    longer = filled(", {:.1f} s longer than for later ones", job.loader.respawn_s) if job.loader.respawn_s > 0.0 else ""
    detail = filled(
        "{} started in the last {:.0f} s: each epoch, or each loader, makes its own and waits for their ", counted(born, "worker"), span
    )
    took = "from the birth of a set of workers until steps are made again, beyond what these take later on, in the mean"
    evidence = (
        Evidence("workers_started", float(born), "", filled("workers born after the first set, in {:.0f} s", span)),
        Evidence("respawn_s", round(job.loader.respawn_s, 2) if job.loader.respawned is not None else None, "s", took),
    )
    workers = len(job.workers) or (in_a_set if in_a_set > 1 else born)
    fixes = [*advice.fixes(advice.loading(job, facts).kept, workers)]
    if job.loader.is_torchs and any("--multiprocessing-fork" in worker.info.cmdline for worker in job.workers):
        fixes.append(Fix("Spawned workers import everything again; fork does not", 'DataLoader(..., multiprocessing_context="fork")'))
    return Finding(filled("{}first batches{}", detail, longer), evidence, tuple(fixes), (), tuple(worker.pid for worker in job.workers))


JUDGE = Judge("worker-respawn", "input-bound", _tell, rows=(("birth", "worker"),))
