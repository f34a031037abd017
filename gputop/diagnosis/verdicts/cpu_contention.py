"""cpu-contention: other processes run on the CPUs while workers or the trainer are runnable.

Threshold: by the sched probe strangers stood for `BEHIND` of the job's waits; without it, they hold `TAKEN` of its CPUs. Else
the job is in its own way (worker-oversubscription). Run-queue delay while CPUs idle is not contention.
"""

from __future__ import annotations

from gputop.diagnosis.capacity import TAKEN
from gputop.diagnosis.capacity import capacity
from gputop.diagnosis.capacity import wanted
from gputop.diagnosis.facts import Capacity
from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.facts import Taker
from gputop.diagnosis.model import Culprit
from gputop.diagnosis.model import Evidence
from gputop.diagnosis.model import Fix
from gputop.diagnosis.verdicts import Claims
from gputop.diagnosis.verdicts import Finding
from gputop.diagnosis.verdicts import Judge

BEHIND = 0.35
OF_LACK = 0.25
"""What strangers take, of all that the job lacks: the rest it would lack without them."""


def _claim(job: JobFacts, facts: Facts) -> Claims:
    return {"data.runnable": 1.0, "main.runnable": 1.0} if _blames_others(job, capacity(job, facts)) else {}


def _blames_others(job: JobFacts, cpus: Capacity) -> bool:
    """Strangers hold the CPUs the job wanted, and it does not want far more than there are anyway."""
    if cpus.preempted_by_others is not None:
        return cpus.preempted_by_others >= BEHIND
    if cpus.taken < TAKEN * len(cpus.allowed):
        return False
    surplus = max(0.0, wanted(job) - len(cpus.allowed))
    return cpus.taken >= OF_LACK * (cpus.taken + surplus)


def culprits(facts: Facts) -> list[Taker]:
    """Those who matter among the takers: by whom they kept waiting where the probe saw it, else by CPU time."""
    ranked = sorted(facts.takers, key=lambda taker: (-taker.preempted_s, -taker.cores))
    most = ranked[0].cores if ranked else 0.0
    return [taker for taker in ranked if taker.cores >= 0.2 * most][:5]


def _tell(job: JobFacts, facts: Facts) -> Finding:
    cpus, takers = capacity(job, facts), culprits(facts)
    late = [worker for worker in job.workers if worker.state.fractions.get("runnable", 0.0) >= 0.2]
    share = 100 * sum(worker.runnable for worker in late) / len(late) if late else 100 * job.trainer.runnable
    taken = sum(taker.cores for taker in takers)
    names = ", ".join(f"{taker.name} ({taker.pid})" for taker in takers)
    subject = f"{len(late)} of {len(job.workers)} workers" if late else job.trainer.role.label
    detail = f"{subject} runnable but not running {share:.0f}% of the time; {names} took {taken:.1f} of {len(cpus.allowed)} cores"
    evidence = [
        Evidence("runq_pct", round(share, 1), "%", f"{subject} wanted a CPU and had none"),
        Evidence("taken_cores", round(taken, 2), "cores", f"{names} ran on {taken:.1f} of {len(cpus.allowed)} CPUs"),
    ]
    if cpus.preempted_by_others is not None:
        share_behind = round(100 * cpus.preempted_by_others, 1)
        evidence.append(Evidence("preempted_by_others_pct", share_behind, "%", "of these waits were behind processes outside the job"))
    return Finding(
        detail, tuple(evidence), tuple(_fixes(takers)),
        tuple(Culprit(taker.pid, taker.name, round(taker.cores * facts.seconds, 3)) for taker in takers),
        tuple(worker.pid for worker in late) or (job.trainer.pid,),
    )  # fmt: skip


def _fixes(takers: list[Taker]) -> list[Fix]:
    return [
        Fix(f"Let {taker.name} ({taker.pid}) run only when nobody else wants the CPU", f"chrt --idle --all-tasks --pid 0 {taker.pid}")
        for taker in takers
    ]


JUDGE = Judge("cpu-contention", "input-bound", 50, _claim, _tell, needs="schedstat, /proc/PID/stat of the others")
