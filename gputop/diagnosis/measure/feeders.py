"""Who loads for a job beside its workers: threads of the trainer, and programs that they start; how a loader's options are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping

from msgspec.structs import replace

from gputop.diagnosis.measure import waits
from gputop.diagnosis.measure.facts import Facts, JobFacts, Taker
from gputop.diagnosis.measure.proc import ASKING, TURN, ProcFacts
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.model.frame import ProcInfo
from gputop.model.roles import TORCH_WORKER
from gputop.system.text import clean, counted

LISTENING, CONNECTED = "listening", "connected"  # words of `ProcInfo.sockets`
MEMORY = "memory"
UNSURE = (waits.TIMER, waits.UNKNOWN, waits.POLL, waits.DRIVER)
"""What samples may meet of a step that keeps time with them, where it waits for something else, too; the likeliest first."""


def threads_at_work(job: JobFacts) -> bool:
    """The trainer's own: they load where there are no workers, and launch the backward pass anywhere."""
    return job.trainer.others_run >= policy.AT_WORK


def named_thread(proc: ProcFacts) -> str:
    """Its thread that runs most beside the main one, in brackets, where its name is not merely the program's."""
    name = proc.busiest_thread
    return f" ({clean(name, 16)})" if name not in ("", proc.info.comm) else ""


def threads_wait(job: JobFacts, proc: ProcFacts) -> dict[str, float]:
    """``disk`` and ``network`` -> share of the samples in which its own threads, for which its main thread waits, were met there;
    ``memory`` instead of the former where that runs short and their pages come back from the disk.

    Threads of a trainer that has loaders, or peers, poll for others than the loader.
    """
    met = proc.threads_met
    asking = 0 if proc is job.trainer and (job.workers or job.kin) else met[ASKING]
    samples = sum(met.values()) - met[waits.LOCK] - met[TURN] - met[ASKING] + asking
    pages = MEMORY if job.pressed else waits.DISK
    return _late_for({pages: met[waits.DISK], waits.NETWORK: met[waits.NETWORK] + asking}, samples)


def programs_read(job: JobFacts) -> float:
    """Share of their samples in which threads of a trainer without workers, for which its main thread waits, were met reading what
    programs of its own write: these are its loaders."""
    if job.workers or not (job.programs_met or sum(job.trainer.programs)):
        return 0.0
    met = job.trainer.threads_met
    samples = sum(met.values()) - met[waits.LOCK] - met[TURN] - met[ASKING] - met[waits.ONCPU]
    return met[waits.PIPE] / samples if met[waits.PIPE] >= policy.QUARTER * samples > 0.0 else 0.0


def programs_late(job: JobFacts) -> bool:
    """Whether those that its loaders started were met often at the disk or the network."""
    return bool(_programs_late_for(job.programs_met))


def loading_programs(job: JobFacts, facts: Facts) -> list[Taker]:
    """Those of them that run, the busiest first."""
    return [taker for taker in started(job, facts) if taker.cores >= policy.AT_WORK] if programs_read(job) else []


def programs_wait(job: JobFacts, facts: Facts) -> dict[str, float]:
    """The same of the programs that its loaders started, where these do not compute: what they poll is the network. Where memory runs
    short they compute little of their own: it is the kernel that looks for pages."""
    met = job.programs_met
    samples = _samples(met)
    if job.pressed and met[waits.DISK] >= policy.QUARTER * samples > 0.0:
        return _late_for({MEMORY: met[waits.DISK]}, samples - met[waits.ONCPU])
    return {} if programs_at_work(job, facts) else _programs_late_for(met)


def programs_sleep(job: JobFacts, facts: Facts) -> float:
    """Share of their samples in which programs that its loaders started, and that hardly compute, slept by their own will."""
    met = job.programs_met
    return 0.0 if programs_at_work(job, facts) else met[waits.TIMER] / max(1, _samples(met))


def who_waits(job: JobFacts, facts: Facts, kind: str, share: Callable[[ProcFacts], float]) -> tuple[list[ProcFacts], str, float]:
    """Who waits for the ``disk`` or the ``network``: processes, in words, and for which part of the time (of the samples, where it is
    threads or programs that were met there). ``share`` tells how long a process's main thread did.

    The workers; where it rather is the trainer itself between its steps, or where there are none, that one.
    """
    own, owed = (job.pools.get(f"{who}.{kind}", 0.0) for who in ("main", "data"))
    if job.workers and own > owed:
        return [job.trainer], filled("the main thread of {} ({})", job.trainer.role.label, job.trainer.pid), share(job.trainer)
    procs = job.workers or [job.trainer]
    for proc in procs:
        if kind in threads_wait(job, proc):
            return procs, filled("loading threads of {} ({})", proc.role.label, proc.pid), threads_wait(job, proc)[kind]
    programs = programs_wait(job, facts)
    if kind in programs:
        return procs, "programs that it reads from", programs[kind]
    name = counted(len(procs), "loader") if job.workers else filled("the main thread of {} ({})", job.trainer.role.label, job.trainer.pid)
    return procs, name, sum(map(share, procs)) / len(procs)


def feeding(woken_by: Mapping[int, float], infos: Mapping[int, ProcInfo], hot: Container[int]) -> frozenset[int]:
    """Who, being none of the trainers and workers (``hot``), wakes a trainer with what it waits for, such as actors; their like,
    for who is never waited for was ahead; and their children. None where the trainer hardly waits for them."""
    known = {pid: share for pid, share in woken_by.items() if pid in infos and pid not in hot and infos[pid].cmdline}
    found = {pid: share for pid, share in known.items() if share > policy.HARDLY}
    if sum(found.values()) < policy.LOST:
        return frozenset()
    kinds = {_kind(infos[pid]) for pid in found}
    alike = {pid for pid, info in infos.items() if _kind(info) in kinds}
    return frozenset(pid for pid, info in infos.items() if (pid in alike or info.ppid in alike) and pid not in hot)


def _kind(info: ProcInfo) -> tuple[int, str, tuple[str, ...]]:
    return info.ppid, info.comm, tuple(info.cmdline)


def readers(trainer: ProcFacts, woken_by: Mapping[int, float]) -> list[int]:
    """The pids of those who read what its main thread waits to write, the one it waits for most first: those that hold the other ends and,
    where that is probed, woke it (``woken_by``); or who did, where that is all that it slept for but interrupts."""
    if trainer.held_up < policy.LITTLE:
        return []
    woke = {pid: share for pid, share in woken_by.items() if pid not in (0, trainer.pid) and share >= policy.TENTH * trainer.held_up}
    known = [pid for pid in trainer.info.read_by if not woke or pid in woke]
    alone = woke if 2 * trainer.held_up > sum(woke.values()) else {}
    return sorted(known or alone, key=lambda pid: -woke.get(pid, 0.0))


def read_from(trainer: ProcFacts) -> dict[int, float]:
    """Pid -> share of the window that its main thread slept reading what that process, or another one of them, writes."""
    slept, pids = trainer.kinds.get(waits.PIPE, 0.0) + trainer.kinds.get(waits.NETWORK, 0.0), trainer.info.other_ends
    return dict.fromkeys(pids, slept / len(pids)) if pids else {}


def read_by_threads(trainer: ProcFacts, infos: Mapping[int, ProcInfo], woken_by_own: float | None, idle: float) -> dict[int, float]:
    """The same of what its other threads read, for which the main thread sleeps (``woken_by_own``; where that is not probed, as long as
    its GPUs were ``idle`` at most): of programs that it started in another control group, which may hold these back."""
    slept = max(woken_by_own or 0.0, trainer.kinds.get(waits.LOCK, 0.0))
    if woken_by_own is None:
        slept = max(slept, min(idle, sum(trainer.kinds.get(kind, 0.0) for kind in UNSURE)))
    if slept < policy.LOST:
        return {}
    pids = [info.pid for info in infos.values() if info.ppid == trainer.pid and info.cgroup and info.cgroup != trainer.info.cgroup]
    met = trainer.threads_met if pids else Counter()
    reading = (met[waits.PIPE] + met[waits.NETWORK]) / max(1, sum(met.values()))
    return dict.fromkeys(pids, reading * slept / len(pids)) if reading else {}


def with_lent(jobs: list[JobFacts], woken_by: Callable[[JobFacts], Mapping[int, float]]) -> list[JobFacts]:
    """A job without a GPU that a trainer without workers sleeps for is a service that loads for it: so its workers load, too.

    ``woken_by`` tells of a trainer for which part of the window it slept until whom.
    """
    services = [job for job in jobs if not job.gpus]
    return [_with_lent(job, services, woken_by(job)) if services and job.gpus and not job.workers else job for job in jobs]


def _with_lent(job: JobFacts, services: list[JobFacts], woken: Mapping[int, float]) -> JobFacts:
    for service in services:
        pids = {proc.pid for proc in (service.trainer, *service.workers)}
        if sum(share for pid, share in woken.items() if pid in pids) >= policy.LOST:
            job = replace(job, workers=[*job.workers, *_loaders_of(service)], services=job.services | {service.trainer.pid})
    return job


def _loaders_of(service: JobFacts) -> list[ProcFacts]:
    """Its workers, and its own main thread where that works."""
    at_work = service.trainer.run + service.trainer.runnable >= policy.AT_WORK
    return [*service.workers, service.trainer] if at_work or not service.workers else service.workers


def elsewhere(job: JobFacts, facts: Facts) -> list[Taker]:
    """Those of these that are busy and were not started by the trainer."""
    own = {taker.pid for taker in started(job, facts)}
    found = [taker for taker in facts.takers if taker.pid in job.fed_by and taker.pid not in own]
    return found if sum(taker.cores for taker in found) >= policy.AT_WORK else []


def _programs_late_for(met: Counter[str]) -> dict[str, float]:
    return _late_for({waits.DISK: met[waits.DISK], waits.NETWORK: met[waits.NETWORK] + met[waits.POLL]}, _samples(met))


def _samples(met: Counter[str]) -> int:
    """Without those of shells, whose own programs are told."""
    return sum(met.values()) - met[waits.CHILD]


def _late_for(met: dict[str, int], samples: int) -> dict[str, float]:
    often = sum(met.values()) >= policy.QUARTER * samples > 0.0
    return {kind: count / samples for kind, count in met.items() if count} if often else {}


def programs_at_work(job: JobFacts, facts: Facts) -> bool:
    """Programs that still run, or short ones whose time their parents inherit; of a job with workers only what these started."""
    parents = job.workers or [job.trainer]
    ended = sum(min(1.0, parent.children) for parent in parents) if not job.births else 0.0  # workers that ended are no programs
    running = 0.0 if job.workers else sum(taker.cores for taker in started(job, facts))
    return job.helpers + ended + running >= policy.AT_WORK


def asks_others(job: JobFacts) -> bool:
    """Its event loop waits for whom it asked over the network: it has connections, and nobody can ask it."""
    return job.trainer.info.sockets == CONNECTED


def is_asked_by_parent(job: JobFacts) -> bool:
    """Whether who started it holds the other end of the pipe that its main thread reads: a pool's child, a tool on standard input."""
    return job.trainer.info.ppid in {*job.trainer.info.other_ends, *(pid for pid, share in job.woken_by.items() if share >= policy.LOST)}


def serves(job: JobFacts) -> bool:
    """It can be asked and mostly waits for that. What its threads wait for, other than its programs, is its clients' business."""
    return not job.workers and job.trainer.info.sockets == LISTENING and job.trainer.kinds.get(waits.POLL, 0.0) >= policy.HALF


def started(job: JobFacts, facts: Facts) -> list[Taker]:
    """The trainer's own programs that run now, the busiest first; those of workers are helpers."""
    return [taker for taker in facts.takers if taker.info is not None and taker.info.ppid == job.trainer.pid]


def is_torchs(job: JobFacts) -> bool:
    """Its loader is torch's: the workers have its name, or somebody polls as it does. A script that uses torch may have one of its own."""
    return any(worker.info.comm == TORCH_WORKER for worker in job.workers) or (
        any(worker.role.loader == "torch" for worker in job.workers)
        and any(waits.QUEUE in proc.kinds for proc in (job.trainer, *job.workers))
    )


_OTHERS = {
    "grain": "grain.MultiprocessingOptions(num_workers={:d})",
    "tensorflow": "dataset.map(..., num_parallel_calls={:d}).prefetch({:d})",
    "dali": "Pipeline(..., num_threads={:d})",
    "multiprocessing": "multiprocessing.Pool({:d})",
}  # by the words of `gputop.model.roles.Role.loader`


def at_work(job: JobFacts) -> list[ProcFacts]:
    """The workers without those that get no work."""
    return [worker for worker in job.workers if not _is_unused(worker)]


def _is_unused(worker: ProcFacts) -> bool:
    looks = worker.sleeps_per_s is not None and worker.sleeps_per_s <= policy.ASKS_PER_S and worker.cores <= policy.TRIFLE
    return worker.ahead >= policy.NEARLY_ALL and (worker.still_s >= policy.STUCK_S or looks)


def with_workers(job: JobFacts, count: int, torchs: str = "") -> str:
    """``count`` of them, and the option ``torchs`` where these are torch's DataLoader's."""
    loader = _loader(job)
    if loader == "torch":
        more = filled(", {:own}", torchs) if torchs else ""
        return filled("DataLoader(..., num_workers={:d}{:command})", count, more)
    return filled(_OTHERS[loader], *[count] * _OTHERS[loader].count("{"))


def more_in_flight(job: JobFacts) -> str:
    """Twice as many who read at once; empty where these are threads of the trainer's own, made as its author pleased."""
    if not job.workers and threads_wait(job, job.trainer):
        return ""
    return with_workers(job, 2 * max(1, len(job.workers)), "prefetch_factor=4")


def _loader(job: JobFacts) -> str:
    """Of one without workers, that of a library which it has loaded; a script that uses torch may have made workers of its own."""
    if job.is_torchs:
        return "torch"
    known = (job.workers[0] if job.workers else job.trainer).role.loader
    return known if known in _OTHERS or (known == "torch" and not job.workers) else "multiprocessing"
