"""Which CPUs a job may use, how busy they are, and who uses them."""

from __future__ import annotations

from typing import cast

from msgspec.structs import replace

from gputop.diagnosis.measure.facts import Capacity, Facts, JobFacts, Taker
from gputop.diagnosis.measure.hosts import parse_cpus
from gputop.diagnosis.measure.proc import ProcFacts
from gputop.findings import policy


def capacity(job: JobFacts, facts: Facts) -> Capacity:
    """Capacity of the CPUs that the job's workers may use, of the trainer's where it has none. Worked out once per job."""
    key = "capacity", job.trainer.pid
    if key not in facts.memo:
        facts.memo[key] = _capacity(job, facts)
    return cast("Capacity", facts.memo[key])


def is_held(job: JobFacts, cpus: Capacity) -> bool:
    """Whether it is its mask that keeps it from CPUs, rather than strangers on those that it may use."""
    return cpus.pinned and cpus.strangers_part < policy.HALF and (others_idle(cpus) or _by_hand(job, cpus))


def others_idle(cpus: Capacity) -> bool:
    """Whether CPUs idle that the job may not use, more than those that it may."""
    return cpus.idle_outside >= policy.SOME and cpus.idle_outside > cpus.idle_inside


def _by_hand(job: JobFacts, cpus: Capacity) -> bool:
    """By taskset, numactl or the script itself: nobody promised the other CPUs to somebody else."""
    return bool(job.cpuset) and cpus.allowed < cpus.given and cpus.lacking >= policy.SOME


def _capacity(job: JobFacts, facts: Facts) -> Capacity:
    busy = facts.host.busy
    host = frozenset(busy) or frozenset(range(facts.host.cpus))
    allowed = _allowed(job, facts, host)
    if facts.host.renumbered or not allowed <= host:
        return _uncounted(job, facts, allowed)
    all_busy = sum(busy.values())
    busy_inside = all_busy if len(allowed) == len(busy) else sum(busy.get(cpu, 1.0) for cpu in allowed)
    inside = len(allowed) - busy_inside if busy else 0.0
    given = parse_cpus(job.cpuset) & host or host
    stolen = sum(facts.host.stolen.get(cpu, 0.0) for cpu in allowed)
    return Capacity(
        allowed=allowed, host=host, idle_inside=inside, idle_outside=len(busy) - all_busy - inside if busy else 0.0, given=given,
        taken=_taken(job, facts, allowed, busy_inside - stolen), used=job.used,
        lacking=max(0.0, _needed_there(job, facts, allowed, host) - len(allowed)), preempted_by_others=_preempted_by_others(job, facts),
        stolen=stolen,
    )  # fmt: skip


def _uncounted(job: JobFacts, facts: Facts, allowed: frozenset[int]) -> Capacity:
    """Of CPUs of which /proc/stat tells nothing: nobody is told to idle there or elsewhere, and only who was seen to take them did."""
    taken = sum(taker.cores for taker in beside(job, facts, allowed))
    lacking = max(0.0, _needed_there(job, facts, allowed, allowed) - len(allowed))
    return Capacity(
        allowed=allowed, host=allowed, idle_inside=0.0, idle_outside=0.0, given=allowed, taken=taken, used=job.used, lacking=lacking,
        preempted_by_others=_preempted_by_others(job, facts),
    )


def _allowed(job: JobFacts, facts: Facts, host: frozenset[int]) -> frozenset[int]:
    """Those of the host's; those of its masks where /proc/stat has none of them, or counts them otherwise."""
    key = "allowed", job.trainer.pid
    if key not in facts.memo:
        lists = {proc.info.cpus_allowed for proc in job.workers or [job.trainer] if proc.info.cpus_allowed}
        masks = frozenset[int]().union(*map(parse_cpus, lists))
        facts.memo[key] = (masks if facts.host.renumbered else masks & host or masks) or host
    return cast("frozenset[int]", facts.memo[key])


def _needed_there(job: JobFacts, facts: Facts, allowed: frozenset[int], host: frozenset[int]) -> float:
    """By the job, and by the other ranks of its training that have no other CPUs than it has: the same for all of them."""
    own = _own(job)
    key = "needed", own, allowed
    if key not in facts.memo:
        facts.memo[key] = sum(needed(one) for one in facts.jobs if one.trainer.pid in own and _allowed(one, facts, host) <= allowed)
    return cast("float", facts.memo[key])


def _taken(job: JobFacts, facts: Facts, allowed: frozenset[int], worked_inside: float) -> float:
    """By those that were seen; by all but the job itself where that is more, for a compiler may live shorter than between two looks."""
    own = max(job.used, job.kin_used)
    unseen = worked_inside - own - facts.watching
    if len(allowed) == len(facts.host.busy):
        return max(sum(taker.cores for taker in strangers(job, facts)), unseen)
    seen = sum(taker.cores for taker in beside(job, facts, allowed))
    # Of a few CPUs more is known: they come and go, and what the workers left of the time that these worked is all that they can have had.
    return max(min(seen, worked_inside - sum(worker.cores for worker in job.workers)), unseen) if job.workers else max(seen, unseen)


def beside(job: JobFacts, facts: Facts, allowed: frozenset[int]) -> list[Taker]:
    """Those of these that may run on one of the job's CPUs, with what they took of these: of who was met elsewhere, less."""
    may_run = (one for one in strangers(job, facts) if one.info is None or _may_run_on(allowed, one.info.cpus_allowed))
    there = [one if (part := _part_on(one, allowed, facts)) == 1.0 else replace(one, cores=one.cores * part) for one in may_run]
    return [taker for taker in there if taker.cores >= policy.HARDLY]


def _part_on(taker: Taker, allowed: frozenset[int], facts: Facts) -> float:
    """All where it is not known where it ran; of short-lived programs that nobody met nothing, unless the job may use all CPUs."""
    if taker.spawns and not taker.where and (facts.host.renumbered or len(allowed) < facts.host.cpus):
        return 0.0
    return 1.0 if allowed.issuperset(taker.where) else sum(part for cpu, part in taker.where.items() if cpu in allowed)


def _may_run_on(cpus: frozenset[int], listed: str) -> bool:
    return not listed or bool(cpus & parse_cpus(listed))


def strangers(job: JobFacts, facts: Facts) -> list[Taker]:
    """The takers that load neither for it nor for the other ranks of its training."""
    own = _own(job)
    key = "strangers", own
    if key not in facts.memo:
        facts.memo[key] = [taker for taker in facts.takers if facts.family.get(taker.pid) not in own]
    return cast("list[Taker]", facts.memo[key])


def _own(job: JobFacts) -> frozenset[int]:
    """Its trainer, and those of its training's other ranks."""
    return job.kin if job.trainer.pid in job.kin else job.kin | {job.trainer.pid}


def wanted(job: JobFacts) -> float:
    """CPUs its threads and programs ran on or were runnable for."""
    return sum(map(_wanted, (job.trainer, *job.workers)))


def _wanted(proc: ProcFacts) -> float:
    """Threads behind one GIL want the CPU of the one whose turn it is."""
    threads = 0.0 if proc.takes_turns else proc.others_runnable
    return proc.cores + proc.runnable + threads + sum(proc.programs)


def needed(job: JobFacts) -> float:
    """CPUs with which its GPU would have no idle time: what it wanted at most, for who is late is always runnable.

    What a step costs the CPUs stays the same, so they would be used as much more as the GPU then worked more.
    """
    idle, most = job.idle, wanted(job)
    return most if idle is None or idle >= 1.0 else min(most, job.used / (1.0 - idle))


def _preempted_by_others(job: JobFacts, facts: Facts) -> float | None:
    waits = facts.behind.get(job.trainer.pid)
    if not waits:
        return None
    own = _own(job)
    behind, others = sum(waits.values()), sum(seconds for pid, seconds in waits.items() if facts.family.get(pid) not in own)
    waited_s = sum(proc.runnable * proc.seconds for proc in (job.trainer, *job.workers))
    return others / behind if behind > policy.TENTH * waited_s else None
