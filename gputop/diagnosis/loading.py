"""A training's own loader: who of its workers gets work, and how it spells what a fix sets."""

from __future__ import annotations

from gputop.diagnosis import feeders
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.proc import ProcFacts

_OTHERS = {
    "grain": "grain.MultiprocessingOptions(num_workers={})",
    "tensorflow": "dataset.map(..., num_parallel_calls={0}).prefetch({0})",
    "dali": "Pipeline(..., num_threads={})",
    "multiprocessing": "multiprocessing.Pool({})",
}  # by the words of `gputop.model.roles.Role.loader`
UNUSED_S, UNUSED = 2.0, 0.95  # for how long, and in which share of the window, a worker that gets no work has had nothing to do
LOOKS_PER_S, LOOKING = 1.5, 0.005
"""Wakes a second, and CPUs, of one that merely looks whether its trainer is still there: torch's do every 5 s."""


def at_work(job: JobFacts) -> list[ProcFacts]:
    """The workers without those that get no work."""
    return [worker for worker in job.workers if not _is_unused(worker)]


def _is_unused(worker: ProcFacts) -> bool:
    looks = worker.sleeps_per_s is not None and worker.sleeps_per_s <= LOOKS_PER_S and worker.cores <= LOOKING
    return worker.ahead >= UNUSED and (worker.still_s >= UNUSED_S or looks)


def with_workers(job: JobFacts, count: int, **torchs: object) -> str:
    """``count`` of them, and the options ``torchs`` where these are torch's DataLoader's."""
    loader = _loader(job)
    if loader == "torch":
        return f"DataLoader(..., {', '.join(f'{name}={value}' for name, value in {'num_workers': count, **torchs}.items())})"
    return _OTHERS[loader].format(count)


def more_in_flight(job: JobFacts) -> str:
    """Twice as many who read at once; empty where these are threads of the trainer's own, made as its author pleased."""
    if not job.workers and feeders.threads_wait(job, job.trainer):
        return ""
    return with_workers(job, 2 * max(1, len(job.workers)), prefetch_factor=4)


def _loader(job: JobFacts) -> str:
    """Of one without workers, that of a library which it has loaded; a script that uses torch may have made workers of its own."""
    if job.is_torchs:
        return "torch"
    known = (job.workers[0] if job.workers else job.trainer).role.loader
    return known if known in _OTHERS or (known == "torch" and not job.workers) else "multiprocessing"
