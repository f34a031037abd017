"""Where a job runs and where its GPUs are attached: what its copies lose on the way between two NUMA nodes. Pure.

Where the memory lies is not read: /proc/PID/numa_maps walks all pages of a process, and holds its memory's lock meanwhile. The kernel puts
a page where the thread runs that writes it first, so the CPUs on which trainer and workers run say where what they copy lies.
"""

from __future__ import annotations

from gputop.diagnosis.facts.facts import GpuFacts
from gputop.diagnosis.graph.gpuside import link_of, pace_of
from gputop.diagnosis.graph.job import WalkedJob
from gputop.findings import policy
from gputop.model.machine import parse_cpus


def near_cpus(job: WalkedJob) -> frozenset[int]:
    """CPUs of the NUMA nodes to which its GPUs are attached; empty if one's is unknown, or copies go there over C2C (Grace)."""
    if any(gpu.c2c_links or gpu.numa_node is None or not gpu.near_cpus for gpu in job.gpus):
        return frozenset()
    return frozenset[int]().union(*(gpu.near_cpus for gpu in job.gpus))


def usable_cpus(job: WalkedJob) -> frozenset[int]:
    """CPUs of `near_cpus` that the job's cgroup grants."""
    near, granted = near_cpus(job), parse_cpus(job.limits.cpuset)
    return near & granted if granted else near


def shut_out(job: WalkedJob) -> GpuFacts | None:
    """A GPU of a job that copies from afar because its cgroup grants no CPU near its GPUs; None if there is another way, or no need."""
    return job.gpus[0] if job.gpus and far_part(job) > 0.0 and not usable_cpus(job) else None


def uncounted(job: WalkedJob) -> GpuFacts | None:
    """A GPU of a job that runs mostly on another NUMA node, and whose copies are not counted, so that the distance has no price; None
    otherwise."""
    away = job.trainer.away_from(near) if (near := near_cpus(job)) else None
    return job.gpus[0] if job.cuda.calls is None and (away or 0.0) >= policy.HALF else None


def far_part(job: WalkedJob) -> float:
    """Share of the window, at most, that counted copies took because the job ran on another NUMA node than its GPUs'.

    From page-locked memory beside the GPUs a copy reaches `policy.COPY_OF_LINK` of the link. From pageable memory it is slower, wherever
    that lies: of such a copy no more than `policy.CPU_COPY_PART` is the distance's. What is slower than a quarter of either has
    another reason.
    """
    near, pace, calls = near_cpus(job), pace_of(job), job.cuda.calls
    if not near or pace is None or calls is None or calls.copy < policy.TENTH:
        return 0.0
    best, most, away = policy.COPY_OF_LINK * link_of(job), 1.0, [job.trainer.away_from(near)]
    if pace <= policy.PAGEABLE_BYTES_PER_S:  # it lies where workers wrote it, and the trainer's CPU copies it
        best, most = min(best, policy.PAGEABLE_BYTES_PER_S), policy.CPU_COPY_PART
        away.append(workers_away(job, near))
    if not policy.QUARTER * best <= pace < best:
        return 0.0
    return calls.copy * min(most, 1.0 - pace / best) * max(share or 0.0 for share in away)


def workers_away(job: WalkedJob, near: frozenset[int]) -> float | None:
    """Mean share of the looks that found its workers on other CPUs than ``near``; None if none shows where they ran."""
    known = [share for worker in job.workers if (share := worker.away_from(near)) is not None]
    return sum(known) / len(known) if known else None


def remote(job: WalkedJob, waited: float) -> float:
    """Share of the window that the job lost to the distance, of ``waited``, in which it waited for copies; 0 if its cgroup lets it run
    nowhere else."""
    return min(waited, far_part(job)) if usable_cpus(job) else 0.0
