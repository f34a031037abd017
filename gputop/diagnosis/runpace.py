"""What tells a run's pace: its steps by their CUDA calls or by its own markers, else what its GPUs take in, else the rhythm of their work.

CUDA calls are counted by probes, which take root. Without these, a job may count its steps itself, by markers that have their number
(``gputop.mark("step 1200")``); these are believed where one job runs here, and sets one a minute at least.

Else two counters that NVML gives to everybody go on with a run's steps: bytes that its GPUs take in over PCIe (or C2C), which are its
batches and its kernels, and bytes over NVLink, which are its gradients. They tell how much longer a run takes for as much, and not how long
a step is; that steps need more bytes than before they cannot tell. A GPU that others use, too, counts theirs, so it tells nothing.

Last comes the first period of a GPU's power or utilization (`gputop.diagnosis.facts.stepclock`), from 0.7 s on, once each `EACH_NS`.

A server is paced by who asks, so it has no pace of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gputop.diagnosis.facts.points import Counted
from gputop.diagnosis.facts.stepclock import SPAN_NS
from gputop.diagnosis.graph.job import WalkedJob
from gputop.diagnosis.symptoms import Standing
from gputop.findings import runs
from gputop.findings.policy import OFTEN, PACING_BYTES_PER_S
from gputop.model.board import Board, GpuBoard
from gputop.model.frame import Mark
from gputop.model.identity import job_key

EACH_NS = SPAN_NS  # ns between two looks at a rhythm, which share no reading
BYTES = 100_000  # bytes that count as one step of a clock that counts bytes (a choice: a second has some, and a second's error is small)
MOST_BEATS, SAME_PART = 4, 12  # whole factors by which a rhythm may jump to a beat of several steps; one part in so many: nearer (guess)
MARKED_NS = 60_000_000_000  # ns from one marker of a step to the next, at most (a choice: a change is then told within some minutes)
_COUNTERS = ((runs.TO_GPU, ("pcie_rx_bytes", "c2c_rx_bytes")), (runs.NVLINK, ("nvlink_tx_bytes",)))


class Markers:
    """The steps that a job counts by markers."""

    def __init__(self) -> None:
        self._seen: deque[Counted] = deque(maxlen=OFTEN)

    def note(self, marks: Iterable[Mark]) -> None:
        """Take in markers; those without a number of a step are others."""
        for mark in marks:
            if (step := mark.step) is not None and (not self._seen or mark.t_ns > self._seen[-1].t_ns):
                self._seen.append(Counted(mark.t_ns, step, 0, 0))

    def counted(self, now_ns: int, jobs: Iterable[Standing], host: str) -> Counted | None:
        """The newest number; None if there are too few markers, or several jobs, each of which may have set them."""
        if len(self._seen) < OFTEN or now_ns - self._seen[0].t_ns > OFTEN * MARKED_NS:
            return None
        infos = [one.job.trainer.info for one in jobs]
        keys = {job_key(info, host) for info in infos}
        return self._seen[-1] if len(infos) == 1 or (len(keys) == 1 and None not in keys) else None


class Pace(NamedTuple):
    """A reading of a run's clock."""

    by: str  # a word of `gputop.findings.runs.CLOCKS`; empty: there is none
    counted: Counted | None = None
    per_s: float | None = None  # of a rhythm
    why_not: str = ""  # a word of `gputop.findings.runs.NO_STEP`, if no step is seen


def pace_of(
    board: Board, standing: Standing, counted: Counted | None, per_s: float | None, marked: Counted | None, wants_rhythm: Callable[[], bool]
) -> Pace:
    """The best clock of a run now. ``counted``, ``per_s``: its CUDA calls, and the steps a second by these, None where no clock holds;
    ``marked``: by its markers; ``wants_rhythm``: whether a rhythm, which costs as much as a feed, is due."""
    job = standing.job
    if job.trainer.pid in standing.facts.servers:
        return Pace("", why_not="serves")
    if counted is not None and per_s is not None:
        return Pace(runs.CALLS, counted)
    if marked is not None:
        return Pace(runs.MARKERS, marked)
    why_not = "no-gpu" if not job.gpus else "not-counted" if counted is None else "unsteady"
    is_shared = _shares(board, job)
    if not is_shared and (found := next(_moved(board, job), None)):
        by, moved = found
        return Pace(by, moved, why_not=why_not)
    if wants_rhythm() and not is_shared and (step := job.step) is not None:
        return Pace(runs.RHYTHM, per_s=step.per_s, why_not=why_not)
    return Pace("", why_not="shared" if why_not == "not-counted" and is_shared else why_not)


def _moved(board: Board, job: WalkedJob) -> Iterator[tuple[str, Counted]]:
    """(clock, its reading) of the counters of bytes of a job's GPUs, which are at work for it alone."""
    if not job.gpus:
        return
    rates = sum(gpu.host_bytes_per_s or 0.0 for gpu in job.gpus), sum(gpu.nvlink_bytes_per_s or 0.0 for gpu in job.gpus)
    for (by, names), rate in zip(_COUNTERS, rates, strict=True):
        found = [_count(board.gpus[gpu.index], names) for gpu in job.gpus if gpu.index in board.gpus]
        known = [one for one in found if one is not None]
        if rate >= PACING_BYTES_PER_S * len(job.gpus) and known and len(known) == len(found):
            t_ns = max(read_ns for read_ns, _ in known)
            yield by, Counted(t_ns, int(sum(count for _, count in known) // BYTES), 0, 0)


def _count(gpu: GpuBoard, names: tuple[str, ...]) -> tuple[int, float] | None:
    """(when it was read, bytes) of the counters that there are of those."""
    known = [(gpu.read_ns[name], count) for name in names if (count := gpu.number(name)) is not None]
    return (max(read_ns for read_ns, _ in known), sum(count for _, count in known)) if known else None


def _shares(board: Board, job: WalkedJob) -> bool:
    """True if a GPU of the job is used by another process as well, or is split, so that its counters and work are not the job's alone."""
    if any(gpu.split or gpu.neighbours for gpu in job.gpus):
        return True
    own = {proc.pid for proc in (job.trainer, *job.workers, *job.managers)} | {one.pid for one in job.members}
    host, infos = board.header.host, board.infos
    for gpu in job.gpus:
        users = board.gpus[gpu.index].compute_pids if gpu.index in board.gpus else frozenset[int]()
        if users <= own:
            continue
        key = job_key(job.trainer.info, host)
        others = {pid for pid in users - own if key is None or pid not in infos or job_key(infos[pid], host) != key}
        if len(others) > (0 if users & own else 1):  # in a namespace of pids its own one may be unknown
            return True
    return False


def is_beat(per_s: float, usual_per_s: float) -> bool:
    """True if a rhythm is so near to a whole part or multiple of the usual one that it may be the beat of several steps, or of a part."""
    factor = max(per_s / usual_per_s, usual_per_s / per_s)
    whole = round(factor)
    return 2 <= whole <= MOST_BEATS and abs(factor - whole) * SAME_PART <= whole
