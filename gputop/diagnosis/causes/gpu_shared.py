"""gpu-shared: kernels of other processes run on the job's GPU while its own wait.

Costs: contexts take turns on a GPU (time slices of about 2 ms), so a neighbour that always has work takes as much time as the job gets;
under MPS kernels run side by side, and take SMs and memory's bandwidth from each other. Utilization counts all of them.
Seen: leaf gpu x shared, its share by the driver's samples of each process (`gpushares.lost_to_others`): a GPU that hardly rests, and
processes outside the job that ran kernels there.
Abstains: the driver gives no samples of single processes (MIG, some vGPUs); the others are the job's own ranks, loaders or members; the
GPU has time left for both; the trainer waits for its data meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from gputop.diagnosis.causes import Finding, Judge, percent
from gputop.diagnosis.facts.facts import GpuFacts, Neighbour
from gputop.diagnosis.facts.gpushares import shared, taken
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings import policy
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import Culprit, Evidence, Fix

MOST = 3  # neighbours that are named


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    gpu, lost = next(iter(shared(job)), (job.gpus[0], 0.0))
    named = gpu.neighbours[:MOST]
    evidence = (
        percent("gpu_taken_pct", taken(gpu), filled("of the time GPU {} worked for {}", gpu.name, told(named))),
        percent("gpu_own_pct", gpu.own, "of the time it worked for the job itself"),
        percent("gpu_waited_pct", lost, "of the time the job's kernels waited for theirs, at most"),
        Evidence("gpu_neighbours", float(len(gpu.neighbours)), "", "processes outside the job with kernels on it"),
    )
    return Finding(held(gpu), evidence, tuple(fixes(gpu, job, facts)), culprits(gpu), (job.trainer.pid,))


def held(gpu: GpuFacts) -> str:
    """Words for who takes how much of a GPU's time."""
    how = "beside its own (MPS)" if any(one.by_mps for one in gpu.neighbours) else "in turn with its own"
    shares = joined(", ", (filled("{} runs {:.0f}%", told([one]), 100 * one.share) for one in gpu.neighbours[:MOST]))
    return filled("{} of the time on GPU {}, {}, which run {:.0f}%", shares, gpu.name, how, 100 * (gpu.own or 0.0))


def told(named: tuple[Neighbour, ...] | list[Neighbour]) -> str:
    """Names of neighbours, with their pids, and with their users where these are known."""
    return joined(", ", (filled("{} ({}{})", one.name, one.pid, filled(", user {}", one.user) if one.user else "") for one in named))


def culprits(gpu: GpuFacts) -> tuple[Culprit, ...]:
    """The neighbours that run a fifth as much as the one that runs most."""
    most = gpu.neighbours[0].share if gpu.neighbours else 0.0
    return tuple(Culprit(one.pid, one.name, None) for one in gpu.neighbours[:MOST] if one.share >= policy.FIFTH * most)


def fixes(gpu: GpuFacts, job: WalkedJob, facts: WalkedFacts) -> Iterator[Fix]:
    """Fixes that give the job a GPU of its own, or a larger part of this one."""
    rest = [one for one in facts.gpus if one.util is not None and one.util < policy.LITTLE and not one.split and not one.gone]
    free = [one.index for one in rest if not one.pids]
    neighbour = told(gpu.neighbours[:1])
    if free and len(job.gpus) == 1:
        yield Fix(
            filled("Start it again on GPU {}, on which nothing runs", free[0]), filled("export CUDA_VISIBLE_DEVICES={:d}", free[0])
        )
        yield Fix(filled("Or have {} run on another GPU", neighbour))
    elif free:
        yield Fix(filled("Have {} run on another GPU", neighbour))
    else:
        yield Fix(filled("Have {} run on another host, or at another time", neighbour))
    if any(one.by_mps for one in gpu.neighbours):
        half = "export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"
        yield Fix("Or bound the neighbour's part of the SMs, in its environment when it starts again", half)
    else:
        text = "Or, where neither fills the GPU alone, let their kernels run side by side: start MPS, and then both"
        yield Fix(text, "nvidia-cuda-mps-control -d")
    yield Fix("See what each process runs there", filled("nvidia-smi pmon -i {:d} -s um -c 5", gpu.index), look=True)


JUDGE = Judge("gpu-shared", "wait-heavy", _tell, rows=(("gpu", "shared"),))
