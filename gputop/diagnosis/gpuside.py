"""What a main thread does for its GPU: copies, waits, launches; how many of each, and what they cost. Pure."""

from __future__ import annotations

import math

from gputop.diagnosis import policy
from gputop.diagnosis.measure import waits
from gputop.diagnosis.measure.facts import CallFacts, GpuFacts, JobFacts
from gputop.diagnosis.measure.feeders import threads_at_work

_NO_GPU = (waits.QUEUE, waits.PIPE, waits.NETWORK, waits.CHILD, waits.DISK, waits.STOPPED)


def copies_much(job: JobFacts) -> bool:
    """Its GPUs' links are busy enough to be what it waits for: by their counters, whose samples of 20 ms may keep time with the steps and
    miss them, or by what its calls copy while no kernel runs."""
    of_link = any((gpu.pcie_bytes_per_s or 0.0) >= policy.COPY_OF_LINK * link_of(gpu) for gpu in job.gpus)
    if of_link or traffic(job) >= policy.COPY_BYTES_PER_S:
        return True
    copied = (job.calls.copy_bytes_per_s if job.calls is not None else None) or 0.0
    return copied > 0.0 and copied >= policy.COPY_OF_LINK * (job.idle or 0.0) * sum(map(link_of, job.gpus))


def link_of(gpu: GpuFacts) -> float:
    """Bytes per second that its link carries one way as it now runs; endless where that is not told."""
    return math.inf if gpu.link_bytes_per_s is None else gpu.link_bytes_per_s


def traffic(job: JobFacts) -> float:
    """Bytes per second over PCIe, both ways, of its GPUs together; 0 where they are not read."""
    return sum(gpu.pcie_bytes_per_s or 0.0 for gpu in job.gpus)


def turns(job: JobFacts) -> float:
    """Share of the window, at most, that it lost because its GPU and it took turns: each wait leaves the GPU without work until the main
    thread has launched something again. Launches between two waits are a cost of their own."""
    calls, rate = job.calls, waits_per_s(job)
    if calls is None:
        return rate * (policy.TURN_S if spins_per_s(job) is None else policy.LONG_TURN_S)
    within_steps = rate >= policy.PER_STEP * calls.to_gpu_per_s > 0.0
    found = max(calls_per_s(calls) * policy.SHORT_TURN_S, rate * (policy.LONG_TURN_S if within_steps else policy.TURN_S))
    return max(0.0, found - policy.SHORT_S * (job.launches_per_s or 0.0))


def waits_per_s(job: JobFacts) -> float:
    """Waits for the GPU, as far as they take time; without the probe those that its main thread was met spinning in, else sleeps of one
    that has no other reason to sleep so often."""
    if job.calls is not None:
        return job.calls.waits_per_s
    if (spins := spins_per_s(job)) is not None:
        return spins
    worked, sleeps = job.idle is not None and job.idle < policy.HARDLY_WORKS, job.trainer.sleeps_per_s or 0.0
    often = 2 * sleeps >= policy.SYNCS_PER_S  # a step with a single wait makes about six
    return sleeps if often and worked and not _sleeps_for_others(job) else 0.0


def wakes_per_s(job: JobFacts) -> float:
    """Of these, or of all calls that wait, those that it slept in."""
    slept = min(calls_per_s(job.calls), job.trainer.sleeps_per_s or 0.0) if job.calls is not None else 0.0
    return max(waits_per_s(job), slept)


def spins_per_s(job: JobFacts) -> float | None:
    """Waits of one that spins in them for a part of its time, where it was sampled."""
    return job.sampled.waits_per_s if job.sampled is not None and job.sampled.sync >= policy.SPINS else None


def calls_per_s(calls: CallFacts) -> float:
    """Of the most frequent call that waits: `.item()` makes two, a copy and a synchronize."""
    return min(calls.sync_per_s, max(calls.rates, default=0.0))


def _sleeps_for_others(job: JobFacts) -> bool:
    """Whether it sleeps for less time than its GPU works, so that short sleeps may hand over batches; has steps so short that they are as
    many sleeps; writes to storage at each; or mostly sleeps on locks, while threads of its own work."""
    trainer, kinds = job.trainer, job.trainer.kinds
    sleeps_per_s, batches_per_s = trainer.sleeps_per_s or 0.0, sum(worker.sleeps_per_s or 0.0 for worker in job.workers)
    asleep = sum(share for kind, share in kinds.items() if kind not in _NO_GPU)
    return (
        asleep < policy.SLEPT_BESIDE * (1.0 - (job.idle or 0.0))
        or sleeps_per_s < policy.SLEEPS_PER_BATCH * batches_per_s
        or (trainer.write_bytes_per_s or 0.0) >= policy.WRITTEN_BYTES * sleeps_per_s > 0.0
        or (threads_at_work(job) and 2 * kinds.get(waits.LOCK, 0.0) >= sum(kinds.values()))
    )
