"""What a main thread does for its GPU: copies, waits, launches; how many of each, and what they cost. Pure."""

from __future__ import annotations

import math

from gputop.diagnosis.measure import waits
from gputop.diagnosis.measure.facts import CallFacts, JobFacts
from gputop.diagnosis.measure.feeders import threads_at_work
from gputop.diagnosis.measure.intensity import is_light
from gputop.findings import policy

_NO_GPU = (waits.QUEUE, waits.PIPE, waits.NETWORK, waits.CHILD, waits.DISK, waits.STOPPED)


def copying(job: JobFacts, pinned: bool) -> float:
    """Share of the window, at most, that it waited for copies, by what goes over its link: from pinned memory as fast as that carries it,
    else no faster than a CPU copies. Its calls tell of more, for PCIe counters sample 20 ms, which may keep time with the steps."""
    link = link_of(job)
    pace = min(policy.PAGEABLE_BYTES_PER_S, link) if not pinned or link == math.inf else policy.QUARTER * link
    return max(traffic(job), copied(job)) / pace


def copied(job: JobFacts) -> float:
    """Bytes per second that its calls were asked to copy; 0 where these are not counted."""
    return (job.calls.copy_bytes_per_s if job.calls is not None else None) or 0.0


def link_of(job: JobFacts) -> float:
    """Bytes per second that the narrowest of its links carries one way as it now runs; endless where none is told."""
    return min((link for gpu in job.gpus if (link := gpu.link_bytes_per_s)), default=math.inf)


def traffic(job: JobFacts) -> float:
    """Bytes per second over PCIe, both ways, of its GPUs together; 0 where they are not read."""
    return sum(gpu.pcie_bytes_per_s or 0.0 for gpu in job.gpus)


def launches(job: JobFacts) -> float:
    """Share of the window, at most, that it lost because a kernel takes longer to launch than to run; 0 where the GPU has longer work."""
    own, idle, rate = launching(job), job.idle or 0.0, job.launches_per_s
    beside = job.sampled.idle_beside_launches if job.sampled is not None else None
    if beside is not None and beside < policy.HALF * (idle - policy.TENTH):
        return 0.0  # it rests at other times than those of the launches
    if any(map(is_light, job.gpus)):
        return min(own, rate * policy.LIGHT_COST_S) if rate else own if own - idle >= policy.TENTH else 0.0
    return min(own, outlasting(job))


def outlasting(job: JobFacts) -> float:
    """Share of the window by which launches, as far as they are counted, take longer than what they launch runs."""
    return 0.0 if job.idle is None else max(0.0, (job.launches_per_s or 0.0) * policy.LAUNCH_COST_S - (1.0 - job.idle))


def launching(job: JobFacts) -> float:
    """Share of the window in which its main thread, or the one that it waits for in the backward pass, may have launched kernels."""
    state = job.trainer.state
    awaited = state.waits.get(waits.LOCK, 0.0) if threads_at_work(job) else 0.0
    return state.fractions.get("computing", 0.0) + max(awaited, job.trainer.autograd_run)  # without probes both look like waits for the GPU


def turns(job: JobFacts) -> float:
    """Share of the window, at most, that it lost because its GPU and it took turns: each wait leaves the GPU without work until the main
    thread has launched something again. Launches between two waits are a cost of their own."""
    found = waits_per_s(job) * policy.TURN_S
    if job.calls is None:
        return found if spins_per_s(job) is not None else found / 2  # of sleeps some are for others
    found = max(found, calls_per_s(job.calls) * policy.SHORT_TURN_S)
    return max(0.0, found - policy.LAUNCH_COST_S * (job.launches_per_s or 0.0))


def waits_per_s(job: JobFacts) -> float:
    """Waits for the GPU, as far as they take time; without the probe those that its main thread was met spinning in, else sleeps of one
    that has no other reason to sleep so often."""
    if job.calls is not None:
        return job.calls.waits_per_s
    if (spins := spins_per_s(job)) is not None:
        return spins
    worked, sleeps = job.idle is not None and job.idle < policy.NEARLY_ALL, job.trainer.sleeps_per_s or 0.0
    often = 2 * sleeps >= policy.SYNCS_PER_S  # a step with a single wait makes about six
    return sleeps if often and worked and not _sleeps_for_others(job) else 0.0


def wakes_per_s(job: JobFacts) -> float:
    """Of these, or of all calls that wait, those that it slept in."""
    slept = min(calls_per_s(job.calls), job.trainer.sleeps_per_s or 0.0) if job.calls is not None else 0.0
    return max(waits_per_s(job), slept)


def spins_per_s(job: JobFacts) -> float | None:
    """Waits of one that spins in them for a part of its time, where it was sampled."""
    return job.sampled.waits_per_s if job.sampled is not None and job.sampled.sync >= policy.TENTH else None


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
        asleep < policy.HALF * (1.0 - (job.idle or 0.0))
        or sleeps_per_s < policy.PER_STEP * batches_per_s
        or (trainer.write_bytes_per_s or 0.0) >= policy.WRITTEN_BYTES * sleeps_per_s > 0.0
        or (threads_at_work(job) and 2 * kinds.get(waits.LOCK, 0.0) >= sum(kinds.values()))
    )
