"""Work of a main thread for its GPU (copies, waits, launches): how much of each, and its cost. Pure."""

from __future__ import annotations

import math

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.facts import CallFacts, GpuFacts
from gputop.diagnosis.facts.feeders import threads_at_work
from gputop.diagnosis.facts.intensity import is_light
from gputop.diagnosis.facts.life import has_peers
from gputop.diagnosis.facts.proc import backward_threads
from gputop.diagnosis.facts.stepclock import are_weights
from gputop.diagnosis.graph.job import WalkedJob
from gputop.findings import policy

_NO_GPU = (waits.QUEUE, waits.PIPE, waits.NETWORK, waits.CHILD, waits.DISK, waits.STOPPED)


def copying(job: WalkedJob, pinned: bool) -> float:
    """Upper bound of the share of the window spent waiting for copies, from the bytes over the link: from pinned memory at the link's
    speed, else at most at a CPU's copying speed. Counted calls may show more bytes: PCIe counters sample 20 ms, maybe in phase with the
    steps."""
    link = link_of(job)
    if any(gpu.c2c_links for gpu in job.gpus):  # the GPU reads a Grace CPU's memory itself, pinned or not
        return max(traffic(job), copied(job)) / (policy.QUARTER * link)
    pace = min(policy.PAGEABLE_BYTES_PER_S, link) if not pinned or link == math.inf else policy.QUARTER * link
    return max(traffic(job), copied(job)) / pace


def copied(job: WalkedJob) -> float:
    """Bytes per second that CUDA calls were asked to copy; 0 if not counted."""
    return (job.cuda.calls.copy_bytes_per_s if job.cuda.calls is not None else None) or 0.0


def pace_of(job: WalkedJob) -> float | None:
    """Bytes per second while a copy is under way; None if copies are not counted."""
    calls = job.cuda.calls
    return copied(job) / calls.copy if calls is not None and calls.copy >= policy.LITTLE and copied(job) else None


def link_of(job: WalkedJob) -> float:
    """Bytes per second that the narrowest of the GPUs' links carries one way at present; inf if unknown."""
    return min((link for gpu in job.gpus if (link := gpu.link_bytes_per_s)), default=math.inf)


def narrowest(job: WalkedJob) -> GpuFacts | None:
    """The GPU with the least part of the link that GPU and slot allow; None if all links are whole, or nothing is copied over them."""
    links = [(gpu, gpu.link_bytes_per_s or 0.0, gpu.full_link_bytes_per_s or 0.0) for gpu in job.gpus if not gpu.c2c_links]
    parts = [(link / full, gpu.index, gpu) for gpu, link, full in links if 0.0 < link <= (1.0 - policy.TENTH) * full]
    return min(parts, default=(0.0, 0, None))[2]


def narrowed(job: WalkedJob) -> float:
    """Share of the window that bytes took on a link that was trained down, beyond what they take on one as GPU and slot allow."""
    if (gpu := narrowest(job)) is None:
        return 0.0
    link, full = gpu.link_bytes_per_s or math.inf, gpu.full_link_bytes_per_s or math.inf
    moved = max(gpu.host_bytes_per_s or 0.0, copied(job) / max(1, len(job.gpus)))
    return min(1.0, moved / link) * (1.0 - link / full)


def traffic(job: WalkedJob) -> float:
    """Bytes per second over the links to the host, both ways, of all its GPUs together; 0 if not read."""
    return sum(gpu.host_bytes_per_s or 0.0 for gpu in job.gpus)


def both_ways(job: WalkedJob) -> tuple[float, float]:
    """(bytes per second from its GPUs, bytes per second to them): by CUDA calls, else over PCIe."""
    if job.cuda.calls is not None and job.cuda.calls.copy_bytes_per_s:
        return job.cuda.calls.from_gpu_bytes_per_s, job.cuda.calls.to_gpu_bytes_per_s
    back = sum(gpu.host_back_bytes_per_s or 0.0 for gpu in job.gpus)
    return back, max(0.0, traffic(job) - back)


def updates_on_host(job: WalkedJob) -> bool:
    """True if the optimizer works on the host: gradients come as weights go back, and threads of the trainer's own, not those of the
    backward pass, work, or there is such a pass."""
    threads = job.trainer.others_run - job.trainer.autograd_run >= policy.AT_WORK
    computes = threads or bool(backward_threads(job.trainer.info))
    return computes and job.is_supplied and are_weights(*both_ways(job), policy.UPDATED_BYTES_PER_S)


def updating(job: WalkedJob, busy: float) -> float:
    """Upper bound of the share of the window in which the host updated weights: ``busy``, the share in which main thread and own threads
    worked, without launches of kernels."""
    return max(0.0, busy - policy.LAUNCH_COST_S * (job.cuda.launches_per_s or 0.0)) if updates_on_host(job) else 0.0


def launches(job: WalkedJob) -> float:
    """Upper bound of the share of the window lost because kernels take longer to launch than to run; 0 if the GPU has longer work."""
    own, idle, rate = launching(job), job.idle or 0.0, job.cuda.launches_per_s
    beside = job.cuda.sampled.idle_beside_launches if job.cuda.sampled is not None else None
    if beside is not None and beside < policy.HALF * (idle - policy.TENTH):
        return 0.0  # the GPU rests at other times than the launches
    if any(map(is_light, job.gpus)):
        if has_peers(job):  # the light kernel may be a collective's, which waits for other ranks: only what launches take is theirs
            return min(own, (rate or 0.0) * policy.LAUNCH_COST_S)
        return min(own, rate * policy.LIGHT_COST_S) if rate else own if own - idle >= policy.TENTH else 0.0
    return min(own, outlasting(job))


def outlasting(job: WalkedJob) -> float:
    """Share of the window by which counted launches take longer than the kernels run."""
    return 0.0 if job.idle is None else max(0.0, (job.cuda.launches_per_s or 0.0) * policy.LAUNCH_COST_S - (1.0 - job.idle))


def launching(job: WalkedJob) -> float:
    """Share of the window in which the main thread, or the thread it waits for in the backward pass, may have launched kernels."""
    state = job.trainer.state
    awaited = state.waits.get(waits.LOCK, 0.0) if threads_at_work(job) else 0.0
    return state.fractions.get("computing", 0.0) + max(awaited, job.trainer.autograd_run)  # without probes both count as waits for the GPU


def turns(job: WalkedJob) -> float:
    """Upper bound of the share of the window lost because GPU and main thread took turns: each wait leaves the GPU without work until the
    main thread has launched something again. Launches between two waits have their own cost."""
    found = waits_per_s(job) * policy.TURN_S
    if job.cuda.calls is None:
        return found if spins_per_s(job) is not None else found / 2  # some of the sleeps are for other reasons
    found = max(found, calls_per_s(job.cuda.calls) * policy.SHORT_TURN_S)
    return max(0.0, found - policy.LAUNCH_COST_S * (job.cuda.launches_per_s or 0.0))


def waits_per_s(job: WalkedJob) -> float:
    """Waits for the GPU per second, as far as they take time. Without the probe: spins of the main thread in samples, else its sleeps, if
    it has no other reason to sleep so often."""
    if job.cuda.calls is not None:
        return job.cuda.calls.waits_per_s
    if (spins := spins_per_s(job)) is not None:
        return spins
    worked, sleeps = job.idle is not None and job.idle < policy.NEARLY_ALL, job.trainer.sleeps_per_s or 0.0
    often = 2 * sleeps >= policy.SYNCS_PER_S  # a step with a single wait makes about six
    return sleeps if often and worked and not _sleeps_for_others(job) else 0.0


def wakes_per_s(job: WalkedJob) -> float:
    """Waits for the GPU per second or, if more, calls that wait in which the main thread slept."""
    slept = min(calls_per_s(job.cuda.calls), job.trainer.sleeps_per_s or 0.0) if job.cuda.calls is not None else 0.0
    return max(waits_per_s(job), slept)


def spins_per_s(job: WalkedJob) -> float | None:
    """Waits for the GPU per second in which the main thread spins; None if it was not sampled or hardly spins."""
    return job.cuda.sampled.waits_per_s if job.cuda.sampled is not None and job.cuda.sampled.sync >= policy.TENTH else None


def calls_per_s(calls: CallFacts) -> float:
    """Calls per second of the most frequent call that waits: `.item()` makes two, a copy and a synchronize."""
    return min(calls.sync_per_s, max(calls.rates, default=0.0))


def _sleeps_for_others(job: WalkedJob) -> bool:
    """True if the main thread's sleeps are not waits for the GPU: it sleeps for less time than its GPU works (short sleeps may hand over
    batches), its steps are so short that they explain the sleeps, it writes to storage at each sleep, or it mostly sleeps on locks while
    its own threads work."""
    trainer, kinds = job.trainer, job.trainer.kinds
    sleeps_per_s, batches_per_s = trainer.sleeps_per_s or 0.0, sum(worker.sleeps_per_s or 0.0 for worker in job.workers)
    asleep = sum(share for kind, share in kinds.items() if kind not in _NO_GPU)
    return (
        asleep < policy.HALF * (1.0 - (job.idle or 0.0))
        or sleeps_per_s < policy.PER_STEP * batches_per_s
        or (trainer.write_bytes_per_s or 0.0) >= policy.WRITTEN_BYTES * sleeps_per_s > 0.0
        or (threads_at_work(job) and 2 * kinds.get(waits.LOCK, 0.0) >= sum(kinds.values()))
    )
