"""Which ranks of a training were late, one after the other, for longer than the window: now one and now another have uneven data."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from gputop.diagnosis.facts.facts import JobFacts
from gputop.findings import policy

TURNS_NS = 30_000_000_000  # ns in which ranks that are late by turns are seen (guess: a window names one after 2.5 s)
_Job = TypeVar("_Job", bound=JobFacts)
_Run = tuple[int, int]  # (when it began to be late, pid of the rank)


class Lateness:
    """The late ranks of each training on this host."""

    def __init__(self) -> None:
        self._runs: dict[frozenset[int], list[_Run]] = {}  # pids of a training's trainers -> its late ranks, each time that they change

    def note(self, jobs: list[_Job], t_ns: int) -> list[_Job]:
        """The jobs, each with the ranks that are late by turns, if its training has some; those of a part that is late as a whole are
        one."""
        late = {job.ranks.kin: job.ranks.straggler.pid for job in jobs if job.ranks.straggler is not None and job.ranks.kin}
        known = {job.ranks.kin for job in jobs}
        self._runs = {kin: recent for kin, runs in self._runs.items() if kin in known and (recent := _since(runs, t_ns - TURNS_NS))}
        for kin, pid in late.items():
            runs = self._runs.setdefault(kin, [])
            if not runs or runs[-1][1] != pid:
                runs.append((t_ns, pid))
        return [self._with_turns(job) if job.ranks.kin in late else job for job in jobs]

    def _with_turns(self, job: _Job) -> _Job:
        runs = self._runs[job.ranks.kin]
        if len(runs) < policy.OFTEN:
            return job
        return replace(job, ranks=replace(job.ranks, by_turns=tuple(sorted({pid for _, pid in runs}))))


def _since(runs: list[_Run], begin_ns: int) -> list[_Run]:
    """The runs that began after ``begin_ns``, and the last one, which may last."""
    return [run for run in runs[:-1] if run[0] > begin_ns] + runs[-1:]
