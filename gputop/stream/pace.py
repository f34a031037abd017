"""How often a long stretch of a recording is judged: often where something turns, seldom where nothing does."""

from __future__ import annotations

from collections.abc import Container

from msgspec import Struct

from gputop.diagnosis.facts.waits import ENDED_STATES, STOPPED_STATES
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Frame, compute_pids

SELDOM_NS = 4 * SECOND_NS  # between two looks while nothing turns: a choice, a change of nothing that is compared is seen so late
OFTEN_NS = 2 * SECOND_NS  # between two looks after a turn
TURNS_NS = 3 * OFTEN_NS  # ns after a turn for which looks are often: the window of the latest looks is then behind it
MEMORY = 30  # seconds over which the usual utilization and its spread are taken: several steps of a slow job (a choice)
MARGIN = 0.2  # of utilization, by which a second differs at least from the usual (a choice: less is seen `SELDOM_NS` later)
SPREADS = 3.5  # standard deviations by which it differs at least: of a normal spread one second in 2,000 does
_HALTED = STOPPED_STATES + ENDED_STATES


class _Usual(Struct):
    """The usual utilization of a GPU since the last turn: mean and variance, to which later seconds count more."""

    seconds: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def differs(self, util: float) -> bool:
        """True if a second of this utilization is unusual; False while too little is known."""
        return self.seconds * SECOND_NS >= TURNS_NS and abs(util - self.mean) >= max(MARGIN, SPREADS * self.variance**0.5)

    def add(self, util: float) -> None:
        """Take in a second."""
        self.seconds += 1
        weight, apart = 1 / min(self.seconds, MEMORY), util - self.mean
        self.mean += weight * apart
        self.variance = (1 - weight) * (self.variance + weight * apart * apart)


class LookPace:
    """Compares each second with those before, at a few microseconds: GPUs' utilization, and who lives, is stopped or has a context."""

    def __init__(self) -> None:
        self._usual: dict[int, _Usual] = {}  # by index of a GPU
        self._often_until_ns = 0

    def turns(self, frame: Frame, board: Board, jobs: Container[int]) -> bool:
        """Take in the next frame, which ``board`` does not hold yet; returns whether something turns with it. ``jobs``: pids of trainers
        and workers."""
        if not frame.ticks:  # a part of a second
            return False
        utils, turned = _utils(frame), _has_party_changed(frame, board, jobs)
        for index, util in utils.items():
            usual = self._usual.setdefault(index, _Usual())
            if usual.differs(util):
                self._usual[index] = usual = _Usual()
                turned = True
            usual.add(util)
        if turned:
            self._often_until_ns = frame.t_ns + TURNS_NS
        return turned

    def every_ns(self, t_ns: int) -> int:
        """The time between two looks at present."""
        return OFTEN_NS if t_ns < self._often_until_ns else SELDOM_NS


def _utils(frame: Frame) -> dict[int, float]:
    """Mean utilization of each GPU in the frame's second, as a share."""
    read: dict[int, list[float]] = {}
    for one in frame.gpus if frame.ticks == 1 else frame.readings:
        pct = one.util_pct if one.gr_active_pct is None else one.gr_active_pct
        if pct is not None:
            read.setdefault(one.index, []).append(pct)
    return {index: sum(pcts) / len(pcts) / 100 for index, pcts in read.items()}


def _has_party_changed(frame: Frame, board: Board, jobs: Container[int]) -> bool:
    """True if a process of a job begins, ends, stops or goes on, a process that uses CUDA begins, or a GPU answers otherwise or is used by
    others."""
    if any(pid in jobs for pid in frame.gone):
        return True
    if any(info.pid not in board.infos and (info.uses_cuda or info.ppid in jobs) for info in frame.infos):
        return True
    for now in frame.procs:
        before = board.procs.get(now.pid) if now.pid in jobs else None
        if before is not None and (now.state in _HALTED) != (before.state in _HALTED):
            return True
    for gpu in frame.gpus:
        stood = board.gpus.get(gpu.index)
        if stood is None or gpu.missing.keys() - stood.missing.keys() or (gpu.lost is not None and gpu.lost != stood.values.get("lost")):
            return True
        if gpu.procs is not None and compute_pids(gpu.procs) != compute_pids(stood.procs):
            return True
    return False
