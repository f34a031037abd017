"""The pace of each program in a recording, stretch by stretch, and what of its machine has to do with it.

Steps are counted by the calls of CUDA of which the step clock takes one as a step, so no step is lost at an edge; where calls are not
probed, they are those of the diagnosis. Starts, ends and pauses are left out: how many of them a recording has is chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from statistics import fmean, median
from typing import Any

from msgspec import Struct, field

from gputop.diagnosis.facts.points import Counted
from gputop.diagnosis.facts.stepclock import GRID_NS, SPAN_NS
from gputop.findings.compared import JobRun, MeasuredRun
from gputop.findings.explanation import Explanation
from gputop.findings.policy import GAP_NS, WINDOW_NS
from gputop.findings.verdict import TRAINING, Ledger, total
from gputop.model.board import Board
from gputop.model.fields import CLOCKS_IDLE
from gputop.model.frame import SECOND_NS
from gputop.model.rates import cpu_deltas, stolen_shares
from gputop.stream.explained import explain_files
from gputop.stream.following import Following
from gputop.stream.moment import Span
from gputop.system.text import clean

STRETCHES = 10  # stretches of a run that its spread is known from (a choice)
MOST_TRAINERS = 256  # that are kept, the newest; a choice
MOST_PIECES = 4096  # pieces of `WINDOW_NS` of a trainer that are kept; then two become one
ROUNDED_STEPS = 0.41  # standard deviation of a number of steps that is counted between two moments, each within a step: sqrt(2 / 12)
SAME_RATE = 0.05  # relative distance within which a call sets the pace that the step clock found
SERVED, RHYTHM = "the server's metrics", "GPU rhythm"  # values of `Step.source`
NOT_PROBED = "its steps are not seen: record it as root (sudo gputop record), so that CUDA calls are counted"
SEVERAL = "several jobs of this name ran at once: record one of them alone"
NO_CALLS = "its steps are not seen: it makes no CUDA calls, by which they are counted"
IS_SERVED = "it serves requests: its pace is that of those who ask"


class _Piece(Struct):
    """Seconds and steps of a trainer in a short piece of time."""

    seconds: float = 0.0
    copies: int = 0
    syncs: int = 0
    per_s: list[float] = field(default_factory=list)  # by the diagnosis


class _Pieces(Struct):
    """One trainer, piece by piece."""

    name: str
    rank: int | None = None
    every_ns: int = WINDOW_NS
    pieces: dict[int, _Piece] = field(default_factory=dict)
    counted: Counted | None = None  # at the last look
    pace: float | None = None  # of all its calls, by the step clock
    source: str = ""  # of the diagnosis's steps
    is_served: bool = False  # it serves requests
    is_probed: bool = False  # CUDA calls are probed
    first_ns: int = 0  # first and last look
    last_ns: int = 0

    def at(self, t_ns: int) -> _Piece:
        """The piece of a moment."""
        if len(self.pieces) > MOST_PIECES:
            self.every_ns *= 2
            halved: dict[int, _Piece] = {}
            for number, piece in self.pieces.items():
                into = halved.setdefault(number // 2, _Piece())
                into.seconds += piece.seconds
                into.copies, into.syncs = into.copies + piece.copies, into.syncs + piece.syncs
                into.per_s += [fmean(piece.per_s)] if piece.per_s else []
            self.pieces = halved
        return self.pieces.setdefault(t_ns // self.every_ns, _Piece())


class PaceWatch:
    """Watches a stream that is judged: call `note` after each feed of the engine."""

    def __init__(self) -> None:
        self._trainers: dict[tuple[int, int], _Pieces] = {}  # by pid and start
        self._clocks: Counter[int] = Counter()  # MHz of SMs at work -> readings
        self._first: list[Any] | None = None
        self._last: list[Any] = []
        self._models: dict[int, str] = {}
        self._board = Board()

    def note(self, following: Following) -> None:
        """Take in what stands now."""
        board, engine = following.board, following.engine
        self._board = board
        measured = {pid for pid, standing in engine.standing.items() if standing.job.gpus}
        for pid, standing in engine.standing.items():
            job = standing.job
            if measured and pid not in measured:
                continue  # beside jobs on measured GPUs no other one is judged
            name = clean(job.trainer.role.label.removesuffix(f" rank {job.trainer.role.rank}"), 64)
            one = self._trainers.setdefault((pid, job.trainer.info.start_ticks), _Pieces(name, job.trainer.role.rank))
            if len(self._trainers) > MOST_TRAINERS:
                del self._trainers[next(iter(self._trainers))]
            one.is_served |= standing.verdict.requests is not None
            one.is_probed |= board.probed_ns > 0
            one.first_ns, one.last_ns = one.first_ns or board.t_ns, board.t_ns
            is_steady = standing.phase.word == TRAINING and standing.cause != "pause"
            _count(one, engine.counted(pid), board.t_ns, is_steady)
            if (step := engine.step_of(pid)) is not None:
                one.pace = step.per_s
            if is_steady and job.step is not None:
                one.source = job.step.source
                one.at(board.t_ns).per_s.append(job.step.per_s)
        for index, gpu in board.gpus.items():
            self._models[index] = clean(gpu.text("name"), 64)
            clock, mask = gpu.number("sm_clock_mhz"), gpu.values.get("throttle_mask")
            if clock and gpu.number("util_pct") and not (isinstance(mask, int) and mask & CLOCKS_IDLE):
                self._clocks[int(clock)] += 1
        if isinstance(cpus := board.host.get("cpus"), list):
            self._first = cpus if self._first is None else self._first
            self._last = cpus

    def run(self, path: str, found: Explanation) -> MeasuredRun:
        """The measured run, with the ledgers of an explanation of the same stretch."""
        by_name: dict[str, list[_Pieces]] = {}
        longest_ns = max((one.last_ns - one.first_ns for one in self._trainers.values()), default=0)
        for one in self._trainers.values():
            if one.last_ns - one.first_ns < longest_ns / STRETCHES:
                continue  # no stretch of it is as long as one of the longest: a check of the GPU, another user's test
            by_name.setdefault(one.name, []).append(one)
        blamed: dict[str, list[str]] = {}
        for incident in found.incidents:
            blamed.setdefault(incident.cause, []).extend(clean(one.name, 32) for one in incident.culprits)
        header = self._board.header
        return MeasuredRun(
            path=clean(path), jobs={name: _job(ranks, _shares(name, found)) for name, ranks in by_name.items()},
            gpus=tuple(self._models[index] for index in sorted(self._models)), host=clean(header.host, 64), cpus=header.cpus,
            clock_mhz=_median(self._clocks), stolen=_stolen(self._first or [], self._last), neighbours=blamed,
        )  # fmt: skip


def _count(one: _Pieces, now: Counted | None, t_ns: int, is_steady: bool) -> None:
    """Add the calls since the last look. What comes after a gap, or goes back, is not counted, nor are estimates."""
    then, one.counted = one.counted, now if now is not None and not now.estimated else None
    if then is None or one.counted is None or not is_steady or not 0 < one.counted.t_ns - then.t_ns <= GAP_NS:
        return
    copies, syncs = one.counted.copies - then.copies, one.counted.syncs - then.syncs
    if copies >= 0 and syncs >= 0:
        piece = one.at(t_ns)
        piece.seconds += (one.counted.t_ns - then.t_ns) / SECOND_NS
        piece.copies, piece.syncs = piece.copies + copies, piece.syncs + syncs


def measured(path: str, span: Span) -> tuple[MeasuredRun, list[str]]:
    """A recording as one run, and problems of it. Raises UserError if it cannot be read."""
    watch = PaceWatch()
    found = explain_files([path], span, watch=watch.note)
    return watch.run(path, found.explanation), found.problems


def _job(ranks: Sequence[_Pieces], lost: dict[str, float] | None) -> JobRun:
    """A program's run: of its ranks, which step together, the one that was seen for longest. Without any pace: why."""
    if any(one.is_served or one.source == SERVED for one in ranks):
        return JobRun(lost=lost, why_not=IS_SERVED)
    runs = [one for one in map(_of_rank, ranks) if not one.why_not]
    if not runs:
        makes_none = any(one.is_probed for one in ranks) and all(one.counted is None for one in ranks)
        return JobRun(lost=lost, why_not=NO_CALLS if makes_none else NOT_PROBED)
    apart = [one for one in ranks if one.rank is None and one.pieces]
    if any(min(one.pieces) < max(other.pieces) and min(other.pieces) < max(one.pieces) for one, other in combinations(apart, 2)):
        return JobRun(lost=lost, why_not=SEVERAL)
    best = max(runs, key=lambda one: one.steps)
    best.lost = lost
    return best


def _of_rank(one: _Pieces) -> JobRun:
    pieces = [piece for _, piece in sorted(one.pieces.items())]
    counted = [piece for piece in pieces if piece.seconds]
    seconds = sum(piece.seconds for piece in counted)
    if (pace := one.pace) and seconds:
        clocks = [piece.copies for piece in counted], [piece.syncs for piece in counted]
        clock = min(clocks, key=lambda counts: abs(sum(counts) / seconds - pace))
        steps = sum(clock)
        if abs(steps / seconds - pace) <= SAME_RATE * pace:
            groups = _grouped([*zip(clock, (piece.seconds for piece in counted), strict=True)], STRETCHES)
            per_s = [sum(count for count, _ in group) / sum(part_s for _, part_s in group) for group in groups]
            return JobRun(per_s, ROUNDED_STEPS / max(1, steps), float(steps))
    by_diagnosis = [fmean(piece.per_s) for piece in pieces if piece.per_s]
    if not by_diagnosis:
        return JobRun(why_not=NOT_PROBED)
    mean, seconds = fmean(by_diagnosis), len(by_diagnosis) * one.every_ns / SECOND_NS
    by_rhythm = one.source == RHYTHM  # of `SPAN_NS`, in whole readings: no more is known of its spread, and it is rounded
    stretches = max(1, min(STRETCHES, int(seconds * SECOND_NS) // SPAN_NS)) if by_rhythm else STRETCHES
    per_s = [fmean(group) for group in _grouped(by_diagnosis, stretches)]
    return JobRun(per_s, mean * GRID_NS / SECOND_NS / 12**0.5 if by_rhythm else 0.0, mean * seconds)


def _grouped(items: Sequence[Any], groups: int) -> list[Sequence[Any]]:
    """The items in so many groups of neighbours, or fewer; sizes differ by one at most."""
    count = min(groups, len(items))
    return [items[len(items) * i // count : len(items) * (i + 1) // count] for i in range(count)]


def _shares(name: str, found: Explanation) -> dict[str, float] | None:
    """Cause -> lost share of a program's GPU time, pauses apart; None if no GPU is measured."""
    own = [one.ledger for one in found.trainers if one.name.removesuffix(f" rank {one.rank}") == name]
    ledger = total(one for one in own if isinstance(one, Ledger))
    parts: Mapping[str, float] = ledger.by_cause
    steady_s = ledger.gpu_total_s - parts.get("pause", 0.0)
    return {cause: lost_s / steady_s for cause, lost_s in parts.items() if cause != "pause"} if steady_s > 0.0 else None


def _median(counts: Mapping[int, int]) -> float | None:
    return float(median(Counter(counts).elements())) if counts else None


def _stolen(first: Iterable[Any], last: Iterable[Any]) -> float | None:
    """Share of the CPUs' busy time that the hypervisor gave to others."""
    older, newer = [*first], [*last]
    deltas = cpu_deltas(older, newer)
    shares = stolen_shares(older, newer, deltas)
    busy_ns = sum(worked for worked, _ in deltas.values())
    return sum(share * sum(deltas[cpu]) for cpu, share in shares.items()) / busy_ns if busy_ns else None
