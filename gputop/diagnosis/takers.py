"""Who outside the jobs takes the CPUs: by their own CPU time, and by the probe's count of whom they kept waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from gputop.board import Board
from gputop.diagnosis.facts import Taker
from gputop.frame import ProcSample
from gputop.roles import Role
from gputop.roles import hot
from gputop.roles import program_name
from gputop.text import clean

LEAST_CORES = 0.02
MOST = 12
"""Takers kept per window."""


class TakerTrack:
    """CPU time of every process outside the jobs; those that did not run cost one comparison."""

    __slots__ = ("_preempts", "_samples")

    def __init__(self) -> None:
        self._samples: dict[int, deque[ProcSample]] = {}
        self._preempts: deque[tuple[int, dict[int, int]]] = deque()

    def push(self, board: Board, roles: Mapping[int, Role], oldest_ns: int) -> None:
        """Add the samples that are new, forget who is gone."""
        samples = self._samples
        for pid, sample in board.procs.items():
            kept = samples.get(pid)
            if kept is None or kept[-1].start_ticks != sample.start_ticks:
                samples[pid] = deque((sample,))
            elif kept[-1] is not sample:
                kept.append(sample)
                while len(kept) > 2 and kept[1].t_ns <= oldest_ns:
                    kept.popleft()
        if len(samples) > len(board.procs):
            for pid in [pid for pid in samples if pid not in board.procs]:
                del samples[pid]
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

    def facts(self, board: Board, roles: Mapping[int, Role]) -> list[Taker]:
        """Those that took a noticeable part of a CPU, most first. Helpers of a job are no takers."""
        before, after = self._preempts[0][1], self._preempts[-1][1]
        found = []
        for pid, samples in self._samples.items():
            if len(samples) < 2 or pid in roles:
                continue
            old, new = samples[0], samples[-1]
            cpu_ns = new.utime_ns + new.stime_ns - old.utime_ns - old.stime_ns
            cores = cpu_ns / max(1, new.t_ns - old.t_ns)
            if cores >= LEAST_CORES:
                info = board.infos.get(pid)
                kept = max(0, after.get(pid, 0) - before.get(pid, 0)) / 1e9
                found.append(Taker(pid, name_of(board, pid), cores, kept, info))
        found.sort(key=lambda taker: -taker.cores)
        del found[MOST:]
        return found


def name_of(board: Board, pid: int) -> str:
    """The name people know a process by."""
    info = board.infos.get(pid)
    if info is None:
        return f"pid {pid}"
    name = program_name(info)
    return name if name != "python" else clean(info.comm, 32)
