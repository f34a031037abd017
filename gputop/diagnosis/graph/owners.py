"""Predicates and shares that attribute a wait, for the wait-for graph and its table, from the facts. Thresholds are in `policy`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.capacity import wanted
from gputop.diagnosis.facts.facts import Capacity, HostFacts, Member
from gputop.diagnosis.facts.feeders import programs_at_work, programs_wait, threads_wait
from gputop.diagnosis.facts.proc import TURN, ProcFacts
from gputop.diagnosis.facts.waits import LOCK, PIPE, POLL, QUEUE
from gputop.diagnosis.graph.edges import READY, RUN, WORKERS, Edge, Hop, Leaf, Leaves, Trail
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.system.text import counted


def fights(proc: ProcFacts, spun: float = 0.0) -> bool:
    """True if threads of a process take turns at one lock, as Python's GIL, on about one CPU in all though more want to run; by samples."""
    if proc.takes_turns:
        return True
    if proc.waits_its_turn is False or proc.sleeps_long or 2 * proc.others_runnable > proc.others_run:
        return False
    others = proc.others_run - proc.autograd_run  # autograd threads hold no GIL while they launch kernels
    run = max(0.0, proc.run - spun)  # a wait for the GPU that spins needs no lock
    return others >= policy.AT_WORK and run + proc.others_run <= policy.GIL_CPUS


def starves_others(proc: ProcFacts) -> bool:
    """True if the main thread holds Python's lock nearly all the time while its other threads, which load for it, mostly wait for their
    turn."""
    met = proc.threads_met
    least = max(policy.OFTEN, policy.HALF * sum(met.values()))
    return proc.run >= policy.HALF and met[TURN] >= least and proc.others_run >= policy.HARDLY


def served_in_turns(job: WalkedJob, facts: WalkedFacts, ahead: Mapping[int, float]) -> bool:
    """True if workers wait at pipes for a process that hands out a lock: together they run on about one CPU, however many they are, and the
    process they ask hardly runs."""
    asking = [worker for worker in job.workers if worker.kinds.get(PIPE, 0.0) - ahead[worker.pid] >= policy.SOME]
    running = sum(worker.run for worker in job.workers)
    may_serve = [one for one in (*job.managers, *job.workers) if one.kinds.get(LOCK, 0.0) >= policy.NEARLY_ALL]
    served = max((one.clients[1] for one in may_serve), default=0.0)
    all_ask = len(asking) >= 2 and len(asking) == len(job.workers) and policy.MOST <= running <= policy.GIL_CPUS
    all_ask = all_ask and not programs_at_work(job, facts) and not programs_wait(job, facts)
    return all_ask or (served >= 1.0 and len(asking) >= 2)


def own_work(running: float) -> float:
    """Part, 0 to 1, of a delay that is the thread's own work, if it runs for the share ``running`` of the time in which it wants to."""
    return min(1.0, max(0.0, (running - policy.HALF) / (policy.MOST - policy.HALF)))


def own_part(run: float, runnable: float) -> float:
    """`own_work` of a thread that was on a CPU for ``run`` and ready for one for ``runnable``; 1 if it wanted none."""
    return own_work(run / (run + runnable)) if run + runnable > 0.0 else 1.0


def throttled_part(periods: float) -> float:
    """The quota's part of a wait for a CPU, if ``periods`` is the share of its periods with throttling."""
    return min(1.0, 2 * periods) if periods >= policy.TENTH else 0.0


def strangers_share(job: WalkedJob, cpus: Capacity) -> float:
    """Part of a wait for CPUs that processes outside the job cause: none where its threads would crowd the CPUs without these as well."""
    if pools_crowd(job, cpus):
        return 0.0
    much = cpus.taken >= policy.LOST * len(cpus.allowed)
    behind = cpus.preempted_by_others or 0.0
    if behind >= policy.SOME and cpus.strangers_part >= policy.QUARTER:
        return 1.0 if much else behind
    return 1.0 if much and cpus.strangers_part >= policy.HALF else 0.0


def pools_crowd(job: WalkedJob, cpus: Capacity) -> bool:
    """True if the pools of threads within the job's processes want half as many CPUs again as it may use, even with those that strangers
    take, and most of their waits, where these are probed, are for one another."""
    behind, wanted_by_pools = cpus.preempted_by_others, sum(map(pool_of_threads, (job.trainer, *job.workers)))
    return wanted_by_pools - cpus.taken >= (1.0 + policy.HALF) * len(cpus.allowed) and (behind is None or behind < policy.SOME)


def pool_of_threads(proc: ProcFacts) -> float:
    """CPUs that a process's threads other than the main thread want; 0 if they take turns at one GIL."""
    return 0.0 if proc.takes_turns else proc.others_run + proc.others_runnable


def watched_share(facts: WalkedFacts, cpus: Capacity) -> float:
    """Part of a wait for CPUs that gputop itself causes, e.g. while it loads its probes on a small machine."""
    return facts.watching / (facts.watching + cpus.lacking) if facts.watching >= policy.QUARTER * len(cpus.allowed) else 0.0


def shared_locks(job: WalkedJob, facts: WalkedFacts) -> frozenset[int]:
    """Addresses of futexes at which trainer and workers wake each other, both ways (eBPF): locks, for at a queue one side wakes the
    other."""
    pids = {worker.pid for worker in job.workers}
    by_workers = {wake.address for wake in facts.wakes.get(job.trainer.pid, []) if wake.address and wake.pid in pids}
    by_trainer = {
        wake.address for pid in pids for wake in facts.wakes.get(pid, []) if wake.address in by_workers and wake.pid == job.trainer.pid
    }
    return frozenset(by_trainer)


def at_shared_locks(job: WalkedJob) -> float:
    """Part of the trainer's sleeps at locks that samples met at a futex where they met its workers, too: at a queue the two sides sleep at
    two."""
    met = {futex for worker in job.workers for futex in worker.shared_futexes}
    times = sum(count for futex, count in job.trainer.shared_futexes.items() if futex in met)
    return min(1.0, times / max(1, job.trainer.met_at_locks)) if times >= policy.SEVERAL else 0.0


def held_by_worker(job: WalkedJob) -> tuple[float, int]:
    """(part of the trainer's sleeps at locks in which a worker held the mutex, by samples; that worker's pid), zeros if none did."""
    pid = job.trainer.locked_out[0] if job.trainer.at_mutex else 0
    return (job.trainer.kept_out(LOCK), pid) if pid in {worker.pid for worker in job.workers} else (0.0, 0)


def reads_at_limit(job: WalkedJob) -> bool:
    """True if the job's workers read all that their cgroup's limit allows: a worker that waits for a lock then waits for the one that
    reads."""
    limit = job.limits.read_limit.bytes_per_s if job.limits.read_limit is not None else None
    return limit is not None and sum(worker.read_bytes_per_s or 0.0 for worker in job.workers) >= policy.MOST * limit


def to_file_server(edge: Edge, share: float, facts: WalkedFacts) -> Trail:
    """The step to the daemon that serves the files a sleep was for; empty if the sleep was for something else."""
    return (Hop(edge.pid, edge.pid, edge.kind, share, True),) if edge.pid in facts.file_servers else ()


def left_out(job: WalkedJob) -> frozenset[int]:
    """Pids of workers of a home-made loader that sleep at a lock for ever while the others deliver, at full speed or on request at each
    step."""
    if job.loader.is_torchs or all(gpu.idle_s >= policy.STUCK_S for gpu in job.gpus):
        return frozenset()
    still = {worker.pid: worker for worker in job.workers if worker.still_s >= policy.STUCK_S}
    asleep = frozenset(pid for pid, worker in still.items() if worker.kinds.get(LOCK, 0.0) >= policy.NEARLY_ALL)
    flat_out = sum(worker.run + worker.runnable >= policy.MOST for worker in job.workers)
    asked = sum(worker.still_s < policy.STUCK_S and worker.kinds.get(PIPE, 0.0) >= policy.MOST for worker in job.workers)
    waited = sum(job.trainer.kinds.get(kind, 0.0) for kind in (POLL, PIPE, LOCK, QUEUE))
    others = len(job.workers) - len(asleep)
    return asleep if flat_out + asked == others > (1 if asked else 0) and waited >= policy.LOST else frozenset()


def crowds(job: WalkedJob, facts: WalkedFacts, cpus: Capacity) -> bool:
    """True if the job's own threads fill the CPUs that it may use."""
    if not job.ranks.kin and wanted(job) < len(cpus.allowed) and cpus.stolen >= policy.TENTH * len(cpus.allowed):
        return False  # the hypervisor fills them, not the job
    if not facts.host.busy or cpus.idle_inside <= policy.SOME * len(cpus.allowed):
        return True
    late = sum(worker.runnable for worker in job.workers) > sum(worker.run for worker in job.workers)
    return late and len(job.workers) >= policy.CROWD * len(cpus.allowed) and wanted(job) >= len(cpus.allowed)


def thrashes(proc: ProcFacts, host: HostFacts) -> bool:
    """True if the process's pages come back from swap, or are read again soon after they were dropped (major faults, workingset
    refaults)."""
    faults, read = proc.majflt_per_s, proc.read_bytes_per_s
    unread = read is not None and read < policy.HALF * 4096 * faults
    swapped = unread or (host.swap_in_per_s or 0.0) >= policy.HALF * faults
    dropped = host.scanned_per_s != 0.0 and (host.refaults_per_s or 0.0) >= max(policy.REFAULTS_PER_S, policy.HALF * faults)
    return faults >= policy.FAULTS_PER_S and (swapped or dropped)


_POOLS = {
    "quota": "throttled", "mask": "runnable", "cpu": "runnable", "memory": "memory", "disk": "disk", "thread": "lock",
    "birth": "starting", "ahead": "ahead", "nobody": "stopped", "gap": "sync", "copy": "transfer", "reader": "pipe", "peer": "network",
}  # fmt: skip


def pool_of(leaf: Leaf, trail: Trail) -> str:
    """Name of the pool of a leaf's share along a trail; see `Walk.pools`."""
    if leaf.resource == "gpu":
        return f"gpu.{leaf.holder}"
    data = (bool(trail) and trail[0].kind == WORKERS) or leaf.resource in ("birth", "ahead")
    kind = _POOLS.get(leaf.resource, leaf.resource)
    if leaf.resource == "work":
        kind = "running" if data else "runnable" if trail[0].kind == READY else "lock" if leaf.holder != "main" else "computing"
    if leaf.resource in ("work", waits.TIMER, waits.UNKNOWN) and leaf.holder.endswith(("program", "feeder")):
        kind = trail[data].kind if trail[data].kind not in (RUN, READY) else waits.PIPE
    elif leaf == ("mask", "feeder"):
        kind = "behind"  # who waits for it sleeps itself
    elif leaf.resource == "nobody" and trail and trail[-1].kind != waits.STOPPED:
        kind = trail[-1].kind
    return f"{'data' if data else 'main'}.{kind}"


def total(edges: Iterable[Edge]) -> float:
    """Share of the window that the edges hold together."""
    return sum(edge.share for edge in edges)


def sum_of(leaves: Leaves) -> float:
    """Share of the window that the leaves hold together."""
    return sum(one.share for one in leaves.values())


def lean_to_delays(leaves: Leaves, owed: float) -> dict[Leaf, float]:
    """Leaf -> factor that moves own work to the other delays, the more the smaller its part is: work that runs freely is not late."""
    working = sum(one.share for leaf, one in leaves.items() if leaf.resource == "work") / owed
    keep = own_work(working)
    scale = 1.0 + working * (1.0 - keep) / (1.0 - working) if working < 1.0 else 1.0
    return {leaf: (keep if keep < 1.0 and working < 1.0 else 1.0) if leaf.resource == "work" else scale for leaf in leaves}


class Waiting(NamedTuple):
    """The part of a job that waits for a disk or the network."""

    procs: list[ProcFacts]  # the job's own: the workers, or the trainer if it has none or waits longer itself
    pid: int  # whose descriptors show what it waits for
    name: str  # the ones that wait, in words
    share: float  # of the time; of the samples, for threads and programs


def waiting_part(job: WalkedJob, facts: WalkedFacts, kind: str, share: Callable[[ProcFacts], float]) -> Waiting:
    """The part of a job that waits for ``kind``: ``disk`` or ``network``. ``share``: function that returns how long a process's main thread
    waited."""
    own, owed = (job.pools.get(f"{who}.{kind}", 0.0) for who in ("main", "data"))
    main = filled("the main thread of {} ({})", job.trainer.role.label, job.trainer.pid)
    if job.workers and own > owed:
        return Waiting([job.trainer], job.trainer.pid, main, share(job.trainer))
    procs = job.workers or [job.trainer]
    pid = max(procs, key=share).pid
    if (one := member_at(job, kind)) is not None:
        waited = max(one.spent.get(kind, 0.0), one.arriving if kind == waits.NETWORK else 0.0)
        return Waiting(procs, one.pid, filled("{} ({})", one.name, one.pid), min(1.0, waited))
    for proc in procs:
        if kind in threads_wait(job, proc):
            return Waiting(procs, pid, filled("loading threads of {} ({})", proc.role.label, proc.pid), threads_wait(job, proc)[kind])
    programs = programs_wait(job, facts)
    if kind in programs:
        return Waiting(procs, pid, "programs that it reads from", programs[kind])
    name = counted(len(procs), "loader") if job.workers else main
    return Waiting(procs, pid, name, sum(map(share, procs)) / len(procs))


def member_at(job: WalkedJob, kind: str) -> Member | None:
    """The member of the family at which the walk to ``kind``, a resource, ended."""
    ends = {claim.way.trail[-1].pid for claim in job.claims if claim.way.leaf.resource == kind and claim.way.trail}
    return next((one for one in job.members if one.pid in ends), None)
