"""affinity: the job is held to some CPUs, these are full, and others idle.

Threshold: its CPUs are fewer than the host's, and `capacity.IDLE` of a CPU or more idles outside them while workers are runnable. They
need not idle where the job was pinned by hand, to fewer CPUs than its cgroup has, and lacks `capacity.LACKING` of one. All that unless the
CPUs it is held to would do for it, if strangers left them (cpu-contention).
"""

from __future__ import annotations

from gputop.diagnosis import shell
from gputop.diagnosis.capacity import capacity, others_idle
from gputop.diagnosis.causes import Finding, Judge
from gputop.diagnosis.facts import Capacity, Facts, JobFacts
from gputop.diagnosis.model import Evidence, Fix
from gputop.system.text import counted


def _tell(job: JobFacts, facts: Facts) -> Finding:
    cpus = capacity(job, facts)
    procs = [job.trainer, *job.workers]
    share = 100 * sum(proc.runnable for proc in job.workers or procs) / max(1, len(job.workers))
    mine, all_cpus = shell.spell_cpus(cpus.allowed), shell.spell_cpus(cpus.host)
    elsewhere = f"{cpus.idle_outside:.1f} of the other CPUs idle" if others_idle(cpus) else f"its cgroup has {shell.spell_cpus(cpus.given)}"
    who = "the trainer is" if not job.workers else f"{_with_trainer(job, cpus)}{counted(len(job.workers), 'worker')} are"
    detail = f"{who} held to CPU {mine} and kept from it {share:.0f}% of the time; {elsewhere}"
    idle = round(cpus.idle_outside, 2) if others_idle(cpus) else None  # else it is not for that that the job is said to be held
    evidence = (
        Evidence("allowed_cpus", float(len(cpus.allowed)), "CPUs", f"Cpus_allowed_list {mine} of {all_cpus}"),
        Evidence("idle_outside_cpus", idle, "CPUs", "idle outside that list"),
        Evidence("lacking_cpus", round(cpus.lacking, 2) if idle is None else None, "CPUs", "it would lack with that list to itself"),
        Evidence("runq_pct", round(share, 1), "%", "runnable and not running"),
    )
    fixes = (
        _widening(job, cpus, all_cpus),
        Fix("And find who pins it (taskset, numactl, Slurm --cpus-per-task, a container's cpuset)", _ask((job.workers or procs)[0].pid)),
    )
    return Finding(detail, evidence, fixes, (), tuple(proc.pid for proc in procs))


def _with_trainer(job: JobFacts, cpus: Capacity) -> str:
    """Only its workers may be pinned."""
    own = shell.parse_cpus(job.trainer.info.cpus_allowed) if job.trainer.info.cpus_allowed else cpus.allowed
    return "trainer and " if own & cpus.host <= cpus.allowed else ""


def _widening(job: JobFacts, cpus: Capacity, all_cpus: str) -> Fix:
    """Of its processes' masks, or of the cgroup's where that is what holds it: the kernel cuts any mask down to that one."""
    if job.cpuset and cpus.allowed == cpus.given:
        file = f'"/sys/fs/cgroup{"/cpuset" if job.cgroup_version == 1 else ""}$(cat /proc/{job.trainer.pid}/cpuset)/cpuset.cpus"'
        text = "Let its cgroup (and those above it that have as few) use all CPUs, and then its processes: torch sets their own masks"
        return Fix(text, f"echo {all_cpus} > {file}; {_unpinning(job, all_cpus)}")
    return Fix("Let the job use all CPUs now", _unpinning(job, all_cpus))


def _unpinning(job: JobFacts, all_cpus: str) -> str:
    return shell.widening(all_cpus, (proc.pid for proc in (job.trainer, *job.workers)))


def _ask(pid: int) -> str:
    """Its own mask, and the cgroup whose mask may be the narrower one."""
    return f"taskset -pc {pid}; cat /proc/{pid}/cpuset"


JUDGE = Judge("affinity", "input-bound", _tell, rows=(("mask", "main"), ("mask", "worker"),), needs="Cpus_allowed_list, /proc/stat")
