"""Kernels on a job's GPU: its own, and those of others, in turn with them (time slices) or beside them (MPS)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from msgspec.structs import replace

from gputop.diagnosis.facts.facts import GpuFacts, JobFacts, Neighbour, awaited_gpus
from gputop.diagnosis.facts.takers import name_of
from gputop.findings import policy
from gputop.model.board import Board

_MPS = "nvidia-cuda-mps"  # comm of MPS's server, whose name is longer than a comm
_LEVELS = 16  # parents to look at, at most
_ELSEWHERE = ("waiting-data", "throttled", "disk", "memory", "stopped")  # states of a trainer in which it has no use for its GPU


def with_neighbours(jobs: list[JobFacts], board: Board, family: Mapping[int, int]) -> list[JobFacts]:
    """The jobs, each with what it and others ran on its GPUs. ``family``: pid -> trainer of the job that the process belongs to."""
    return [replace(job, gpus=[_with_neighbours(job, gpu, board, family) for gpu in job.gpus]) for job in jobs]


def _with_neighbours(job: JobFacts, gpu: GpuFacts, board: Board, family: Mapping[int, int]) -> GpuFacts:
    if not gpu.ran or gpu.instance is not None:
        return gpu
    own, above = _own_pids(job), {*_above(job.trainer.pid, board)}
    mine = {pid for pid in gpu.ran if pid in own or pid in above or family.get(pid) in own or not own.isdisjoint(_above(pid, board))}
    if not mine:  # the driver's pids are of another namespace, and one of them is the job's own
        return gpu
    listed = {proc.pid: proc.kind for proc in board.gpus[gpu.index].procs} if gpu.index in board.gpus else {}
    by_mps = any(_is_server(pid, board) for pid in listed)
    others = [
        Neighbour(pid, name_of(board, pid), share, _user(pid, job, board), by_mps or "M" in listed.get(pid, ""))
        for pid, share in sorted(gpu.ran.items(), key=lambda one: (-one[1], one[0]))
        if pid not in mine and share >= policy.HARDLY and not _is_server(pid, board)
    ]
    return replace(gpu, own=sum(gpu.ran[pid] for pid in mine), neighbours=tuple(others))


def _own_pids(job: JobFacts) -> frozenset[int]:
    """Pids of the job's ranks, loaders, members and feeders."""
    procs = [job.trainer, *job.workers, *job.managers]
    return frozenset((*(proc.pid for proc in procs), *(one.pid for one in job.members), *job.feeders.pids, *job.ranks.kin))


def _above(pid: int, board: Board) -> Iterator[int]:
    """Yields the pids of a process's parents, nearest first."""
    return islice(_parents(pid, board), _LEVELS)


def _parents(pid: int, board: Board) -> Iterator[int]:
    while (info := board.infos.get(pid)) is not None and info.ppid > 1:
        yield info.ppid
        pid = info.ppid


def _is_server(pid: int, board: Board) -> bool:
    """True for the server of MPS, which launches its clients' kernels."""
    info = board.infos.get(pid)
    return info is not None and info.comm.startswith(_MPS)


def _user(pid: int, job: JobFacts, board: Board) -> str:
    info = board.infos.get(pid)
    return info.user if info is not None and info.user != job.trainer.info.user else ""


def taken(gpu: GpuFacts) -> float:
    """Share of the time in which the GPU worked for neighbours of the job. Samples of single processes need not add up to what the GPU did
    in all, as under MPS, where kernels run side by side; its utilization is the better one."""
    return sum(one.share for one in gpu.neighbours) * _scale(gpu)


def _scale(gpu: GpuFacts) -> float:
    everyone = sum(one.share for one in gpu.neighbours) + (gpu.own or 0.0)
    return min(1.0, (gpu.util or 0.0) / everyone) if everyone > 0.0 else 0.0


def lost_to_others(job: JobFacts, gpu: GpuFacts) -> float:
    """Upper bound of the share of the time in which kernels of the job waited while those of others ran.

    Only a GPU that hardly rests makes anybody wait, and under MPS only one whose SMs are at work. Its time is divided evenly among those
    that want it: a job that always has work there loses at most as much to each other process as it gets itself, unless its main thread was
    seen to wait longer. It loses nothing while it has none.
    """
    if gpu.own is None or not gpu.neighbours or (gpu.util or 0.0) < policy.MOST:
        return 0.0
    if any(one.by_mps for one in gpu.neighbours) and gpu.sm_active is not None and gpu.sm_active <= policy.LIGHT_SM:
        return 0.0
    own = gpu.own * _scale(gpu)
    elsewhere = sum(job.trainer.state.fractions.get(word, 0.0) for word in _ELSEWHERE)
    waited = awaited_gpus(job, 1.0) - own if job.cuda.calls is not None else 0.0
    return max(0.0, min(taken(gpu), max(len(gpu.neighbours) * own, waited), 1.0 - own - elsewhere))


def shared(job: JobFacts) -> list[tuple[GpuFacts, float]]:
    """(GPU, the value of `lost_to_others`) of each of the job's GPUs on which that is something, most first."""
    found = [(gpu, lost_to_others(job, gpu)) for gpu in job.gpus]
    return sorted(((gpu, share) for gpu, share in found if share >= policy.LITTLE), key=lambda one: -one[1])
