"""affinity: the job is held to some CPUs, these are full, and others idle.

Costs: its workers wait in run queues while other CPUs could run them.
Seen: rows mask x worker, mask x main: a wait for a CPU, where the job may use fewer than the host has, and outside them `policy.SOME` of a
CPU or more idles. They need not idle if the job was pinned by hand, to fewer than its cgroup gives it, and lacks `policy.SOME` of a CPU.
Row mask x feeder: the same of a program or service that the job waits for, by that one's own mask.
Abstains: its CPUs would suffice without strangers (cpu-contention), or as many idle inside.
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, percent
from gputop.diagnosis.facts.capacity import capacity, capacity_of_feeder, feeders_within, others_idle
from gputop.diagnosis.facts.facts import Capacity
from gputop.diagnosis.graph import shell
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import Evidence, Fix
from gputop.model.machine import parse_cpus
from gputop.system.text import clean, counted

MOST_NAMED = 3  # feeders that are named


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    way = next((claim.way for claim in job.claims if claim.cause == JUDGE.cause), None)
    if way is not None and way.leaf.holder == "feeder":
        late = way.trail[-1].pid
        if (cpus := capacity_of_feeder(job, facts, (late,))) is not None:
            return _tell_feeders(job, facts, late, cpus)
    return _tell_own(job, facts)


def _tell_feeders(job: WalkedJob, facts: WalkedFacts, late: int, cpus: Capacity) -> Finding:
    """The finding about programs and services that the job waits for: ``late`` and those that may use no other CPUs than it may."""
    held = feeders_within(job, facts, cpus.allowed)
    pids = [late, *(one.pid for one in held if one.pid != late)]
    ready = next((one.ready for one in job.members if one.pid == late), None)
    mine, all_cpus = shell.spell_cpus(cpus.allowed), shell.spell_cpus(cpus.host)
    names = joined(", ", [filled("{} ({})", clean(one.name), one.pid) for one in held[:MOST_NAMED]])
    evidence = (
        Evidence("allowed_cpus", float(len(cpus.allowed)), "CPUs", filled("Cpus_allowed_list {} of {}", mine, all_cpus)),
        Evidence("idle_outside_cpus", round(cpus.idle_outside, 2), "CPUs", "idle outside that list"),
        percent("runq_pct", ready, "runnable and not running"),
    )
    fixes = (
        Fix("Let what feeds the job use all CPUs now", shell.widening(all_cpus, pids)),
        Fix("See who pins it (taskset, a service's CPUAffinity=, a container's cpuset)", filled("taskset -pc {:pid}", late), look=True),
    )
    detail = filled(
        "{} waits for {}, held to CPU {} while {:.1f} of the other CPUs idle", job.trainer.role.label, names, mine, cpus.idle_outside
    )
    return Finding(detail, evidence, fixes, (), (job.trainer.pid, *pids))


def _tell_own(job: WalkedJob, facts: WalkedFacts) -> Finding:
    cpus, late = capacity(job, facts), job.workers or [job.trainer]
    share = sum(proc.runnable for proc in late) / len(late)
    mine, all_cpus = shell.spell_cpus(cpus.allowed), shell.spell_cpus(cpus.host)
    idle = round(cpus.idle_outside, 2) if others_idle(cpus) else None  # otherwise idle CPUs are not the reason given
    elsewhere = (
        filled("its cgroup has {}", shell.spell_cpus(cpus.given))
        if idle is None
        else filled("{:.1f} of the other CPUs idle", cpus.idle_outside)
    )
    own = parse_cpus(job.trainer.info.cpus_allowed) if job.trainer.info.cpus_allowed else cpus.allowed
    with_trainer = "trainer and " if own & cpus.host <= cpus.allowed else ""  # otherwise only its workers are pinned
    who = filled("{}{} are", with_trainer, counted(len(job.workers), "worker")) if job.workers else "the trainer is"
    evidence = (
        Evidence("allowed_cpus", float(len(cpus.allowed)), "CPUs", filled("Cpus_allowed_list {} of {}", mine, all_cpus)),
        Evidence("idle_outside_cpus", idle, "CPUs", "idle outside that list"),
        Evidence("lacking_cpus", round(cpus.lacking, 2) if idle is None else None, "CPUs", "it would lack with that list to itself"),
        percent("runq_pct", share, "runnable and not running"),
    )
    ask = filled("taskset -pc {:pid}; cat /proc/{:pid}/cpuset", late[0].pid, late[0].pid)
    fixes = (
        _widening(job, cpus, all_cpus),
        Fix("See who pins it (taskset, numactl, Slurm --cpus-per-task, a container's cpuset)", ask, look=True),
    )
    detail = filled("{} held to CPU {} and kept from it {:.0f}% of the time; {}", who, mine, 100 * share, elsewhere)
    return Finding(detail, evidence, fixes, (), tuple(proc.pid for proc in (job.trainer, *job.workers)))


def _widening(job: WalkedJob, cpus: Capacity, all_cpus: str) -> Fix:
    """Fix that widens the processes' CPU masks, and the cgroup's if that is the limit (the kernel intersects them)."""
    unpin = shell.widening(all_cpus, [proc.pid for proc in (job.trainer, *job.workers)])
    if not job.limits.cpuset or cpus.allowed != cpus.given:
        return Fix("Let the job use all CPUs now", unpin)
    below, file = "/cpuset" if job.limits.cgroup_version == 1 else "", '"/sys/fs/cgroup{:own}$(cat /proc/{:pid}/cpuset)/cpuset.cpus"'
    text = "Let its cgroup (and those above it that have as few) use all CPUs, and then its processes: libraries set masks of their own"
    return Fix(text, filled("echo {:cpus} > {:command}; {:command}", all_cpus, filled(file, below, job.trainer.pid), unpin))


JUDGE = Judge("affinity", "input-bound", _tell, rows=(("mask", "main"), ("mask", "worker"), ("mask", "feeder")))
