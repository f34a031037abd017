"""cpu-contention: other processes run on the CPUs while workers or the trainer are runnable.

Threshold: strangers hold `TAKEN` of the job's CPUs, and these are as much as it lacks without them (`MOST_OF_LACK`). Where by the
sched probe they stood for `BEHIND` of its waits, less will do. Else the job is in its own way (worker-oversubscription). A hog may
stand on one CPU only, so that on the other the job's threads wait behind one another: that, too, is the hog's doing.
"""

from __future__ import annotations

from gputop.diagnosis import shell
from gputop.diagnosis.capacity import IDLE, TAKEN, beside, capacity
from gputop.diagnosis.causes import Finding, Judge
from gputop.diagnosis.facts import Capacity, Facts, JobFacts, Taker
from gputop.diagnosis.feeders import AT_WORK
from gputop.diagnosis.model import Evidence, Fix
from gputop.diagnosis.proc import ProcFacts
from gputop.diagnosis.takers import LEAST_CORES, MOST, blame, names_of
from gputop.model.roles import TORCH_WORKER, program_name
from gputop.system.text import counted

BEHIND = 0.35
OF_LACK, MOST_OF_LACK = 0.25, 0.5  # what strangers take, of all that the job lacks; the former where the probe saw it wait behind them
KEPT, KEPT_NS, WAITED = 0.7, 5_000_000_000, 0.5
"""Share of the window in which the workers of a trainer that seems to start want a CPU, how long after they were first seen, and share
in which it waits for them."""
INIT, KTHREADD, WORTH = 1, 2, 0.1
"""Nobody is to put aside the first process of a machine or container, nor one that takes less than this part of the greediest's share."""


def blames_others(cpus: Capacity) -> bool:
    """Strangers hold the CPUs the job wanted, and it does not want far more than there are anyway."""
    if (cpus.preempted_by_others or 0.0) >= BEHIND and cpus.strangers_part >= OF_LACK:
        return True
    return _take_much(cpus) and cpus.strangers_part >= MOST_OF_LACK


def _take_much(cpus: Capacity) -> bool:
    """Those who take less are to blame for what it waited behind them, and no more."""
    return cpus.taken >= TAKEN * len(cpus.allowed)


def keeps_from_starting(job: JobFacts, facts: Facts) -> bool:
    """All workers were born a while ago, their trainer waits for them, and strangers have their CPUs."""
    kept = all(worker.runnable >= KEPT and facts.t_ns - worker.began_ns >= KEPT_NS for worker in job.workers)
    return bool(job.workers) and kept and job.data >= WAITED and blames_others(capacity(job, facts))


def culprits(job: JobFacts, facts: Facts) -> list[Taker]:
    """Those who matter among the takers: by whom they kept waiting where the probe saw it, else by CPU time."""
    others = [*beside(job, facts, capacity(job, facts).allowed), *_rivals(job, facts)]
    ranked = sorted(others, key=lambda taker: (-taker.preempted_s, -taker.cores))
    most = ranked[0].cores if ranked else 0.0
    return [taker for taker in ranked if taker.cores >= 0.2 * most][:MOST]


def _rivals(job: JobFacts, facts: Facts) -> list[Taker]:
    """Processes of other trainings on this host."""
    own = job.kin | {job.trainer.pid}
    strangers = [other for other in facts.jobs if other.trainer.pid not in own]
    procs = [(proc, other.trainer) for other in strangers for proc in (other.trainer, *other.workers)]
    return [_rival(proc, trainer, own, facts) for proc, trainer in procs if proc.cores >= LEAST_CORES]


def _rival(proc: ProcFacts, trainer: ProcFacts, own: frozenset[int], facts: Facts) -> Taker:
    """A worker is told by its trainer's program: one that was spawned has none of its own in its command line."""
    program, name = program_name(trainer.info), proc.role.label
    if proc.role.kind == "worker":
        name = f"{TORCH_WORKER} of {program}" if proc.info.comm == TORCH_WORKER else f"{program} {name}"
    kept_s = sum(facts.behind.get(pid, {}).get(proc.pid, 0.0) for pid in own)
    return Taker(proc.pid, name, proc.cores, kept_s, {}, proc.older.utime_ns + proc.older.stime_ns, proc.info)


def _tell(job: JobFacts, facts: Facts) -> Finding:
    cpus, takers = capacity(job, facts), culprits(job, facts)
    late = [worker for worker in job.workers if worker.state.fractions.get("runnable", 0.0) >= 0.2]
    subject, share = _who_is_late(job, late)
    taken = min(float(len(cpus.allowed)), max(cpus.taken, sum(taker.cores for taker in takers)))
    if cpus.pinned:
        taken = cpus.taken  # the takers ran on CPUs that it may not use, too
    names = _names(takers, cpus)
    detail = f"{subject} runnable but not running {share:.0f}% of the time; {names} took {taken:.1f} of {len(cpus.allowed)} cores"
    evidence = [
        Evidence("runq_pct", round(share, 1), "%", f"{subject} wanted a CPU and had none"),
        Evidence("taken_cores", round(taken, 2), "cores", f"{names} ran on {taken:.1f} of {len(cpus.allowed)} CPUs"),
    ]
    if cpus.preempted_by_others is not None:
        share_behind = round(100 * cpus.preempted_by_others, 1)
        evidence.append(Evidence("preempted_by_others_pct", share_behind, "%", "of these waits were behind processes outside the job"))
    return Finding(
        detail, tuple(evidence), (*_fixes(takers, job, facts), *_moving(late, cpus, facts)),
        blame(takers, facts.seconds),
        tuple(worker.pid for worker in late) or (job.trainer.pid,),
    )  # fmt: skip


def _who_is_late(job: JobFacts, late: list[ProcFacts]) -> tuple[str, float]:
    """In words, and for how many per cent of the time: workers, else the trainer, or threads or programs for which that one waits."""
    if late:
        return f"{len(late)} of {counted(len(job.workers), 'worker')}", 100 * sum(worker.runnable for worker in late) / len(late)
    trainer, label = job.trainer, job.trainer.role.label
    behind = {f"threads of {label}": trainer.others, f"programs of {label}": trainer.programs}
    found = {who: waited / (ran + waited) for who, (ran, waited) in behind.items() if ran + waited >= AT_WORK}
    found[label] = trainer.runnable
    return max(((who, 100 * part) for who, part in found.items()), key=lambda one: one[1])


def _names(takers: list[Taker], cpus: Capacity) -> str:
    """Whoever lived too shortly to be told by name, or is one too many, comes last."""
    names = names_of(takers)
    unseen = cpus.taken - sum(taker.cores for taker in takers)
    rest = "others" if len(takers) == MOST else "short-lived processes"
    return ", ".join([*names, rest] if unseen > max(0.2, 0.5 * cpus.taken) or not names else names)


def _fixes(takers: list[Taker], job: JobFacts, facts: Facts) -> list[Fix]:
    free = [taker for taker in takers if taker.pid != INIT and not _is_of_kernel(taker)]
    most = max((taker.cores for taker in free), default=0.0)
    worth = [taker for taker in free if taker.cores >= WORTH * most]
    if not worth:
        return [Fix("See what is started again and again: a build, cron, a health check", "ps -eo etimes,ppid,args --sort=etimes | head")]
    return shell.fixes(worth, job.trainer.info, job.cgroup_version, facts.host.autogroup)


def _moving(late: list[ProcFacts], cpus: Capacity, facts: Facts) -> list[Fix]:
    """Those held to the strangers' CPUs while others of the job's own idle."""
    pids, given = [worker.pid for worker in late if _idle_elsewhere(worker, cpus, facts) >= IDLE], shell.spell_cpus(cpus.given)
    if len(pids) == 1:
        return [Fix("Or let it run on the CPUs that idle, too", f"taskset -apc {given} {pids[0]}")]
    return [Fix("Or let them run on the CPUs that idle, too", shell.widening(given, pids))] if pids else []


def _idle_elsewhere(worker: ProcFacts, cpus: Capacity, facts: Facts) -> float:
    """CPUs of the job's that idle and that the worker may not use; 0 where its mask is not known."""
    own = shell.parse_cpus(worker.info.cpus_allowed) & cpus.host
    return sum(1.0 - facts.host.busy.get(cpu, 1.0) for cpu in cpus.given - own) if own else 0.0


def _is_of_kernel(taker: Taker) -> bool:
    """A thread of the kernel's works for others: to slow it down helps nobody."""
    return taker.info is not None and KTHREADD in (taker.pid, taker.info.ppid)


JUDGE = Judge("cpu-contention", "input-bound", _tell, rows=(("cpu", "stranger"),), needs="schedstat, /proc/PID/stat of the others")
