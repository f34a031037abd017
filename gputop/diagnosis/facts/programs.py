"""Programs that a job's loaders started, or that feed it: what they wait for, and the CPU time that loaders inherit from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.facts import JobFacts, ProgramFacts
from gputop.diagnosis.facts.proc import ProcFacts, knowing
from gputop.diagnosis.facts.takers import TakerTrack, born_ns
from gputop.model.board import Board
from gputop.model.roles import Role


def with_programs(
    jobs: list[JobFacts], takers: TakerTrack, starters: Mapping[int, int], fed: Mapping[int, int], board: Board, roles: Mapping[int, Role],
    oldest_ns: int,
) -> list[JobFacts]:  # fmt: skip
    """The jobs with their ``programs``. A parent inherits only CPU time not counted before. ``starters``: pid of a program -> pid of the
    trainer or worker that started it, or that it feeds; ``fed``: see `TakerTrack`."""
    span_ns = max(1, board.t_ns - oldest_ns)
    met = takers.met(starters, fed, waits.kinds(board.header.machine), oldest_ns)
    ended_ns = takers.ended_ns(board, roles, fed)
    used = takers.programs(starters, oldest_ns)
    names, stopped, mute = takers.programs_of(starters, board), takers.stopped(board, starters), takers.mute(board, starters)

    def with_own(proc: ProcFacts) -> ProcFacts:
        children = max(0.0, proc.children - ended_ns.get(proc.pid, 0) / span_ns)
        return knowing(proc, programs=used.get(proc.pid, (0.0, 0.0)), children=children)

    def programs(job: JobFacts) -> ProgramFacts:
        workers = [worker.pid for worker in job.workers]
        pids = [job.trainer.pid, *workers]
        alive = _of(names, pids)
        return ProgramFacts(
            met=sum((met[pid] for pid in (workers or pids) if pid in met), Counter()), names=alive,
            lasting=frozenset(pid for pid in alive if (sample := board.procs.get(pid)) is not None and born_ns(sample, board) < oldest_ns),
            stopped=_of(stopped, pids), mute=_of(mute, pids),
        )  # fmt: skip

    return [
        replace(
            job, trainer=job.trainer if job.workers else with_own(job.trainer), workers=[with_own(worker) for worker in job.workers],
            programs=programs(job),
        )
        for job in jobs
    ]  # fmt: skip


def _of(by_starter: Mapping[int, Mapping[int, str]], pids: list[int]) -> dict[int, str]:
    return {pid: name for starter in pids for pid, name in by_starter.get(starter, {}).items()}
