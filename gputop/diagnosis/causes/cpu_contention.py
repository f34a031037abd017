"""cpu-contention: other processes run on the CPUs while workers or the trainer are runnable.

Costs: a batch that needs 10 ms of a CPU is done when the CPU is free again, and the GPU waits for it.
Seen: row cpu x stranger: the share of each wait for a CPU that strangers cause (`owners.strangers_share`): all, if they hold `policy.LOST`
of the job's CPUs and `policy.HALF` of what it lacks; less suffices if by the sched probe they caused `policy.SOME` of its waits. A hog on
one CPU may make the job's threads wait behind one another on the others: that is its effect, too.
Abstains: the job wants more CPUs than exist anyway (worker-oversubscription), for example by its own pools of threads
(`owners.pools_crowd`), or is limited by a mask (affinity) or a quota.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from gputop.diagnosis.causes import Finding, Judge, percent
from gputop.diagnosis.facts.capacity import beside, capacity, wanted
from gputop.diagnosis.facts.facts import Capacity, Taker
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.facts.takers import MOST, blame, names_of
from gputop.diagnosis.graph import owners, shell
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings import policy
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import Evidence, Fix
from gputop.model.identity import in_pod
from gputop.model.machine import parse_cpus
from gputop.model.roles import TORCH_WORKER, program_name
from gputop.system.text import counted

INIT, KTHREADD = 1, 2  # pids: no fix touches the first process of a machine or container, or the kernel's threads


def keeps_from_starting(job: WalkedJob, facts: WalkedFacts) -> bool:
    """True if all workers were born a while ago, their trainer waits for them, and strangers occupy their CPUs."""
    kept = all(worker.runnable >= policy.MOST and facts.t_ns - worker.began_ns >= policy.FORMER_NS for worker in job.workers)
    return bool(job.workers) and kept and job.data >= policy.HALF and owners.strangers_share(job, capacity(job, facts)) > 0.0


def culprits(job: WalkedJob, facts: WalkedFacts) -> list[Taker]:
    """The takers that matter, by the waits they caused if the probe saw it, else by CPU time."""
    others = [*beside(job, facts, capacity(job, facts).allowed), *_rivals(job, facts)]
    ranked = sorted(others, key=lambda taker: (-taker.preempted_s, -taker.cores))
    return [taker for taker in ranked if taker.cores >= policy.FIFTH * ranked[0].cores][:MOST]


def _rivals(job: WalkedJob, facts: WalkedFacts) -> list[Taker]:
    """Processes of other trainings on this host. A worker is named after its trainer's program, for a spawned one has no command line of
    its own."""
    own, found = job.ranks.kin | {job.trainer.pid}, []
    for other in facts.jobs:
        for proc in (other.trainer, *other.workers) if other.trainer.pid not in own else ():
            program, name = program_name(other.trainer.info), proc.role.label
            if proc.role.kind == "worker":
                name = f"{TORCH_WORKER} of {program}" if proc.info.comm == TORCH_WORKER else f"{program} {name}"
            kept_s = sum(facts.behind.get(pid, {}).get(proc.pid, 0.0) for pid in own)
            if proc.cores >= policy.HARDLY:
                found.append(Taker(proc.pid, name, proc.cores, kept_s, {}, proc.older.utime_ns + proc.older.stime_ns, proc.info))
    return found


MOST_ASKED = 1024  # CPUs that a pod is advised to ask for, where the host's are not known


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    cpus, takers = capacity(job, facts), culprits(job, facts)
    late = [worker for worker in job.workers if worker.state.fractions.get("runnable", 0.0) >= policy.FIFTH]
    subject, share = _late_part(job, late)
    taken = min(float(len(cpus.allowed)), max(cpus.taken, sum(taker.cores for taker in takers)))
    if cpus.pinned:
        taken = cpus.taken  # the takers also ran on CPUs that the job may not use
    names = _names(takers, cpus)
    evidence = (
        percent("runq_pct", share, filled("{} wanted a CPU and had none", subject)),
        Evidence("taken_cores", round(taken, 2), "cores", filled("{} ran on {:.1f} of {} CPUs", names, taken, len(cpus.allowed))),
        percent("preempted_by_others_pct", cpus.preempted_by_others, "of these waits were behind processes outside the job"),
    )
    detail = filled(
        "{} runnable but not running {:.0f}% of the time; {} took {:.1f} of {} cores", subject, 100 * share, names, taken, len(cpus.allowed)
    )
    victims = tuple(worker.pid for worker in late) or (job.trainer.pid,)
    return Finding(detail, evidence, (*_fixes(takers, job, facts), *_moving(late, cpus, facts)), blame(takers, facts.seconds), victims)


def _late_part(job: WalkedJob, late: list[ProcFacts]) -> tuple[str, float]:
    """(name, share of the time runnable) of what is late: workers, else the trainer, or the threads or programs that it waits for."""
    if late:
        return f"{len(late)} of {counted(len(job.workers), 'worker')}", sum(worker.runnable for worker in late) / len(late)
    trainer, label = job.trainer, job.trainer.role.label
    behind = {f"threads of {label}": trainer.others, f"programs of {label}": trainer.programs}
    found = {who: waited / (ran + waited) for who, (ran, waited) in behind.items() if ran + waited >= policy.AT_WORK}
    return max((found | {label: trainer.runnable}).items(), key=lambda one: one[1])


def _names(takers: list[Taker], cpus: Capacity) -> str:
    """Names of the takers. Processes that lived too shortly to be named, or are one too many, come last."""
    names = names_of(takers)
    unseen = cpus.taken - sum(taker.cores for taker in takers)
    rest = "others" if len(takers) == MOST else "short-lived processes"
    return joined(", ", [*names, rest] if unseen > max(policy.FIFTH, policy.HALF * cpus.taken) or not names else names)


def _fixes(takers: list[Taker], job: WalkedJob, facts: WalkedFacts) -> list[Fix]:
    others = _trainings_of(takers, job, facts)
    theirs = {pid for other in others for pid in _pids_of(other, facts)}
    strangers = [taker for taker in takers if taker.pid not in theirs]
    shared = [*_sharing([job, *others], facts)] if others else []
    found = shared if others and not strangers else [*shared, *_yielding(strangers, job, facts)]
    return [*(one for one in found if not one.look), *_asking(job, facts), *(one for one in found if one.look)]


def _asking(job: WalkedJob, facts: WalkedFacts) -> Iterator[Fix]:
    """The fix for a job in a pod: Kubernetes gives it weight by what it asks for."""
    if in_pod(job.trainer.info):
        server = facts.servers.get(job.trainer.pid)
        parts = 0.0 if server is None else sum(one.cores + one.ready for one in server.parts)
        cpus = max(1, min(facts.host.cpus or MOST_ASKED, ceil(max(wanted(job), parts))))
        text = "In the pod's spec, ask for as many whole CPUs as it wants; limited to as many, by the static CPU manager, they are its own"
        yield Fix(text, filled("kubectl set resources ... --requests=cpu={:d} --limits=cpu={:d}", cpus, cpus))


def _trainings_of(takers: list[Taker], job: WalkedJob, facts: WalkedFacts) -> list[WalkedJob]:
    """The other trainings with GPUs among the takers. Lower priority would cost their GPUs what this one gains."""
    own, pids = job.ranks.kin | {job.trainer.pid}, {taker.pid for taker in takers}
    others = (other for other in facts.jobs if other.gpus and other.trainer.pid not in own)
    return [other for other in others if not pids.isdisjoint(_pids_of(other, facts))]


def _pids_of(job: WalkedJob, facts: WalkedFacts) -> list[int]:
    """Pids of a training and of what feeds it, the trainer's first."""
    own = [job.trainer.pid, *(worker.pid for worker in job.workers)]
    return own + sorted(pid for pid, trainer in facts.family.items() if trainer == job.trainer.pid and pid not in own)


def _sharing(jobs: list[WalkedJob], facts: WalkedFacts) -> Iterator[Fix]:
    """Fixes for trainings that take each other's CPUs, of which none is to lose what another gains: CPUs of its own for each, or fewer
    processes of each."""
    masks = [capacity(job, facts).allowed for job in jobs]
    shared = sorted(frozenset.intersection(*masks))
    uids = {job.trainer.info.uid for job in jobs}
    names = joined(", ", [filled("{} ({})", job.trainer.role.label, job.trainer.pid) for job in jobs])
    agreed = "" if len(uids) == 1 else ", once their users agree"
    if len(shared) >= len(jobs):
        counts, cpus = shell.divided([wanted(job) for job in jobs], len(shared)), iter(shared)
        command = ""
        for job, mask, count in zip(jobs, masks, counts, strict=True):
            own = mask - {*shared} | {next(cpus) for _ in range(count)}
            holds = shell.widening(shell.spell_cpus(own), _pids_of(job, facts))
            command = holds if not command else filled("{:command}; {:command}", command, holds)
        text = filled("Give each of {} CPUs of its own, as many as it wants or an equal part{}", names, agreed)
        yield Fix(text, command if len(uids) == 1 else shell.as_root(command))
    yield Fix(filled("Or start each of {} with fewer workers and threads, together no more than the {} shared CPUs", names, len(shared)))


def _yielding(takers: list[Taker], job: WalkedJob, facts: WalkedFacts) -> list[Fix]:
    free = [taker for taker in takers if taker.pid != INIT and (taker.info is None or KTHREADD not in (taker.pid, taker.info.ppid))]
    most = max((taker.cores for taker in free), default=0.0)
    worth = [taker for taker in free if taker.cores >= policy.TENTH * most]
    if not worth:
        look = "See what is started again and again: a build, cron, a health check"
        return [
            Fix("Start it with less priority, or at another time", "systemd-run --scope -p CPUWeight=1 nice -n 19 ..."),
            Fix(look, "ps -eo etimes,ppid,args --sort=etimes | head", look=True),
        ]
    return shell.fixes(worth, job.trainer.info, job.limits.cgroup_version, facts.host.autogroup)


def _moving(late: list[ProcFacts], cpus: Capacity, facts: WalkedFacts) -> list[Fix]:
    """Fix for workers held to the strangers' CPUs by their mask while other CPUs of the job idle."""
    pids, given = [worker.pid for worker in late if _idle_elsewhere(worker, cpus, facts) >= policy.SOME], shell.spell_cpus(cpus.given)
    if len(pids) == 1:
        return [Fix("Or let it run on the CPUs that idle, too", filled("taskset -apc {:cpus} {:pid}", given, pids[0]))]
    return [Fix("Or let them run on the CPUs that idle, too", shell.widening(given, pids))] if pids else []


def _idle_elsewhere(worker: ProcFacts, cpus: Capacity, facts: WalkedFacts) -> float:
    """Idle CPUs of the job that the worker may not use; 0 if its mask is unknown."""
    own = parse_cpus(worker.info.cpus_allowed) & cpus.host
    return sum(1.0 - facts.host.busy.get(cpu, 1.0) for cpu in cpus.given - own) if own else 0.0


JUDGE = Judge("cpu-contention", "input-bound", _tell, rows=(("cpu", "stranger"),))
