"""gil-contention: threads of one Python process take turns at its interpreter lock.

Threshold: a second thread runs for `OTHERS` of the time, the main thread waits for a lock while wanting to load, and all together
use hardly more than one CPU (`ONE_CPU`) although CPUs are not what they wait for. CPython's waits for the lock end after 5 ms
(`sys.getswitchinterval`) to ask for it anew, so that who sleeps for longer, or without a limit, waits for something else. A main
thread that waits for a pool of its own threads does: then these are the ones that take turns (`proc.IN_TURN`), on one CPU in all (`POOL`).
"""

from __future__ import annotations

from gputop.diagnosis.capacity import capacity
from gputop.diagnosis.causes import Finding, Judge
from gputop.diagnosis.causes.main_thread_preprocessing import MOST_WORKERS
from gputop.diagnosis.facts import Facts, JobFacts
from gputop.diagnosis.feeders import named_thread, with_workers
from gputop.diagnosis.model import Evidence, Fix
from gputop.diagnosis.proc import ALONE, GIL_S, LEAST, TURN, ProcFacts
from gputop.diagnosis.waits import LOCK

OTHERS, ONE_CPU, LOCKED = 0.25, 1.15, 0.15
READY = 1.8  # threads behind one GIL sleep until it is theirs; when more than this many are ready to run, they compute side by side
POOL = 0.7, 1.15  # CPUs of the pool
KEEPS, STARVED = 0.6, 0.5
"""Share of the window that a main thread runs, and share of the samples of its other threads that meet these waiting for their turn."""


def fights(proc: ProcFacts) -> bool:
    """Threads of it wait for one another, all on about one CPU."""
    return _main_fights(proc) or _pool_fights(proc)


def starves(proc: ProcFacts) -> bool:
    """Its main thread keeps the lock nearly all the time, and others, which load for it, mostly wait for their turn."""
    met = proc.threads_met
    return proc.run >= KEEPS and met[TURN] >= max(LEAST, STARVED * sum(met.values())) and proc.others_run >= ALONE


def _pool_fights(proc: ProcFacts) -> bool:
    """Its main thread waits for the others, of which one runs while some wait for their turn."""
    return proc.kinds.get("lock", 0.0) >= LOCKED and POOL[0] <= proc.others_run <= POOL[1] and proc.takes_turns


def _main_fights(proc: ProcFacts) -> bool:
    """Its main thread waits for a lock while its other threads run."""
    waits = proc.state.waits  # without those for its GPU
    locked = waits.get("lock", 0.0) + waits.get("unknown", 0.0)
    if locked < LOCKED or locked <= proc.runnable or proc.waits_its_turn is False:
        return False
    if proc.sleeps_long or (proc.sleeps_per_s is not None and locked > GIL_S * proc.sleeps_per_s):
        return False
    if 2 * proc.others_runnable > proc.others_run:
        return False  # a CPU is what those threads wait for
    run = proc.run - _may_spin(proc)
    ready = run + proc.runnable + proc.others_run + proc.others_runnable
    others = proc.others_run - proc.autograd_run  # these need the lock as little as the kernels that they launch
    return others >= OTHERS and run + proc.others_run <= ONE_CPU and ready <= READY


def _may_spin(proc: ProcFacts) -> float:
    """CPUs that its main thread may have burnt in waits for the GPU, without the GIL: these, less what it slept but on locks."""
    asleep = sum(share for kind, share in proc.kinds.items() if kind != LOCK)
    return min(proc.run, max(0.0, proc.state.fractions.get("waiting-gpu", 0.0) - asleep))


def _tell(job: JobFacts, facts: Facts) -> Finding:
    procs = [proc for proc in (*job.workers, job.trainer) if fights(proc)]
    if not procs:
        return _tell_of_starved(job.trainer, _apart(job, facts))
    worst = max(procs, key=lambda proc: proc.others_run)
    main, others = 100 * worst.run, 100 * worst.others_run
    shares = f"its other threads{named_thread(worst)} run {others:.0f}% of the time, its main thread gets {main:.0f}%"
    detail = f"{worst.role.label} ({worst.pid}): {shares}, together no more than one CPU: they share one GIL"
    evidence = (
        Evidence("main_cpu_pct", round(main, 1), "%", "on-CPU share of the main thread"),
        Evidence("other_threads_cpu_pct", round(others, 1), "%", "on-CPU share of its other threads together"),
        Evidence("lock_pct", round(100 * worst.kinds.get("lock", 0.0), 1), "%", "of its time asleep on a lock"),
    )
    fixes = (
        Fix("See what the threads run", f"gputop stacks {worst.pid}"),
        _apart(job, facts) if worst is job.trainer else Fix("Use more workers with one thread each"),
    )
    return Finding(detail, evidence, fixes, (), tuple(proc.pid for proc in procs))


def _tell_of_starved(proc: ProcFacts, apart: Fix) -> Finding:
    main, others, met = 100 * proc.run, 100 * proc.others_run, proc.threads_met
    turns = 100 * met[TURN] / max(1, sum(met.values()))
    detail = f"{proc.role.label} ({proc.pid}): its main thread runs {main:.0f}% of the time, and its other threads{named_thread(proc)} "
    detail += f"wait {turns:.0f}% of theirs for the GIL that it holds"
    evidence = (
        Evidence("main_cpu_pct", round(main, 1), "%", "on-CPU share of the main thread"),
        Evidence("other_threads_cpu_pct", round(others, 1), "%", "on-CPU share of its other threads together"),
        Evidence("turn_pct", round(turns, 1), "%", "of the samples met these waiting for the GIL"),
    )
    stacks = Fix("See what the main thread runs between the steps, and keep it short", f"gputop stacks {proc.pid} --duration 10")
    return Finding(detail, evidence, (stacks, apart), (), (proc.pid,))


def _apart(job: JobFacts, facts: Facts) -> Fix:
    workers = min(MOST_WORKERS, len(capacity(job, facts).allowed))
    load = "" if job.workers else with_workers(job, workers, persistent_workers=True)
    return Fix("Move the other threads' work into processes of their own", load)


def _felt(job: JobFacts) -> str:
    """Where workers have their batches ready it is not the input that a trainer's own threads keep from the GPU."""
    supplied = bool(job.workers) and job.is_supplied and fights(job.trainer)
    return "wait-heavy" if supplied else "input-bound"


JUDGE = Judge(
    "gil-contention", "input-bound", _tell, rows=(("gil", "main"), ("gil", "worker"),), needs="schedstat of every thread", felt=_felt,
)  # fmt: skip
