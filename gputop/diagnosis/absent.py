"""Ranks of a training that are not there: whose process has ended, while the others stand in a collective that it will never join.

By the environment that a launcher gives each rank, and its loader's workers with it: whoever has a rank's number is there for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from gputop.diagnosis import waits
from gputop.diagnosis.facts import JobFacts
from gputop.model.board import Board
from gputop.model.frame import ProcInfo
from gputop.model.roles import SIZE_VARIABLES, number_in, rank_of

STILL_S = 4.0  # s without a sign of life, from which ranks stand in a collective: who merely ends after the others saves or sends something
_MOST = 4096  # ranks on a host: more was never meant


def set_absent(jobs: list[JobFacts], board: Board, gpus: int) -> None:
    """Tell those that stand which ranks of their training should be on this host, with so many ``gpus``, and are not."""
    ranks = [job for job in jobs if job.trainer.role.rank is not None and job.still_s >= STILL_S]
    there = _there(board) if ranks else {}
    for job in ranks:
        info = job.trainer.info
        if (size := number_in(info.env, SIZE_VARIABLES) or 0) > 1:
            own = there.get(size, set())
            job.absent_ranks = tuple(rank for rank in _expected(info, own, size, gpus) if rank not in own)


def _there(board: Board) -> dict[int, set[int]]:
    """Size of a training -> its ranks on this host, as far as they live."""
    found: dict[int, set[int]] = {}
    for pid, proc in board.procs.items():
        info = board.infos.get(pid)
        rank = rank_of(info) if info is not None and proc.state not in waits.ENDED_STATES else None
        if info is not None and rank is not None:
            found.setdefault(number_in(info.env, SIZE_VARIABLES) or 0, set()).add(rank)
    return found


def _expected(info: ProcInfo, there: set[int], size: int, gpus: int) -> Iterable[int]:
    """As many as the launcher says; all, where there is a GPU for each and nobody else spread them over nodes; else what lies between
    those that are there."""
    rank, local, local_size = rank_of(info), number_in(info.env, ("LOCAL_RANK",)) or 0, number_in(info.env, ("LOCAL_WORLD_SIZE",)) or 0
    if rank is not None and 0 < local_size <= _MOST:
        return range(max(0, rank - local), rank - local + local_size)
    if size <= gpus and "WORLD_SIZE" in info.env and "SLURM_JOB_ID" not in info.env:
        return range(size)
    return range(min(there), min(max(there) + 1, min(there) + _MOST)) if there else ()
