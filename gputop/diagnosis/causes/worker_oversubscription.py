"""worker-oversubscription: the job has more runnable workers, threads in them or compilers (torch.compile's) than CPUs.

Costs: its own processes delay each other; by caches and context switches each is slower than fewer would be.
Seen: row cpu x own: waits for a CPU that no stranger, quota or mask explains, while the job fills the CPUs that it may use, or has
`policy.CROWD` workers for each CPU that wait longer than they run, as at the begin of an epoch (`owners.crowds`).
Abstains: the trainer alone waits behind workers that run freely (slow-transform), the hypervisor takes the CPUs (`policy.TENTH`), or gputop
itself does, as while it loads its probes (`policy.QUARTER`).
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, advice, percent
from gputop.diagnosis.facts.capacity import capacity, wanted
from gputop.diagnosis.graph import starting
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.owners import pool_of_threads
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import Evidence, Fix
from gputop.system.text import counted


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    cpus, procs = len(capacity(job, facts).allowed), job.workers or [job.trainer]
    share = sum(proc.runnable for proc in procs) / len(procs)
    crowd = (
        filled("{} and the trainer", counted(len(job.workers), "worker"))
        if job.workers
        else filled("the threads of {}", job.trainer.role.label)
    )
    evidence = (
        percent("runq_pct", share, "the workers' mean run-queue delay" if job.workers else "the main thread's run-queue delay"),
        Evidence("wanted_cpus", round(wanted(job), 1), "CPUs", filled("wanted by the job, of {} it may use", cpus)),
    )
    fixes: list[Fix] = []
    if any(pool_of_threads(worker) > policy.HALF for worker in job.workers):
        text = "Each worker runs several compute threads: give each one, also where it sets them itself (torch.set_num_threads, cv2)"
        if not advice.is_scripted(job, facts):
            text = "Each worker runs several compute threads: give each one, also where it sets them itself"
        fixes.append(Fix(text, "export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1"))
    elif pool_of_threads(job.trainer) > cpus:
        text = "Its own pool of threads is larger than its CPUs: give it as many as there are (torch.set_num_threads, cv2)"
        if not advice.is_scripted(job, facts):
            text = "Its own pool of threads is larger than its CPUs: give it as many as there are"
        fixes.append(Fix(text, filled("export OMP_NUM_THREADS={:d} MKL_NUM_THREADS={:d}", cpus, cpus)))
    if len(job.workers) > cpus:
        ways = advice.loading(job, facts)
        # Fewer are no faster where each one computes all the time; the trainer is, if it has batches and waits for a CPU behind them.
        delayed = job.trainer.runnable >= policy.LOST and job.is_supplied
        fixes += advice.fixes((*ways.fewer, *ways.cheaper) if delayed else (*ways.cheaper, *ways.fewer), max(1, cpus))
    if job.cpus.compiling < policy.QUARTER * cpus:
        detail = filled("{} share {} and wait for one another {:.0f}% of the time", crowd, counted(cpus, "CPU"), 100 * share)
        most = max((job.trainer, *job.workers), key=pool_of_threads)
        if pool_of_threads(most) > 1.0:
            pool = most.role.label, most.pid, pool_of_threads(most)
            detail += filled("; the other threads of {} ({}) alone want {:.1f} CPUs", *pool)
        return Finding(detail, evidence, tuple(fixes))
    least = filled("export TORCHINDUCTOR_COMPILE_THREADS={:d}", max(1, cpus // 4))
    compiled = Evidence("compile_cpus", round(job.cpus.compiling, 1), "CPUs", "on which torch.compile's processes ran")
    return Finding(
        filled("torch.compile's processes take {:.1f} of {} in the midst of the training; {} wait for one {:.0f}% of the time",
               job.cpus.compiling, counted(cpus, "CPU"), crowd, 100 * share),
        (*evidence, compiled), (*starting.FIXES, Fix("Have fewer of them compile at once", least), *fixes),
    )  # fmt: skip


JUDGE = Judge("worker-oversubscription", "input-bound", _tell, rows=(("cpu", "own"),))
