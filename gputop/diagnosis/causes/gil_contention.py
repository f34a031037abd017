"""gil-contention: threads of one Python process take turns at its interpreter lock.

Costs: together they compute on one CPU, and the main thread, which launches the kernels, waits in line with the others.
Seen: rows gil x main, gil x worker. By the probe: several threads sleep at one futex in turn, for no longer than the process wants to run,
and as far as it runs freely. By samples (`owners.fights`): they wait for their turn, or run on at most `policy.GIL_CPUS` in all though more
are runnable, and no wait is longer than CPython's 5 ms (`sys.getswitchinterval`); or a main thread keeps the lock and the threads that load
for it starve (`owners.starves_others`).
Abstains: threads wait for CPUs, or sleep for long at a lock: then the work of its holder is the cause.
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, advice, percent
from gputop.diagnosis.facts.feeders import named_thread
from gputop.diagnosis.facts.proc import TURN
from gputop.diagnosis.graph import owners
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings.sentence import filled
from gputop.findings.verdict import Fix


def _is_trainers(job: WalkedJob) -> bool:
    return not job.workers or job.pools.get("main.gil", 0.0) > job.pools.get("data.gil", 0.0)


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    procs = [job.trainer] if _is_trainers(job) else [worker for worker in job.workers if owners.fights(worker)] or job.workers
    worst = max(procs, key=lambda proc: proc.others_run)
    met = worst.threads_met
    turns = met[TURN] / max(1, sum(met.values()))
    starves = not job.workers and owners.starves_others(worst)
    who, threads = filled("{} ({})", worst.role.label, worst.pid), filled("its other threads{}", named_thread(worst))
    main, others = f"{100 * worst.run:.0f}%", f"{100 * worst.others_run:.0f}%"
    detail = filled(
        "{}: {} run {} of the time, its main thread gets {}, together no more than one CPU: they share one GIL", who, threads, others, main
    )
    if starves:
        detail = filled(
            "{}: its main thread runs {} of the time, and {} wait {:.0f}% of theirs for the GIL", who, main, threads, 100 * turns
        )
    evidence = (
        percent("main_cpu_pct", worst.run, "on-CPU share of the main thread"),
        percent("other_threads_cpu_pct", worst.others_run, "on-CPU share of its other threads together"),
        percent("turn_pct", turns or None, "of the samples met these waiting for the GIL"),
        percent("lock_pct", None if starves else worst.kinds.get("lock", 0.0), "of its time asleep on a lock"),
    )
    stacks = Fix("See what the threads run", filled("gputop stacks {:pid}", worst.pid), look=True)
    if starves:
        stacks = Fix(
            "See what the main thread runs between the steps, and keep it short",
            filled("gputop stacks {:pid} --duration 10", worst.pid),
            look=True,
        )
    ways, of_trainer = advice.loading(job, facts), worst is job.trainer
    loads_already = of_trainer and bool(job.workers)  # processes do, so the trainer's other threads do other work
    hints = ways.interpreters if of_trainer else ways.single
    apart = advice.fixes(hints, advice.first_loaders(job, facts), in_words=loads_already)
    return Finding(detail, evidence, (stacks, *apart), (), tuple(proc.pid for proc in procs))


def _felt(job: WalkedJob) -> str:
    """The symptom. If workers have batches ready, the trainer's own threads keep other work than input from the GPU."""
    return "wait-heavy" if bool(job.workers) and job.is_supplied and _is_trainers(job) else "input-bound"


JUDGE = Judge("gil-contention", "input-bound", _tell, rows=(("gil", "main"), ("gil", "worker")), felt=_felt)
