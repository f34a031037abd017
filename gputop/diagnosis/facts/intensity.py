"""Waste of GPUs that look busy: high utilization means only that some kernel ran.

``light``   kernels that use few SMs: by GPM's SM activity, else by power
``slowed``  clocks held down by heat, a power brake, a lowered power limit or a user's setting
``shared``  kernels of others, for which those of the job waited
``peer``    spinning in a collective until a slower rank arrives
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Hashable, Sequence
from statistics import median
from typing import TypeVar

from msgspec.structs import replace

from gputop.diagnosis.facts.facts import GpuFacts, JobFacts
from gputop.diagnosis.facts.feeders import threads_at_work
from gputop.diagnosis.facts.gpushares import lost_to_others
from gputop.diagnosis.facts.proc import blocked_on
from gputop.diagnosis.facts.stepclock import from_calls
from gputop.findings import policy
from gputop.findings.ranks import RankPace, find_late_rank, find_slow_part, find_slowest, waited_share
from gputop.model.parallel import parallel_of
from gputop.model.roles import SIZE_VARIABLES, number_in

_Job = TypeVar("_Job", bound=JobFacts)

_BRAKES = 0x8 | 0x20 | 0x40 | 0x80
POWER_CAP, SET_CLOCKS = 0x4, 0x2
_NUMBER = re.compile(r"(?<=_TP)\d+|(?<=_EP)\d+")
"""Number of a rank among those that compute the same passes, in the title of an engine's worker: ``VLLM::Worker_TP1``,
``sglang::scheduler_TP0_EP0``. Other parts, as of a pipeline (``PP``) or of copies of the model (``DP``), have other work."""
_AT_PEERS = ("lock", "network", "pipe", "poll")
"""Kinds of wait of a main thread that waits for other ranks in a collective on the host: through its library's threads, or directly."""


def with_kin(jobs: list[JobFacts]) -> list[JobFacts]:
    """The jobs, each with its ``kin``."""
    families = {job.trainer.pid: family for family in _families(jobs) for job in family}
    return [_with_kin(job, families.get(job.trainer.pid, [])) for job in jobs]


def _with_kin(job: JobFacts, family: list[JobFacts]) -> JobFacts:
    kin, used_cpus = frozenset(one.trainer.pid for one in family), sum(one.cpus.used for one in family)
    info = job.trainer.info
    parallel = parallel_of(info.cmdline, number_in(info.env, SIZE_VARIABLES) or 0, info.group_sizes)
    ranks = replace(job.ranks, kin=kin, used=used_cpus) if family else job.ranks
    return job if ranks is job.ranks and parallel is None else replace(job, ranks=replace(ranks, parallel=parallel))


def with_waste(jobs: list[_Job]) -> list[_Job]:
    """The jobs, each with its ``waste`` and ``straggler``; their states are known."""
    found = {job.trainer.pid: replace(job, gpu_use=replace(job.gpu_use, waste=_wasted(job))) for job in jobs}
    for group in _groups(_families(list(found.values()))):
        found |= {job.trainer.pid: job for job in _with_straggler(group)}
    return list(found.values())


def _wasted(job: JobFacts) -> dict[str, float]:
    shares = [part for gpu in job.gpus for part in _parts(job, gpu)]
    found = {kind: sum(part for name, part in shares if name == kind) / max(1, len(job.gpus)) for kind in ("light", "slowed", "shared")}
    return {kind: share for kind, share in found.items() if share > 0.0}


def _parts(job: JobFacts, gpu: GpuFacts) -> list[tuple[str, float]]:
    """The waste of one of a job's GPUs. SM activity and power of a shared one are not the job's own: only clocks slow both alike."""
    theirs, (kind, waste) = lost_to_others(job, gpu), _waste(gpu)
    if theirs < policy.LITTLE:
        return [(kind, waste)]
    return [("shared", theirs), *([(kind, waste * (gpu.own or 0.0))] if kind == "slowed" else [])]


def _waste(gpu: GpuFacts) -> tuple[str, float]:
    if gpu.util is None or gpu.util < policy.MOST:
        return "", 0.0
    if slowed_by(gpu):
        return "slowed", gpu.util * (1.0 - min(1.0, (gpu.sm_clock_mhz or 0.0) / (gpu.sm_clock_free_mhz or gpu.sm_clock_max_mhz or 1.0)))
    return ("light", gpu.util * (1.0 - (intensity(gpu) or 0.0))) if is_light(gpu) else ("", 0.0)


def is_light(gpu: GpuFacts) -> bool:
    """True if the kernels that run use little of the GPU; False if unknown."""
    working = intensity(gpu)
    return working is not None and working <= (policy.LIGHT_SM if gpu.sm_active is not None else policy.QUARTER)


def slowed_by(gpu: GpuFacts) -> int:
    """Clock-event bits that hold the SM clock under `policy.SLOW_CLOCK`, including clocks set by a user; a power cap counts only if the
    limit was lowered."""
    if not gpu.sm_clock_mhz or not gpu.sm_clock_max_mhz or gpu.sm_clock_mhz > policy.SLOW_CLOCK * gpu.sm_clock_max_mhz:
        return 0
    lowered = (gpu.power_limit_w or 0.0) < (1.0 - policy.LITTLE) * (gpu.power_limit_default_w or 0.0)
    return gpu.throttle_mask & (_BRAKES | SET_CLOCKS | (POWER_CAP if lowered else 0))


def intensity(gpu: GpuFacts) -> float | None:
    """Share of the GPU that its kernels use while one runs, 0..1; None if neither SM activity nor power is known."""
    if gpu.util is None or gpu.util <= 0.0:
        return None
    if gpu.sm_active is not None:
        return min(1.0, gpu.sm_active / gpu.util)
    if gpu.power_w is None or not gpu.power_limit_w or gpu.power_smoothing:
        return None
    above_idle = gpu.power_w / gpu.power_limit_w - policy.IDLE_POWER
    pace = (gpu.sm_clock_mhz or 0.0) / (gpu.sm_clock_max_mhz or 1.0) if slowed_by(gpu) else 1.0  # slowed kernels draw less power
    return min(1.0, max(0.0, above_idle / (1.0 - policy.IDLE_POWER) / gpu.util / pace))


def _groups(families: list[list[_Job]]) -> list[list[_Job]]:
    """Families that are ranks of one training: by their environment, if the ranks differ, or because they are in step."""
    return [family for family in families if (_ranks_differ(family) if _are_ranks(family) else _in_step(family))]


def _are_ranks(family: Sequence[JobFacts]) -> bool:
    """True if a launcher gave each a rank, MPI's gives no more than that; or if each has its number in its title."""
    by_launcher = bool(family[0].trainer.training) or all(job.trainer.role.rank is not None for job in family)
    return by_launcher or all(_is_numbered(job) for job in family)


def _ranks_differ(family: Sequence[JobFacts]) -> bool:
    return len({tuple(job.trainer.info.cmdline) if _is_numbered(job) else job.trainer.role.rank for job in family}) == len(family)


def _is_numbered(job: JobFacts) -> bool:
    """True if the process is a worker of an inference engine that has its number in its title: ``VLLM::Worker_TP1``."""
    words = job.trainer.info.cmdline
    return len(words) == 1 and "::" in words[0] and _NUMBER.search(words[0]) is not None


def _in_step(family: Sequence[JobFacts]) -> bool:
    """True if all jobs make the same number of steps per second by their CUDA calls, each on its own GPUs. Unrelated trainings do not; if
    they do, none is late."""
    paces = [from_calls(job.cuda.calls) or 0.0 for job in family]
    gpus = [gpu.index for job in family for gpu in job.gpus]
    return min(paces) >= (1.0 - policy.LITTLE) * max(paces) > 0.0 and len(gpus) == len(set(gpus)) >= len(family)


def _families(jobs: list[_Job]) -> list[list[_Job]]:
    """Jobs that belong together: ranks of one training, or, if the environment names none, jobs that one process started with the same
    command, or with titles that differ in their number alone."""
    found: list[list[_Job]] = []
    for family in _by(lambda job: _training(job) or _started(job), jobs if len(jobs) > 1 else []):
        # A launcher may give each rank arguments of its own (--local_rank); two trainings that look alike differ in theirs.
        alike = not family[0].trainer.training or _ranks_differ(family)
        split = [family] if alike else _by(lambda job: tuple(job.trainer.info.cmdline), family)
        found += [part for part in split if len(part) > 1]
    return found


def _training(job: JobFacts) -> Hashable:
    """The training that the job is a rank of; ranks of two users belong to two trainings. None if the environment names none."""
    key = job.trainer.training
    return (key, job.trainer.info.uid) if key else None


def _started(job: JobFacts) -> Hashable:
    info = job.trainer.info
    if _is_numbered(job):
        return info.ppid, _NUMBER.sub("", info.cmdline[0])
    return (info.ppid, *(["spawned"] if "--multiprocessing-fork" in info.cmdline else info.cmdline))


def _by(key: Callable[[_Job], Hashable], jobs: list[_Job]) -> list[list[_Job]]:
    parts: dict[Hashable, list[_Job]] = {}
    for job in jobs:
        parts.setdefault(key(job), []).append(job)
    return list(parts.values())


def _with_straggler(group: list[_Job]) -> list[_Job]:
    """The jobs, each with the rank that the others wait for, and the share of time that its GPUs spin until that rank arrives; empty
    without such a rank."""
    measured = [(job, pace) for job in group if (pace := pace_of(job)) is not None]
    paces = [pace for _, pace in measured]
    parallel = next((job.ranks.parallel for job, _ in measured if job.ranks.parallel is not None), None)
    numbers = [number for job, _ in measured if (number := job.trainer.role.rank) is not None]
    if parallel is None or len(numbers) < len(measured) or max(numbers, default=0) >= parallel.size:
        part, at, own = None, find_slowest(paces), set[int]()
    else:
        part = find_slow_part(paces, numbers, parallel)
        own = {i for i, number in enumerate(numbers) if part is not None and parallel.part_of(part.kind, number) == part.number}
        at = find_late_rank(paces, numbers, parallel) if part is None else min(own)
    if at is None:
        return []
    slowest, late = paces[at], measured[at][0].trainer
    own |= {at}
    clocks = _clocks([job for job, _ in measured], own)
    wastes = [job.gpu_use.waste if i in own else {"peer": waited_share(pace, slowest)} for i, (job, pace) in enumerate(measured)]
    return [
        replace(job, ranks=replace(job.ranks, straggler=late, part=part, clocks_mhz=clocks), gpu_use=replace(job.gpu_use, waste=waste))
        for (job, _), waste in zip(measured, wastes, strict=True)
    ]


def _clocks(jobs: Sequence[JobFacts], late: Container[int]) -> tuple[float, float] | None:
    """The lowest SM clock of the late ranks' GPUs, and the median of the others'; None if one of them is not known."""
    own = [gpu.sm_clock_mhz for at, job in enumerate(jobs) if at in late for gpu in job.gpus]
    others = [gpu.sm_clock_mhz for at, job in enumerate(jobs) if at not in late for gpu in job.gpus]
    known, theirs = [clock for clock in own if clock], [clock for clock in others if clock]
    if not known or not theirs or len(known) + len(theirs) < len(own) + len(others):
        return None
    return min(known), median(theirs)


def computes_more(job: JobFacts) -> bool:
    """True if the straggler's GPU is as fast as the others', nobody shares it, and it works while theirs wait: it has more to do."""
    clocks, gpus = job.ranks.clocks_mhz, job.gpus
    works = (job.idle or 0.0) < policy.FIFTH and not any(map(slowed_by, gpus)) and "shared" not in job.gpu_use.waste
    return works and clocks is not None and clocks[0] >= (1.0 - policy.LITTLE) * clocks[1]


def is_in_slow_part(job: JobFacts) -> bool:
    """True if the rank belongs to the part of its training that is late as a whole."""
    parallel, rank, part = job.ranks.parallel, job.trainer.role.rank, job.ranks.part
    return parallel is not None and rank is not None and part is not None and parallel.part_of(part.kind, rank) == part.number


def pace_of(job: JobFacts) -> RankPace | None:
    """Figures of one rank by which `find_slowest` finds the rank that the others wait for; None if it is unknown whether the job's GPUs
    work."""
    if job.idle is None:
        return None
    blocked = max(0.0, job.trainer.state.fractions.get("blocked", 0.0) - job.feeders.share)  # its feeders are no ranks
    own_delay = max(0.0, job.idle - blocked - job.trainer.spins)
    return RankPace(job.idle, own_delay, _worked(job), _awaited(job))


def _worked(job: JobFacts) -> float | None:
    """`used`; None if one of the job's GPUs was not busy all the time."""
    return used(job) if all((gpu.util or 0.0) >= policy.MOST for gpu in job.gpus) else None


def used(job: JobFacts) -> float | None:
    """Share of the job's GPUs that was used over the window, 0..1; None if unknown."""
    parts = [part * (gpu.util or 0.0) for gpu in job.gpus if (part := intensity(gpu)) is not None]
    return sum(parts) / len(parts) if parts else None


def _awaited(job: JobFacts) -> float | None:
    """Share of the window in which the trainer did not sleep on a lock or socket while its GPU idled, as in a collective on the host until
    the last rank arrives. None if the lock may belong to its own threads, or its GPU spins in a collective itself."""
    if threads_at_work(job) or job.idle is None or any(_waste(gpu)[0] == "light" for gpu in job.gpus):
        return None
    blocked = blocked_on(job.trainer)
    return 1.0 - min(max(0.0, sum(blocked.get(kind, 0.0) for kind in _AT_PEERS) - job.feeders.share), job.idle)
