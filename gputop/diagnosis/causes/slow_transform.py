"""slow-transform: the workers run freely, on all CPUs there are, and their own work is what takes the time.

It gets the running that nothing else explains, and the time workers sleep by themselves or wait for a program they started. Who answers
requests runs freely while it is asked; and in a loader that keeps its order one batch that takes long keeps all (`one_is_late`).
"""

from __future__ import annotations

from gputop.diagnosis.capacity import capacity
from gputop.diagnosis.causes import Finding, Judge
from gputop.diagnosis.facts import Facts, JobFacts, Taker
from gputop.diagnosis.feeders import at_work, elsewhere, loading_programs, programs_read, with_workers
from gputop.diagnosis.model import Evidence, Fix
from gputop.diagnosis.policy import DATA_WAIT
from gputop.diagnosis.proc import ProcFacts
from gputop.diagnosis.takers import names_of
from gputop.diagnosis.waits import LOCK, PIPE
from gputop.system.text import counted

LAZY, BUSY = 0.3, 0.65
"""A worker on or waiting for a CPU less than the former share of the time has time left, from the latter on it has none."""
MOSTLY, WAITED = 0.5, 0.7
"""Of their time, that workers have nothing to do; of what the trainer waits, that some run, who are not always the same."""
ANSWERS = 0.9  # of the time in which a worker has nothing to do, at a pipe: it waits for a request


_FOR_PROGRAMS = ("child", "pipe", "poll")


def flat_out(job: JobFacts) -> float:
    """How far its busiest worker is from idling, 0..1: who cannot keep up does not sleep, but for its own threads or programs."""
    if one_is_late(job):
        return 1.0
    busiest = max((_busy(job, worker) for worker in job.workers), default=0.0)
    return min(1.0, max(0.0, (busiest - LAZY) / (BUSY - LAZY)))


def one_is_late(job: JobFacts) -> bool:
    """In a loader that keeps its order most of the workers wait, ahead, and yet some run, beyond what all do, for most of the time that the
    trainer waits: now and then a sample takes long."""
    ahead = sum(worker.ahead for worker in job.workers)
    runs = [worker.run for worker in job.workers]
    late = job.is_torchs and job.data >= DATA_WAIT and ahead >= MOSTLY * len(runs)
    return late and sum(runs) - min(runs) * len(runs) >= WAITED * job.data


def _busy(job: JobFacts, worker: ProcFacts) -> float:
    """Share of the time in which it had something to do."""
    busy, asked = max(worker.run + worker.runnable, sum(worker.others), sum(worker.programs)), 1.0 - _unasked(job, worker)
    return busy / asked if asked > 0.0 else 0.0


def _unasked(job: JobFacts, worker: ProcFacts) -> float:
    """Share of the window in which one that answers requests, such as an environment, waited for the next: its trainer was at the GPU."""
    ahead = worker.ahead
    return ahead if not job.is_torchs and worker.kinds.get(PIPE, 0.0) >= ANSWERS * ahead else 0.0


def _tell(job: JobFacts, facts: Facts) -> Finding:
    feeders = _feeders(job, facts)
    if not feeders and one_is_late(job):
        return _tell_of_late(job)
    return _tell_of_feeders(job, feeders) if feeders else _tell_of_workers(job, facts)


def _feeders(job: JobFacts, facts: Facts) -> list[Taker]:
    """Those who load for it without being its workers."""
    return elsewhere(job, facts) or loading_programs(job, facts)


def _tell_of_feeders(job: JobFacts, feeders: list[Taker]) -> Finding:
    waited = 100 * (job.fed or programs_read(job) * job.trainer.kinds.get(LOCK, 0.0))
    cores = sum(one.cores for one in feeders)
    names = ", ".join(names_of(feeders))
    detail = f"the trainer waits {waited:.0f}% of the time for {names}, which run on {cores:.1f} CPUs and cannot keep up"
    told = f"of its time the trainer slept until {names}, or whom they work for, woke it"
    return Finding(detail, (Evidence("waited_pct", round(waited, 1), "%", told),), _fixes(feeders[0].pid), (), (job.trainer.pid,))


def _tell_of_late(job: JobFacts) -> Finding:
    ahead = 100 * sum(worker.ahead for worker in job.workers) / len(job.workers)
    most, least = (100 * chosen(worker.run for worker in job.workers) for chosen in (max, min))
    detail = f"now and then a batch takes long: its {counted(len(job.workers), 'worker')} are ahead {ahead:.0f}% of the time, and all "
    detail += f"wait for the one that is not; the busiest ran {most:.0f}% of the time, the idlest {least:.0f}%"
    evidence = (
        Evidence("ahead_pct", round(ahead, 1), "%", "of the workers' time with nothing to do"),
        Evidence("busiest_cpu_pct", round(most, 1), "%", "on-CPU share of the busiest of them"),
    )
    fixes = (
        Fix("Take batches as they are done (from torch 2.6 on), if their order does not matter", "DataLoader(..., in_order=False)"),
        Fix("Or have more of them ready, for as long as the longest takes", "DataLoader(..., prefetch_factor=8)"),
        Fix("See which samples take long", f"gputop stacks {' '.join(str(worker.pid) for worker in job.workers)} --duration 10"),
    )
    return Finding(detail, evidence, fixes, (), (job.trainer.pid,))


def _tell_of_workers(job: JobFacts, facts: Facts) -> Finding:
    cpus, busy = capacity(job, facts), at_work(job) or job.workers
    workers = max(1, len(busy))
    who = "its only worker" if workers == 1 else f"its {counted(workers, 'worker')}"
    unasked = sum(_unasked(job, worker) for worker in busy)
    share = 100 * sum(worker.run for worker in busy) / max(workers - unasked, 1e-9)
    slept = 100 * sum(worker.state.waits.get("timer", 0.0) for worker in busy) / workers
    waited = 100 * (sum(sum(worker.state.waits.get(kind, 0.0) for kind in _FOR_PROGRAMS) for worker in busy) - unasked) / workers
    threads = sum(worker.others_run for worker in busy)
    asked = " that it asks them" if unasked else ""
    own = f"on a CPU {share:.0f}% of the time{asked}" if share >= slept else f"asleep by their own will {slept:.0f}% of the time"
    if 100 * threads / workers > max(share, slept):
        own = f"running threads on {threads:.1f} CPUs"
    elif 100 * threads / workers > 0.2 * share:
        own = f"with threads of their own on {threads + share * workers / 100:.1f} CPUs"
    sleep = slept > max(share, waited, 100 * threads / workers)
    takes = "the work itself is too slow" if not sleep else "a timer (time.sleep, a rate limit, a retry) takes the time"
    detail = f"{who}, {own} ({counted(len(cpus.allowed), 'CPU')}), cannot keep up: {takes}"
    if waited > max(share, slept):
        detail = f"{who}, {waited:.0f}% of the time waiting for programs of their own, cannot keep up: the programs are too slow"
    evidence = (
        Evidence("worker_cpu_pct", round(share, 1), "%", "on-CPU share of the workers' loading threads"),
        *_asleep("worker_timer_pct", slept, share, "of their time they slept by their own will"),
        *_asleep("worker_programs_pct", waited, share, "of their time they waited for programs that they started"),
    )
    pid = max(busy, key=lambda worker: worker.run).pid if busy else job.trainer.pid
    fixes = _wake(job, workers, pid) if sleep else _fixes(pid)
    return Finding(detail, evidence, fixes, (), tuple(worker.pid for worker in busy))


def _asleep(metric: str, asleep: float, ran: float, text: str) -> tuple[Evidence, ...]:
    """Where that is what takes the time."""
    return (Evidence(metric, round(asleep, 1), "%", text),) if asleep > ran else ()


def _fixes(pid: int) -> tuple[Fix, ...]:
    return (
        Fix("See which transform it is", f"gputop stacks {pid} --duration 10"),
        Fix("Make it cheaper: decode to the size needed, do it once and store it, or move it to the GPU (DALI, torchvision v2)"),
    )


def _wake(job: JobFacts, workers: int, pid: int) -> tuple[Fix, ...]:
    return (
        Fix("More workers: they sleep side by side", with_workers(job, 2 * workers)),
        Fix("See where they sleep, by line", f"gputop stacks {pid} --duration 10"),
        Fix("Wait for the event itself rather than for a time; of a store that allows so much only, keep what it gave on this host"),
    )


JUDGE = Judge(
    "slow-transform", "input-bound", _tell, rows=(("timer", "worker"), ("pipe", "worker"), ("child", "worker"), ("work",
    "worker's feeder"), ("work", "main's feeder"), ("pipe", "process"),), needs="schedstat",
)  # fmt: skip
