"""Who outside the jobs takes the CPUs: by their own CPU time, and by the probe's count of whom they kept waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from gputop.board import Board
from gputop.diagnosis.facts import Taker
from gputop.frame import ProcInfo
from gputop.frame import ProcSample
from gputop.roles import Role
from gputop.roles import hot
from gputop.roles import program_name
from gputop.text import clean

LEAST_CORES = 0.02
MOST = 12
"""Takers kept per window."""


@dataclass(slots=True)
class _Stranger:
    """One process outside the jobs; kept for as long as its last sample reaches into the window."""

    samples: deque[ProcSample]
    name: str
    info: ProcInfo | None


class TakerTrack:
    """CPU time of every process; those that did not run cost one comparison."""

    __slots__ = ("_preempts", "_strangers")

    def __init__(self) -> None:
        self._strangers: dict[int, _Stranger] = {}
        self._preempts: deque[tuple[int, dict[int, int]]] = deque()

    def push(self, board: Board, roles: Mapping[int, Role], oldest_ns: int) -> None:
        """Add the samples that are new, forget who has been gone for a window."""
        strangers = self._strangers
        for pid, sample in board.procs.items():
            if pid in roles:
                continue
            known = strangers.get(pid)
            if known is None or known.samples[-1].start_ticks != sample.start_ticks:
                strangers[pid] = _Stranger(deque((sample,)), name_of(board, pid), board.infos.get(pid))
            elif known.samples[-1] is not sample:
                _push(known, sample, board, oldest_ns)
        if len(strangers) > len(board.procs) - len(roles):
            for pid in [pid for pid in strangers if pid not in board.procs and strangers[pid].samples[-1].t_ns <= oldest_ns]:
                del strangers[pid]
        self._preempts.append((board.t_ns, self._sum_preempts(board, roles)))
        while len(self._preempts) > 2 and self._preempts[1][0] <= oldest_ns:
            self._preempts.popleft()

    def _sum_preempts(self, board: Board, roles: Mapping[int, Role]) -> dict[int, int]:
        """culprit pid -> ns so far that it ran while a hot thread was runnable there."""
        family = hot(roles)
        found: dict[int, int] = {}
        for (victim, _culprit), preempt in board.preempts.items():
            owner = board.threads.get(victim)
            if (owner.pid if owner is not None else victim) in family:
                found[preempt.culprit_pid] = found.get(preempt.culprit_pid, 0) + preempt.ns
        return found

    def behind(self, roles: Mapping[int, Role]) -> tuple[float, float]:
        """Seconds in the window that the jobs' threads waited behind a known one, and those behind strangers."""
        before, after = self._preempts[0][1], self._preempts[-1][1]
        gained = {pid: max(0, ns - before.get(pid, 0)) / 1e9 for pid, ns in after.items()}
        return sum(gained.values()), sum(seconds for pid, seconds in gained.items() if pid not in roles)

    def facts(self, board: Board, roles: Mapping[int, Role]) -> list[Taker]:
        """Those that took a noticeable part of a CPU, most first. A job's own processes are no takers."""
        before, after = self._preempts[0][1], self._preempts[-1][1]
        found = []
        for pid, stranger in self._strangers.items():
            cores = 0.0 if pid in roles or len(stranger.samples) < 2 else _cores(stranger, board.t_ns, pid in board.procs)
            if cores >= LEAST_CORES:
                kept = max(0, after.get(pid, 0) - before.get(pid, 0)) / 1e9
                old, new = stranger.samples[0], stranger.samples[-1]
                found.append(Taker(pid, stranger.name, cores, kept, new.processor, old.utime_ns + old.stime_ns, stranger.info))
        found.sort(key=lambda taker: -taker.cores)
        del found[MOST:]
        return found


def _push(known: _Stranger, sample: ProcSample, board: Board, oldest_ns: int) -> None:
    info = board.infos.get(sample.pid)
    if info is not None and info is not known.info:
        known.info, known.name = info, name_of(board, sample.pid)
    known.samples.append(sample)
    while len(known.samples) > 2 and known.samples[1].t_ns <= oldest_ns:
        known.samples.popleft()


def _cores(stranger: _Stranger, t_ns: int, alive: bool) -> float:
    """Over the time between its samples, for it is read seldom; over the time to now once it is gone."""
    old, new = stranger.samples[0], stranger.samples[-1]
    ran_ns = new.utime_ns + new.stime_ns - old.utime_ns - old.stime_ns
    return ran_ns / max(1, (new.t_ns if alive else t_ns) - old.t_ns)


def name_of(board: Board, pid: int) -> str:
    """The name people know a process by."""
    info = board.infos.get(pid)
    if info is None:
        return f"pid {pid}"
    name = program_name(info)
    return name if name != "python" else clean(info.comm, 32)
