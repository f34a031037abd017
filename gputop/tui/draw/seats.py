"""On which GPUs a process is, and what it holds and does there, as the driver lists it."""

from __future__ import annotations

from collections.abc import Collection

from gputop.model.board import Board
from gputop.model.frame import GpuProc
from gputop.model.roles import is_foreign_list

Seats = dict[int, GpuProc]
"""GPU -> the entry of one process there."""


def seats(board: Board) -> dict[int, Seats]:
    """Pid -> where it is; nobody of ours where the driver speaks of others' pids."""
    found: dict[int, Seats] = {}
    ours = board.infos if is_foreign_list(board.infos, board.compute_pids) else ()
    for index, gpu in sorted(board.gpus.items()):
        for proc in gpu.procs or map(GpuProc, gpu.compute_pids):
            if proc.pid in ours:
                continue
            found.setdefault(proc.pid, {}).setdefault(index, proc)
    return found


def place(board: Board, taken: Seats) -> str:
    """``3``, on a MIG device ``3:1``; of several ``0,1``, ``0-7`` or, in three characters too, ``9+3``: GPU 9 and three more."""
    first, last = min(taken), max(taken)
    if len(taken) == 1:
        return board.gpus[first].place(taken[first].gpu_instance)
    joined = f"{first},{last}" if len(taken) == 2 else f"{first}-{last}" if len(taken) == last - first + 1 else ""
    return joined if 0 < len(joined) <= 3 else f"{first}+{len(taken) - 1}"


def held_bytes(taken: Seats) -> int | None:
    """GPU memory, on all of them; None where one does not tell."""
    held = [proc.mem_bytes for proc in taken.values()]
    return sum(known) if len(known := [some for some in held if some is not None]) == len(held) else None


def mean(shares: Collection[float | None]) -> float | None:
    """Of its GPUs; None where one does not tell."""
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if len(known) == len(shares) > 0 else None
