"""A fix that is applied from the screen: it stays on until it is undone, and its effect on the job's pace is followed."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from msgspec import Struct

from gputop.diagnosis.facts.points import facts_of
from gputop.diagnosis.facts.stepclock import from_calls
from gputop.model.frame import SECOND_NS
from gputop.model.probes import CudaCall
from gputop.model.serving import Serving
from gputop.prove import served
from gputop.prove.change import Plan, TargetProcess
from gputop.prove.guardian import Guard
from gputop.prove.served import ServedStretch
from gputop.prove.trial import GPU_WORK, STEPS
from gputop.stream.session import Session

BEFORE_NS = 6 * SECOND_NS  # ns before the change over which the job's pace is measured, as far as the trouble lasted (a choice)
SETTLE_NS = 2 * SECOND_NS  # ns after the change in which the job uses up what was prepared before (`suspect.MOST_SETTLE_S`)
LEAST_NS = 2 * SECOND_NS  # ns without which no pace is shown (guess)


class Pace(Struct, frozen=True):
    """How a job went over a stretch; None: not measured."""

    steps_per_s: float | None = None
    work_pct: float | None = None  # mean utilization of its GPUs
    served: ServedStretch | None = None  # what its inference server did

    def value(self, metric: str) -> float | None:
        """The pace by a metric of a trial, in its unit."""
        if metric == STEPS:
            return None if self.steps_per_s is None else 60.0 * self.steps_per_s
        if metric == GPU_WORK:
            return self.work_pct
        return None if self.served is None else self.served.value(metric)


class _Count(Struct, frozen=True):
    """The trainer's CUDA calls up to a moment, and the newest pages of its inference server."""

    t_ns: int
    calls: Mapping[str, CudaCall]
    calls_ns: int
    pages: tuple[Serving, ...]


class AppliedFix:
    """One plan in force. `begin` and `undo` change settings, and take up to some seconds; both raise OSError with a line for the user."""

    def __init__(self, planned: Plan, trainer: TargetProcess, stays: bool = False) -> None:
        self.planned, self.trainer = planned, trainer
        self.stays = stays  # whether it stays when gputop ends
        self.since_ns = 0  # when it was applied (time of the stream)
        self.before = Pace()
        self._after: _Count | None = None  # from where the effect is measured
        self._guard = Guard(planned, agreed=True)
        self._lock = threading.Lock()
        self._is_over = False

    def begin(self, session: Session, trouble_ns: int = 0, before: Pace | None = None) -> None:
        """Apply it. ``trouble_ns``: since when the job has been slow; the pace before is measured no further back. ``before``: that pace,
        where an experiment has measured it.
        """
        with session.lock:
            now_ns = session.now_ns
            count = _count(session, self.trainer.pid, max(session.oldest_ns, trouble_ns, now_ns - BEFORE_NS))
            self.before = _pace(session, self.trainer.pid, count) if before is None else before
        with self._lock:
            if self._is_over:
                raise OSError("gputop ends")
            self._guard.__enter__()
            try:
                self._guard.on()
            except BaseException:
                self._guard.close()
                raise
        with session.lock:
            self.since_ns = session.now_ns

    def beat(self) -> None:
        """gputop goes on: without this the guardian undoes it, for gputop hangs at a terminal."""
        self._guard.beat()

    @property
    def lost(self) -> str:
        """Why it is not in force any more though nobody undid it; empty if it is."""
        return self._guard.lost

    def pace(self, session: Session) -> Pace | None:
        """The pace since it has had its effect; None while that is too short. Hold the session's lock."""
        begin_ns = self.since_ns + SETTLE_NS
        if not self.since_ns or session.now_ns < begin_ns:
            return None
        if self._after is None:
            self._after = _count(session, self.trainer.pid, session.now_ns)
        return _pace(session, self.trainer.pid, self._after) if session.now_ns - self._after.t_ns >= LEAST_NS else None

    def targets_live(self, session: Session) -> bool:
        """Whether anything is left that it changes: a control group, or one of its processes. Hold the session's lock."""
        targets = [change.target for change in self.planned.changes]
        return any(one is None or one.pid in session.board.procs for one in targets)

    def undo(self) -> str:
        """Put everything back; a line for the user."""
        with self._lock:
            self._is_over = True
            self._guard.close()
        return self._guard.ending.told

    def end(self) -> str:
        """gputop ends: put it back, or let it stay."""
        with self._lock:
            if self.stays and not self._is_over and not self.lost:
                self._is_over = True
                self._guard.keep()
                return f"it stays: {self.planned.says}"
        return self.undo()


def _count(session: Session, pid: int, t_ns: int) -> _Count:
    board = session.board_at(t_ns)
    calls = {name: call for (caller, name), call in board.calls.items() if caller == pid}
    facts = session.engine.facts
    return _Count(board.t_ns, calls, board.probed_ns, () if facts is None else served.pages_of(board, facts.servers, pid))


def _pace(session: Session, pid: int, since: _Count) -> Pace:
    """The pace since a moment: by the CUDA call that comes once a step, else by the diagnosis, from the GPU's rhythm."""
    now = _count(session, pid, session.now_ns)
    steps = None
    if now.calls_ns > since.calls_ns:
        steps = from_calls(facts_of(dict(since.calls), dict(now.calls), now.calls_ns - since.calls_ns))
    step = session.engine.verdict.step
    if steps is None and step is not None and session.engine.verdict.trainer_pid == pid:
        steps = step.per_s
    own = [gpu.index for gpu in session.board.gpus.values() if pid in gpu.compute_pids] or list(session.board.gpus)
    works = [session.history.cell(("gpu.util_pct", index), since.t_ns, session.now_ns + 1) for index in own]
    known = [work for work in works if work == work]
    return Pace(steps, sum(known) / len(known) if known else None, served.between(since.pages, now.pages))


def told(before: Pace, after: Pace) -> str:
    """``9.2 → 19.4 steps/s, 2.1×, GPU 41 → 97 %``; of a server ``312 → 640 tokens/s, 2.1×, first token …``. Empty if nothing was
    measured."""
    pace, *more = served.changes(before.served, after.served) or [""]
    rates = [stretch.value(served.TOKENS) for stretch in (before.served, after.served) if stretch is not None]
    if pace and len(rates) == 2 and rates[0] and rates[1]:
        pace += f", {rates[1] / rates[0]:.2g}×"
    parts = [one for one in (pace, *more) if one]
    if not parts and before.steps_per_s and after.steps_per_s:
        factor = after.steps_per_s / before.steps_per_s
        parts.append(f"{before.steps_per_s:.3g} → {after.steps_per_s:.3g} steps/s, {factor:.2g}×")
    if before.work_pct is not None and after.work_pct is not None:
        parts.append(f"GPU {before.work_pct:.0f} → {after.work_pct:.0f} %")
    return ", ".join(parts)
