"""worker-oversubscription: the job has more runnable workers (or threads in them) than CPUs, and they wait for one another.

It gets the run-queue delay that no stranger, quota or affinity explains, while the CPUs the job may use are full; or full by turns,
as where an epoch begins: `CROWD` workers for each CPU, which wait for one for longer than they run, and nobody else who takes any.
"""

from __future__ import annotations

from gputop.diagnosis.capacity import capacity, wanted
from gputop.diagnosis.causes import Finding, Judge
from gputop.diagnosis.facts import Facts, JobFacts
from gputop.diagnosis.feeders import with_workers
from gputop.diagnosis.model import Evidence, Fix
from gputop.system.text import counted

CROWD = 2
STOLEN = 0.1  # of the job's CPUs
WATCHED = 0.25  # of the job's CPUs, from which what gputop takes itself is no trifle


def _tell(job: JobFacts, facts: Facts) -> Finding:
    cpus = capacity(job, facts)
    procs = job.workers or [job.trainer]
    share = 100 * sum(proc.runnable for proc in procs) / len(procs)
    crowd = f"{counted(len(job.workers), 'worker')} and the trainer" if job.workers else f"the threads of {job.trainer.role.label}"
    detail = f"{crowd} share {counted(len(cpus.allowed), 'CPU')} and wait for one another {share:.0f}% of the time"
    whose = "the workers' mean" if job.workers else "the main thread's"
    evidence = (
        Evidence("runq_pct", round(share, 1), "%", f"{whose} run-queue delay"),
        Evidence("wanted_cpus", round(wanted(job), 1), "CPUs", f"wanted by the job, of {len(cpus.allowed)} it may use"),
    )
    return Finding(detail, evidence, tuple(_fixes(job, len(cpus.allowed))))


def _fixes(job: JobFacts, cpus: int) -> list[Fix]:
    fixes = []
    if any(worker.others_run + worker.others_runnable > 0.5 for worker in job.workers):
        text = "Each worker runs several compute threads: give each one, also where it sets them itself (torch.set_num_threads, cv2)"
        fixes.append(Fix(text, "export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1"))
    if len(job.workers) > cpus:
        fixes.append(Fix(f"No more workers than the {cpus} CPUs it may use", with_workers(job, max(1, cpus))))
    return fixes


JUDGE = Judge("worker-oversubscription", "input-bound", _tell, rows=(("cpu", "own"),), needs="schedstat, /proc/stat")
