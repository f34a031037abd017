"""The GPUs of the window, their parts by MIG, and those that a trainer computes on."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from gputop.diagnosis.facts.facts import GpuFacts, mig_parts
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.facts.tracks import GpuTrack
from gputop.model import roles as who
from gputop.model.board import Board
from gputop.model.frame import Gpu, GpuReading


class Gpus:
    """Tracks of every GPU, and of every part that MIG has split off."""

    def __init__(self) -> None:
        self._whole: dict[int, GpuTrack] = {}
        self._parts: dict[tuple[int, int], GpuTrack] = {}  # (GPU, GPU instance) -> readings of the instance, if MIG has split the GPU

    def push(self, board: Board, oldest_ns: int) -> None:
        """Take in a board."""
        ours = () if who.is_foreign_list(board.infos, board.compute_pids) else board.infos
        for index, gpu in board.gpus.items():
            track = self._whole.get(index) or GpuTrack()
            self._whole[index] = track
            track.push(gpu, board.t_ns, oldest_ns)
            if any(proc.pid in ours for proc in gpu.procs):
                track.held_ns = board.t_ns
            for instance, part in mig_parts(gpu):
                self._parts.setdefault((index, instance), GpuTrack()).push(part, board.t_ns, oldest_ns)
        self._parts = {place: track for place, track in self._parts.items() if track.last_ns == board.t_ns}

    def look(self, readings: Sequence[Gpu | GpuReading]) -> None:
        """Take in readings between two boards."""
        for gpu in readings:
            if (known := self._whole.get(gpu.index)) is not None:
                known.look(gpu)

    def facts(self, board: Board) -> dict[int, GpuFacts]:
        """Index -> facts of each whole GPU on the board."""
        return {index: track.facts(index) for index, track in self._whole.items() if index in board.gpus}

    def unheld(self, gpus: dict[int, GpuFacts], since_ns: int) -> list[GpuFacts]:
        """GPUs that no process seen here has used since ``since_ns``."""
        return [facts for index, facts in gpus.items() if self._whole[index].held_ns < since_ns]

    def shares(self) -> dict[int, tuple[float, ...]]:
        """Index -> `GpuTrack.shares` of each whole GPU."""
        return {index: track.shares() for index, track in self._whole.items()}

    def util_now(self, index: int) -> float | None:
        """The latest utilization of a GPU, as a share; None if its last reading is old."""
        return self._whole[index].util_now if index in self._whole else None

    def tracks(self, gpus: Sequence[GpuFacts], parts: bool = False) -> list[GpuTrack]:
        """Tracks of whole GPUs; ``parts``: also for an entry that means only a part of its GPU."""
        return [self._whole[gpu.index] for gpu in gpus if gpu.index in self._whole and (parts or gpu.instance is None)]

    def of(self, trainer: ProcFacts, trainers: Sequence[ProcFacts], gpus: dict[int, GpuFacts]) -> list[GpuFacts]:
        """The GPUs that one of the ``trainers`` computes on; if MIG has split one, the trainer's part of it."""
        return [self._part_of(gpu, trainer.pid) if gpu.split else gpu for gpu in _whole_gpus_of(trainer, trainers, gpus)]

    def _part_of(self, gpu: GpuFacts, pid: int) -> GpuFacts:
        """The MIG instance the process uses, or the only one; without a hint, nothing is measured for it."""
        whole = self._whole[gpu.index].board
        here = {instance: track for (index, instance), track in self._parts.items() if index == gpu.index}
        for instance, track in here.items():
            if pid in track.pids or len(here) == 1:
                return track.facts(gpu.index, instance, whole.place(instance) if whole is not None else "")
        return replace(gpu, util=None, util_now=None, sm_active=None, power_w=None, unmeasurable=True)


def _whole_gpus_of(trainer: ProcFacts, trainers: Sequence[ProcFacts], gpus: dict[int, GpuFacts]) -> list[GpuFacts]:
    """The trainer's GPUs by NVML's list. If the list names no known trainer (a container): the GPUs in use that it may see, one per rank if
    the numbers match."""
    own = [gpu for gpu in gpus.values() if trainer.pid in gpu.pids]
    known = {other.pid for other in trainers}
    if own or any(known & gpu.pids for gpu in gpus.values()):
        return own
    used = [gpu for gpu in gpus.values() if gpu.pids or gpu.worked_ns]
    if len(trainers) == len(used) > 1:
        order = sorted(trainers, key=lambda proc: (proc.role.rank if proc.role.rank is not None else 1 << 30, proc.pid))
        return [used[order.index(trainer)]]
    return _visible(trainer, gpus) or used or (list(gpus.values()) if len(gpus) == 1 else [])


def _visible(trainer: ProcFacts, gpus: dict[int, GpuFacts]) -> list[GpuFacts]:
    """GPUs that CUDA_VISIBLE_DEVICES selects by number; empty if it selects none, or by UUID."""
    chosen = trainer.info.env.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return [gpus[int(index)] for index in chosen if index.strip().isdecimal() and int(index) in gpus]
