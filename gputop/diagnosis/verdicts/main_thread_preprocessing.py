"""main-thread-preprocessing: the trainer itself loads, mixes or transforms between the steps, and the GPU waits meanwhile.

It gets the main thread's own computing (and its own sleeping) that no smaller rule explains; where there are no workers and other
threads of the trainer run, also what it waits for them. From /proc a spinning wait for the GPU
looks the same, so where that is possible (`states.may_spin`) it says so.
"""

from __future__ import annotations

from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.model import Evidence
from gputop.diagnosis.model import Fix
from gputop.diagnosis.states import may_spin
from gputop.diagnosis.verdicts import Claims
from gputop.diagnosis.verdicts import Finding
from gputop.diagnosis.verdicts import Judge

SLEEPS = 0.6
"""Part of the main thread's timer sleeps that is its own: a blocking wait for the GPU may sleep by a timer too."""
OTHERS = 0.25
"""CPUs that threads of the trainer must run on for its waits for locks to be waits for them."""
_POOLS = ("main.computing", "main.timer", "main.child", "main.lock")


def _claim(job: JobFacts, _facts: Facts) -> Claims:
    return {"main.computing": 1.0, "main.timer": SLEEPS, "main.child": 1.0, "main.lock": 1.0 if _loads_in_threads(job) else 0.0}


def _loads_in_threads(job: JobFacts) -> bool:
    return not job.workers and job.trainer.others_run >= OTHERS


def _does(job: JobFacts) -> str:
    """What the main thread is at for most of what it costs."""
    computes, waits = 100 * job.trainer.state.fractions.get("computing", 0.0), job.trainer.state.waits
    slept, waited = 100 * waits.get("timer", 0.0), 100 * waits.get("lock", 0.0)
    if _loads_in_threads(job) and waited > max(computes, slept):
        return f"waits {waited:.0f}% of the time for its own threads, which run on {job.trainer.others_run:.1f} CPUs"
    return f"computes {computes:.0f}% of the time between steps" if computes >= slept else f"sleeps by itself {slept:.0f}% of the time"


def _tell(job: JobFacts, _facts: Facts) -> Finding:
    ahead = sum(worker.state.fractions.get("ahead", 0.0) for worker in job.workers) / len(job.workers) if job.workers else None
    beside = "it has no workers" if ahead is None else f"its {len(job.workers)} workers are ahead {100 * ahead:.0f}% of the time"
    evidence = (
        Evidence("main_cpu_pct", round(100 * job.trainer.run, 1), "%", "on-CPU share of the trainer's main thread"),
        Evidence("workers_ahead_pct", None if ahead is None else round(100 * ahead, 1), "%", "of the workers' time with nothing to do"),
    )
    fixes = [Fix("See what it computes between the steps", f"gputop stacks {job.trainer.pid}")]
    if not job.workers:
        fixes.append(Fix("Load and transform in workers", "DataLoader(..., num_workers=4, persistent_workers=True)"))
    else:
        fixes.append(Fix("Move it into the Dataset or a collate_fn, which run in the workers", "DataLoader(..., collate_fn=...)"))
    detail = f"the trainer's main thread {_does(job)}; {beside}"
    if may_spin(job):
        detail += ", or spins in waits for the GPU: from /proc both look the same"
        fixes.insert(0, Fix("Tell the two apart: as root, waits for the GPU (.item(), .cpu()) are counted", "sudo gputop"))
    return Finding(detail, evidence, tuple(fixes), (), (job.trainer.pid,))


JUDGE = Judge("main-thread-preprocessing", "input-bound", 95, _POOLS, _claim, _tell, needs="schedstat")
