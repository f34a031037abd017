"""Pick GPUs without work: print CUDA_VISIBLE_DEVICES for them, or run a command with it.

A GPU is unused if no process holds it; held if a process holds memory on it and nothing runs; busy if something ran in the last second.
Unused ones are picked first. With --free one that is held will do if so much memory is free, and a line names who holds it. Only GPUs that
CUDA_VISIBLE_DEVICES lets through already (a scheduler's) are picked. Nothing is reserved: two picks at one moment may pick the same GPU.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from gputop.commands.options import indices, leave_root, number, size
from gputop.system.console import notify, write
from gputop.system.errors import UserError, not_run
from gputop.system.imports import STANDARD
from gputop.system.text import clean, counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gputop.model.board import Board, GpuBoard
    from gputop.model.frame import Frame, Header

EXAMPLES = """examples:
  export $(gputop pick)                           one GPU for this shell
  gputop pick 2 --free 40G --run python train.py  two GPUs with 40 GiB free each
"""
VISIBLE, ORDER, BY_BUS = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PCI_BUS_ID"  # of CUDA; NVML numbers GPUs by their bus
LOOK_S = 1.0  # s that the GPUs are looked at: steps and pauses of a training are shorter (a choice)
INTERVAL_S = 0.1  # s between two readings
CONTEXT_BYTES = 256 << 20  # bytes of a GPU's memory in use from which some process holds it: a CUDA context takes 300 MB (measured)
MOST_HOLDERS = 2  # processes on a GPU that are named
_UNUSED, _HELD, _BUSY, _UNFIT = range(4)  # states, the best first
_PROHIBITED, _ALONE = "Prohibited", ("Exclusive Process", "Exclusive Thread")  # compute modes, as the NVML source names them
_UNSEEN = "processes that cannot be seen here"


class GpuState(NamedTuple):
    """What one GPU has to offer."""

    gpu: int  # its index
    rank: int  # `_UNUSED`, `_HELD`, `_BUSY`, `_UNFIT`
    words: str  # ``held by python (71) of ada``
    used_bytes: int | None = None
    free_bytes: int | None = None

    def told(self) -> str:
        """``3 held by python (71) of ada, 97.1 GiB free``."""
        free = "free memory unknown" if self.free_bytes is None else f"{_gib(self.free_bytes)} free"
        return f"{self.gpu} {self.words}" if self.rank == _UNFIT else f"{self.gpu} {self.words}, {free}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("count", nargs="?", type=number(), default=1, metavar="N", help="how many (1)")
    parser.add_argument("--free", type=size, metavar="SIZE", help="each with so much free memory: 40G; it may be held")
    parser.add_argument("--gpu", type=indices, metavar="LIST", help="only of these GPUs: 0 or 0,2 or 0-3")
    parser.add_argument("--run", nargs=argparse.REMAINDER, metavar="CMD", help="run this with the variable set; -- CMD is the same")
    parser.set_defaults(script_args=[])


def run(args: argparse.Namespace) -> int:
    """Print the variable, or become the command. UserError if there are not enough GPUs."""
    command = [*(args.run or ()), *(["--"] if args.run and args.script_args else ()), *args.script_args]
    if args.run == [] and not command:
        raise UserError("--run needs a command: gputop pick 2 --run python train.py", code=2)
    board, util = _look(args)
    picked = pick(states(board, util, os.environ), args.count, args.free)
    for one in picked:
        if one.rank == _HELD:
            notify(f"GPU {one.told()}: nothing ran on it for {LOOK_S:g} s")
    chosen = {VISIBLE: ",".join(str(one.gpu) for one in picked)}
    if command or (os.environ.get(ORDER) != BY_BUS and len({board.gpus[index].text("name") for index in board.gpus}) > 1):
        chosen = {ORDER: BY_BUS, **chosen}  # else CUDA would number different GPUs by their speed
    if command:
        _become(command, chosen)
    write(f"{' '.join(f'{name}={value}' for name, value in chosen.items())}\n")
    return 0


def _look(args: argparse.Namespace) -> tuple[Board, dict[int, float]]:
    """The board after a look, and each GPU's highest utilization in it. UserError without a GPU."""
    from gputop.commands import once
    from gputop.model.board import Board

    off = {"no_ebpf": True, "sudo": False, "serving": None, "no_serving": True}
    look = argparse.Namespace(host=None, interval=INTERVAL_S, gpu=args.gpu, line=None, json=True, **off)
    board, util = Board(), dict[int, float]()
    for item in once.look(look, LOOK_S):
        _fold(item, board, util)
    if not board.gpus:
        source = board.sources.get("nvml")
        why = "; ".join(part for part in (source.reason, source.remedy) if part) if source else ""
        raise UserError(f"no GPU to pick: {why or 'none is seen'}")
    return board, util


def _fold(item: Header | Frame, board: Board, util: dict[int, float]) -> None:
    from gputop.model.frame import Frame

    if not isinstance(item, Frame):
        return
    board.fold(item)
    for gpu in item.gpus:
        for share in (gpu.util_pct, gpu.gr_active_pct):
            if share is not None:
                util[gpu.index] = max(share, util.get(gpu.index, 0.0))


def states(board: Board, util: Mapping[int, float], environ: Mapping[str, str]) -> list[GpuState]:
    """The state of each GPU. ``util``: GPU -> highest utilization lately, in per cent."""
    return [_state(gpu, util.get(index), board, environ.get(VISIBLE)) for index, gpu in sorted(board.gpus.items())]


def _state(gpu: GpuBoard, util_pct: float | None, board: Board, visible: str | None) -> GpuState:
    used, total = gpu.number("mem_used_bytes"), gpu.number("mem_total_bytes")
    memory = (None, None) if used is None or total is None else (int(used), max(0, int(total - used)))
    if unfit := _unfit(gpu, visible):
        return GpuState(gpu.index, _UNFIT, unfit, *memory)
    if util_pct is None and "procs" not in gpu.values:
        return GpuState(gpu.index, _UNFIT, "not measured: neither its utilization nor its processes", *memory)
    pids = sorted(gpu.compute_pids)
    unseen = not pids and used is not None and not gpu.values.get("mem_shared") and used >= CONTEXT_BYTES
    who = f" by {_holders(pids, board)}" if pids else f" by {_UNSEEN}" if unseen else ""
    if util_pct:
        return GpuState(gpu.index, _BUSY, f"busy{f' ({max(1, round(util_pct))} %)'}{who}", *memory)
    if gpu.values.get("compute_mode") in _ALONE and (pids or unseen):
        return GpuState(gpu.index, _UNFIT, f"held{who} alone (compute mode {gpu.text('compute_mode')})", *memory)
    return GpuState(gpu.index, _HELD, f"held{who}", *memory) if who else GpuState(gpu.index, _UNUSED, "unused", *memory)


def _unfit(gpu: GpuBoard, visible: str | None) -> str:
    """Why a GPU cannot be picked at all; empty if it can."""
    if gpu.lost:
        return "lost"
    if gpu.silent_s is not None:
        return "silent: its driver does not answer"
    if gpu.values.get("needs_reset"):
        return "in need of a reset"
    if gpu.values.get("mig_mode"):
        return "split by MIG: its parts have no number"
    if gpu.text("compute_mode") == _PROHIBITED:
        return f"closed (compute mode {_PROHIBITED})"
    if visible is not None and not any(_names(word.strip(), gpu) for word in visible.split(",")):
        return f"not in {VISIBLE}"
    return ""


def _names(word: str, gpu: GpuBoard) -> bool:
    """True if a word of CUDA_VISIBLE_DEVICES means this GPU: its number, or the beginning of its UUID."""
    return word == str(gpu.index) or (word.startswith("GPU-") and gpu.text("uuid").startswith(word))


def _holders(pids: Sequence[int], board: Board) -> str:
    from gputop.model.roles import is_foreign_list, program_name

    if is_foreign_list(board.infos, board.compute_pids):
        return _UNSEEN
    named = []
    for pid in pids[:MOST_HOLDERS]:
        info = board.infos.get(pid)
        named.append(f"process {pid}" if info is None else f"{program_name(info)} ({pid}){f' of {info.user}' if info.user else ''}")
    return clean(", ".join(named)) + (f" and {len(pids) - MOST_HOLDERS} more" if len(pids) > MOST_HOLDERS else "")


def pick(found: Iterable[GpuState], count: int, free_bytes: int | None) -> list[GpuState]:
    """The best GPUs by index: unused ones before held ones, then those with the least memory in use. UserError if there are too few."""
    known = list(found)
    fit = [one for one in known if _fits(one, free_bytes)]
    if len(fit) < count:
        are, have = ("is", "has") if len(fit) < 2 else ("are", "have")
        wanted = f"{are} unused" if free_bytes is None else f"{are} without work and {have} {_gib(free_bytes)} free"
        told = f"{len(fit) or 'none'} of {counted(len(known), 'GPU')} {wanted}, and {count} {'is' if count == 1 else 'are'} asked for"
        raise UserError(f"{told}: {'; '.join(one.told() for one in known)}")
    ranked = sorted(fit, key=lambda one: (one.rank, one.used_bytes or 0, one.gpu))
    return sorted(ranked[:count], key=lambda one: one.gpu)


def _fits(one: GpuState, free_bytes: int | None) -> bool:
    if free_bytes is None:
        return one.rank == _UNUSED
    return one.rank <= _HELD and one.free_bytes is not None and one.free_bytes >= free_bytes


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"


def _become(command: Sequence[str], chosen: Mapping[str, str]) -> NoReturn:
    """Become the command, which after ``sudo gputop`` belongs to the user, as `gputop record`'s does."""
    leave_root(*STANDARD)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and a program would inherit that
    try:
        os.execvpe(command[0], list(command), {**os.environ, **chosen})
    except OSError as error:
        error.filename = clean(command[0])  # not the last folder of PATH that was tried
        raise UserError(not_run(error), code=127 if isinstance(error, FileNotFoundError) else 126) from None  # as shells do
