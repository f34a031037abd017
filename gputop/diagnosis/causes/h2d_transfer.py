"""h2d-transfer: the trainer waits for copies to, or from, the GPU.

Costs: a link has a tenth to a hundredth of GPU memory's bandwidth, and copies from pageable memory a tenth to a third of that.
Seen: row copy x link: time inside memcpy calls if probed or sampled, except possible waits for kernels (`points.copied_beside`); and by its
price (`gpuside.copying`) other traffic of the link. While the main thread computes it copies from pageable memory itself,
`policy.PAGEABLE_BYTES_PER_S` at most; while it sleeps or waits for its GPU copies from pinned memory take a quarter of the link at least.
Abstains: a trainer has not moved for `policy.STUCK_S`; or it is unknown whether its GPU works at that time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gputop.diagnosis.causes import Finding, Judge, advice, percent
from gputop.diagnosis.facts.stepclock import moves_weights
from gputop.diagnosis.graph.gpuside import both_ways, copied, copying, link_of, pace_of, traffic
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.pausing import is_ahead
from gputop.diagnosis.graph.placement import shut_out, uncounted
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import Evidence, Fix
from gputop.model.rates import counter_per_s

PAGE_BYTES = 4096  # bytes that a page fault brings in, at least


def copies_back(job: WalkedJob) -> bool:
    """True if more bytes come from the GPUs than go there: by CUDA calls, else over PCIe."""
    there, back = both_ways(job)
    return there > back


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    evidence = (
        *_counted(job),
        percent("gpu_idle_pct", job.idle, "of the time no kernel ran"),
        Evidence("c2c_bytes_per_s", round(traffic(job)) or None, "B/s", "over C2C, both ways")
        if _over_c2c(job)
        else Evidence("pcie_bytes_per_s", round(traffic(job)) or None, "B/s", "over PCIe, both ways"),
    )
    ready = "; workers have batches ready" if is_ahead(job) else ""
    return Finding(filled("{}{}", spent(job), ready), evidence, tuple(_fixes(job, facts)), (), (job.trainer.pid,))


def _fixes(job: WalkedJob, facts: WalkedFacts) -> Iterator[Fix]:
    calls, ways = job.cuda.calls, advice.computing(job, facts)
    if calls is not None and calls.to_gpu_per_s >= max(policy.SYNCS_PER_S, copied(job) / policy.SMALL_BYTES):
        yield from advice.fixes(ways.pieces)
    elif _faults_per_s(job) is not None:
        yield Fix("Fill one buffer again and again: the pages of a new one are made while it is copied")
    elif _crawls(job):
        yield Fix("See whether others copy over its link, or its clocks are low", "nvidia-smi dmon -s ct", look=True)
    yield from _elsewhere(job)
    if calls is not None and moves_weights(calls):
        yield from advice.fixes(ways.offloaded)
    elif copies_back(job):
        yield from advice.fixes(ways.returned)
    else:
        as_fast_as_link = traffic(job) >= policy.HALF * (job.idle or 1.0) * link_of(job)
        if not as_fast_as_link or (calls is not None and calls.copy >= policy.LITTLE):  # otherwise it is pinned already
            yield from advice.fixes(advice.loading(job, facts).pinned)
        yield from advice.fixes((*ways.beside, *ways.smaller))
    if gpu := uncounted(job):
        yield Fix(filled("See what another NUMA node than GPU {}'s costs: root counts copies", gpu.index), "sudo gputop", look=True)


def _elsewhere(job: WalkedJob) -> Iterator[Fix]:
    """Fix for a job whose cgroup has no CPU of its GPUs' NUMA node, if it copies as numa-remote has it."""
    if gpu := shut_out(job):
        lacks = filled("its cgroup has no CPU of NUMA node {:.0f}, to which GPU {} is attached", gpu.numa_node, gpu.index)
        yield Fix(filled("Ask for CPUs near the GPU (Slurm: --gpu-bind=closest; Kubernetes: the Topology Manager): {}", lacks))


def spent(job: WalkedJob) -> str:
    """Words for the time that was spent copying. Copies that do not delay the trainer are described by PCIe traffic while its GPU computes
    nothing; others by the bytes that calls were asked to copy, for a counter's samples of 20 ms may miss them."""
    calls, pace, asked, moved = job.cuda.calls, pace_of(job), copied(job), traffic(job)
    beside = filled("{} {}", _gb_per_s(max(moved, asked)), _way(job) if moved >= asked else "copied") if moved or asked else ""
    if calls is not None and calls.copy >= policy.LITTLE:
        of_link = filled(" of the {} that its link carries", _gb_per_s(link_of(job))) if _crawls(job) else ""
        beside = filled("at {}{}", _gb_per_s(pace), of_link) if pace else beside
        beyond = calls.sync > calls.copy and copying(job, pinned=True) > calls.copy
        waits = filled("; in them it waits for the GPU {:.0f}%", 100 * calls.sync) if beyond else ""
        return filled("copies take {:.0f}% of the time{}{}{}", 100 * calls.copy, ", " if beside else "", beside, waits)
    rests = "" if job.idle is None else filled("no kernel runs {:.0f}% of the time", 100 * job.idle)
    return filled("{}, with {}", rests, beside) if rests and beside else rests or beside or "its copies are not known"


def _over_c2c(job: WalkedJob) -> bool:
    return any(gpu.c2c_links for gpu in job.gpus)


def _way(job: WalkedJob) -> str:
    return "over C2C" if _over_c2c(job) else "over PCIe"


def _crawls(job: WalkedJob) -> bool:
    """True if copies are slower than from pageable memory: something else delays them."""
    return link_of(job) < math.inf and (pace_of(job) or math.inf) < policy.TENTH * link_of(job)


def _faults_per_s(job: WalkedJob) -> float | None:
    """Page faults of the trainer per second, if they bring in what it copies; None if they do not."""
    older, newer = job.trainer.older, job.trainer.newer
    faults = counter_per_s(older.minflt, newer.minflt, newer.t_ns - older.t_ns) or 0.0
    return faults if _crawls(job) and PAGE_BYTES * faults >= policy.HALF * copied(job) else None


def _gb_per_s(rate: float) -> str:
    return f"{rate / 1e9:.1f} GB/s" if rate >= 1e8 else f"{rate / 1e6:.1f} MB/s"


def _counted(job: WalkedJob) -> Iterator[Evidence]:
    """Yields evidence from counted CUDA calls."""
    if (calls := job.cuda.calls) is None:
        return
    yield percent("copy_pct", calls.copy if calls.copy >= policy.LITTLE else None, "of the trainer's time inside memcpy calls")
    yield percent("sync_pct", calls.sync if calls.sync >= policy.LITTLE else None, "of the trainer's time in waits for its GPU")
    yield Evidence("copies_per_s", round(calls.copy_per_s, 1), "/s", filled("memcpy calls{}", calls.counted_in))
    yield Evidence("copied_bytes_per_s", None if calls.copy_bytes_per_s is None else round(copied(job)), "B/s", "asked for by these")
    if pace := pace_of(job):
        link, faults = link_of(job), _faults_per_s(job)
        yield Evidence("copy_pace_bytes_per_s", round(pace), "B/s", "while a copy is under way")
        yield Evidence("link_bytes_per_s", round(link) if link < math.inf else None, "B/s", "that its link carries one way")
        yield Evidence("page_faults_per_s", faults and round(faults), "/s", "of the trainer")


JUDGE = Judge("h2d-transfer", "transfer-bound", _tell, rows=(("copy", "link"),))
