"""The CPUs a job may use, how busy they are, and which processes use them."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from gputop.diagnosis.facts.facts import Capacity, Facts, JobFacts, Taker
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.findings import policy
from gputop.findings.verdict import READS
from gputop.model.machine import parse_cpus


def capacity(job: JobFacts, facts: Facts) -> Capacity:
    """Capacity of the CPUs that the job's workers may use, of the trainer's where it has none. Worked out once per job."""
    known, pid = facts.memo.capacity, job.trainer.pid
    if pid not in known:
        known[pid] = _capacity(job, facts)
    return known[pid]


def capacity_of_feeder(job: JobFacts, facts: Facts, pids: Collection[int]) -> Capacity | None:
    """Capacity of the CPUs that processes ``pids``, which load for the job and are late for a CPU, may use; None if their masks, or the
    host's CPUs, are not known."""
    lists = [one.info.cpus_allowed for one in facts.takers if one.pid in pids and one.info is not None]
    busy, allowed = facts.host.busy, frozenset[int]().union(*map(parse_cpus, filter(None, lists)))
    if not allowed or facts.host.renumbered or not allowed <= busy.keys():
        return None
    inside = sum(1.0 - busy[cpu] for cpu in allowed)
    within = feeders_within(job, facts, allowed)
    own, used = {one.pid for one in within}, sum(one.cores for one in within)
    lacking = max(0.0, used + sum(one.ready for one in job.members if one.pid in own) - len(allowed))
    taken = sum(one.cores for one in beside(job, facts, allowed) if one.pid not in own)
    return Capacity(
        allowed=allowed, host=frozenset(busy), idle_inside=inside, idle_outside=len(busy) - sum(busy.values()) - inside,
        given=frozenset(busy), taken=taken, used=used, lacking=lacking, preempted_by_others=None,
    )  # fmt: skip


def feeders_within(job: JobFacts, facts: Facts, allowed: frozenset[int]) -> list[Taker]:
    """The processes outside the job's own tree that load for it, or that its trainer started, and that may use none but those CPUs; the
    busiest first."""
    members = {one.pid for one in job.members if one.part != READS}
    own = ((one, one.info) for one in facts.takers if one.info is not None)
    loads = ((one, info.cpus_allowed) for one, info in own if one.pid in members or info.ppid == job.trainer.pid)
    return [one for one, cpus in loads if cpus and parse_cpus(cpus) <= allowed]


def is_held(job: JobFacts, cpus: Capacity) -> bool:
    """True if the job's CPU mask keeps it from CPUs, rather than strangers on the CPUs it may use."""
    return cpus.pinned and cpus.strangers_part < policy.HALF and (others_idle(cpus) or _by_hand(job, cpus))


def feeder_is_held(cpus: Capacity | None) -> bool:
    """True if its own mask keeps what loads for a job from CPUs that idle, rather than strangers on the CPUs it may use."""
    return cpus is not None and cpus.pinned and cpus.strangers_part < policy.HALF and others_idle(cpus)


def others_idle(cpus: Capacity) -> bool:
    """True if more CPUs idle outside the job's mask than inside."""
    return cpus.idle_outside >= policy.SOME and cpus.idle_outside > cpus.idle_inside


def _by_hand(job: JobFacts, cpus: Capacity) -> bool:
    """True if taskset, numactl or the script itself narrowed the job's mask: its cgroup allows more CPUs, and the job lacks some."""
    return bool(job.limits.cpuset) and cpus.allowed < cpus.given and cpus.lacking >= policy.SOME


def _capacity(job: JobFacts, facts: Facts) -> Capacity:
    busy = facts.host.busy
    host = frozenset(busy) or frozenset(range(facts.host.cpus))
    allowed = _allowed(job, facts, host)
    if facts.host.renumbered or not allowed <= host:
        return _uncounted(job, facts, allowed)
    all_busy = sum(busy.values())
    busy_inside = all_busy if len(allowed) == len(busy) else sum(busy.get(cpu, 1.0) for cpu in allowed)
    inside = len(allowed) - busy_inside if busy else 0.0
    given = parse_cpus(job.limits.cpuset) & host or host
    stolen = sum(facts.host.stolen.get(cpu, 0.0) for cpu in allowed)
    return Capacity(
        allowed=allowed, host=host, idle_inside=inside, idle_outside=len(busy) - all_busy - inside if busy else 0.0, given=given,
        taken=_taken(job, facts, allowed, busy_inside - stolen), used=job.cpus.used,
        lacking=max(0.0, _needed_there(job, facts, allowed, host) - len(allowed)), preempted_by_others=_preempted_by_others(job, facts),
        stolen=stolen,
    )  # fmt: skip


def _uncounted(job: JobFacts, facts: Facts, allowed: frozenset[int]) -> Capacity:
    """Capacity where /proc/stat omits the job's CPUs: none counts as idle, and only CPU time of takers that were seen counts as taken."""
    taken = sum(taker.cores for taker in beside(job, facts, allowed))
    lacking = max(0.0, _needed_there(job, facts, allowed, allowed) - len(allowed))
    return Capacity(
        allowed=allowed, host=allowed, idle_inside=0.0, idle_outside=0.0, given=allowed, taken=taken, used=job.cpus.used, lacking=lacking,
        preempted_by_others=_preempted_by_others(job, facts),
    )


def _allowed(job: JobFacts, facts: Facts, host: frozenset[int]) -> frozenset[int]:
    """The CPUs of the host in the masks of the job's workers (the trainer's, if it has none). The masks alone count where /proc/stat has
    none of their CPUs or numbers CPUs differently."""
    known, pid = facts.memo.allowed, job.trainer.pid
    if pid not in known:
        lists = {proc.info.cpus_allowed for proc in job.workers or [job.trainer] if proc.info.cpus_allowed}
        masks = frozenset[int]().union(*map(parse_cpus, lists))
        known[pid] = (masks if facts.host.renumbered else masks & host or masks) or host
    return known[pid]


def _needed_there(job: JobFacts, facts: Facts, allowed: frozenset[int], host: frozenset[int]) -> float:
    """CPUs needed by the job and by the ranks of its training that may use no other CPUs; the same sum for each."""
    own = _own(job)
    known, key = facts.memo.needed, (own, allowed)
    if key not in known:
        known[key] = sum(needed(one) for one in facts.jobs if one.trainer.pid in own and _allowed(one, facts, host) <= allowed)
    return known[key]


def _taken(job: JobFacts, facts: Facts, allowed: frozenset[int], worked_inside: float) -> float:
    """CPUs taken by processes outside the job: the sum over those seen, or, if more, the CPU time that nothing seen explains (a compiler
    may live for less time than lies between two looks)."""
    own = max(job.cpus.used, job.ranks.used)
    unseen = worked_inside - own - facts.watching
    if len(allowed) == len(facts.host.busy):
        return max(sum(taker.cores for taker in strangers(job, facts)), unseen)
    seen = sum(taker.cores for taker in beside(job, facts, allowed))
    # Strangers come and go on a few CPUs: they had at most the CPU time that the workers left.
    return max(min(seen, worked_inside - sum(worker.cores for worker in job.workers)), unseen) if job.workers else max(seen, unseen)


def beside(job: JobFacts, facts: Facts, allowed: frozenset[int]) -> list[Taker]:
    """Strangers that may run on the job's CPUs, with the CPUs they took there (scaled down if they were also seen elsewhere)."""
    may_run = (one for one in strangers(job, facts) if one.info is None or _may_run_on(allowed, one.info.cpus_allowed))
    there = [one if (part := _part_on(one, allowed, facts)) == 1.0 else replace(one, cores=one.cores * part) for one in may_run]
    return [taker for taker in there if taker.cores >= policy.HARDLY]


def _part_on(taker: Taker, allowed: frozenset[int], facts: Facts) -> float:
    """Share of a taker's CPU time spent on ``allowed``: 1 if it is not known where it ran; none for short-lived programs that were
    never seen, unless the job may use all CPUs."""
    if taker.spawns and not taker.where and (facts.host.renumbered or len(allowed) < facts.host.cpus):
        return 0.0
    return 1.0 if allowed.issuperset(taker.where) else sum(part for cpu, part in taker.where.items() if cpu in allowed)


def _may_run_on(cpus: frozenset[int], listed: str) -> bool:
    return not listed or bool(cpus & parse_cpus(listed))


def strangers(job: JobFacts, facts: Facts) -> list[Taker]:
    """Takers that belong neither to the job nor to the other ranks of its training."""
    own = _own(job)
    known = facts.memo.strangers
    if own not in known:
        known[own] = [taker for taker in facts.takers if facts.family.get(taker.pid) not in own]
    return known[own]


def _own(job: JobFacts) -> frozenset[int]:
    """Pids of the job's trainer and of the trainers of its training's other ranks."""
    return job.ranks.kin if job.trainer.pid in job.ranks.kin else job.ranks.kin | {job.trainer.pid}


def wanted(job: JobFacts) -> float:
    """CPUs that the job's threads and programs ran on or were runnable for."""
    return sum(map(_wanted, (job.trainer, *job.workers)))


def _wanted(proc: ProcFacts) -> float:
    """CPUs that a process ran on or was runnable for. Threads behind one GIL add no demand: only one can run at a time."""
    threads = 0.0 if proc.takes_turns else proc.others_runnable
    return proc.cores + proc.runnable + threads + sum(proc.programs)


def needed(job: JobFacts) -> float:
    """CPUs with which the job's GPUs would never idle; at most the CPUs it wanted, for late threads are always runnable.

    A step costs the same CPU time, so the CPUs would be used in proportion to the GPU's additional work.
    """
    idle, most = job.idle, wanted(job)
    return most if idle is None or idle >= 1.0 else min(most, job.cpus.used / (1.0 - idle))


def _preempted_by_others(job: JobFacts, facts: Facts) -> float | None:
    waits = facts.behind.get(job.trainer.pid)
    if not waits:
        return None
    own = _own(job)
    behind, others = sum(waits.values()), sum(seconds for pid, seconds in waits.items() if facts.family.get(pid) not in own)
    waited_s = sum(proc.runnable * proc.seconds for proc in (job.trainer, *job.workers))
    return others / behind if behind > policy.TENTH * waited_s else None
