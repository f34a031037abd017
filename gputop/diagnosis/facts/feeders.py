"""Processes and threads that feed a job besides its workers: threads of the trainer, programs that trainer or workers start, services."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.facts import Facts, JobFacts, Taker
from gputop.diagnosis.facts.proc import ASKING, TURN, ProcFacts
from gputop.findings import policy
from gputop.findings.verdict import READS
from gputop.model.frame import ProcInfo
from gputop.model.roles import TORCH_WORKER
from gputop.system.text import clean

LISTENING, CONNECTED = "listening", "connected"  # words of `ProcInfo.sockets`
MEMORY = "memory"
UNSURE = (waits.TIMER, waits.UNKNOWN, waits.POLL, waits.DRIVER)
"""Kinds of wait that samples may report for another wait if the step is in phase with the samples; likeliest first."""


def threads_at_work(job: JobFacts) -> bool:
    """True if the trainer's other threads work: they load data if there are no workers, and launch the backward pass in any job."""
    return job.trainer.others_run >= policy.AT_WORK


def is_thread_full(job: JobFacts) -> bool:
    """True if one of the trainer's other threads computes nearly all the time that the GPUs rest, though these work now and then: it has
    requests, whatever the main thread waits for, as an event loop does for its clients and its threads alike."""
    idle, alone = job.idle or 0.0, not (job.workers or job.ranks.kin)
    return alone and 0.0 < idle < policy.AT_END and threads_at_work(job) and job.trainer.fullest_thread >= policy.NEARLY_ALL * idle


def loading_threads(job: JobFacts) -> int:
    """Number of other threads of a trainer without workers or programs that load for its main thread: those at work."""
    return job.trainer.threads_at_work if not job.workers else 0


def named_thread(proc: ProcFacts) -> str:
    """`` (name)`` of the busiest other thread; empty if it only has the program's name."""
    name = proc.busiest_thread
    return f" ({clean(name, 16)})" if name not in ("", proc.info.comm) else ""


def threads_wait(job: JobFacts, proc: ProcFacts) -> dict[str, float]:
    """``disk``, ``network`` -> share of samples in which the threads that the main thread waits for were waiting there. Under memory
    pressure ``memory`` replaces ``disk``: their pages come back from it.

    Polls of a trainer that has workers or peers are not counted: they wait for something else.
    """
    met = proc.threads_met
    asking = 0 if proc is job.trainer and (job.workers or job.ranks.kin) else met[ASKING]
    samples = sum(met.values()) - met[waits.LOCK] - met[TURN] - met[ASKING] + asking
    pages = MEMORY if job.limits.pressed else waits.DISK
    return _late_for({pages: met[waits.DISK], waits.NETWORK: met[waits.NETWORK] + asking}, samples)


def programs_read(job: JobFacts) -> float:
    """Share of samples in which threads of a trainer without workers were reading the output of programs that the trainer started: its
    loaders."""
    if job.workers or not (job.programs.met or sum(job.trainer.programs)):
        return 0.0
    met = job.trainer.threads_met
    samples = sum(met.values()) - met[waits.LOCK] - met[TURN] - met[ASKING] - met[waits.ONCPU]
    return met[waits.PIPE] / samples if met[waits.PIPE] >= policy.QUARTER * samples > 0.0 else 0.0


def programs_late(job: JobFacts) -> bool:
    """True if programs started by the job's loaders often waited for the disk or the network."""
    return bool(_programs_late_for(job.programs.met))


def loading_programs(job: JobFacts, facts: Facts) -> list[Taker]:
    """Programs that use CPU and that the trainer reads its data from, busiest first."""
    return [taker for taker in started(job, facts) if taker.cores >= policy.AT_WORK] if programs_read(job) else []


def programs_wait(job: JobFacts, facts: Facts) -> dict[str, float]:
    """Like `threads_wait`, for programs started by the job's loaders, unless they compute. Their polls count as network. Under memory
    pressure their CPU time is the kernel's search for pages, so samples on a CPU are left out."""
    met = job.programs.met
    samples = _samples(met)
    if job.limits.pressed and met[waits.DISK] >= policy.QUARTER * samples > 0.0:
        return _late_for({MEMORY: met[waits.DISK]}, samples - met[waits.ONCPU])
    return {} if programs_at_work(job, facts) else _programs_late_for(met)


def programs_sleep(job: JobFacts, facts: Facts) -> float:
    """Share of samples in which programs that the job's loaders started, and that hardly compute, slept by a timer."""
    met = job.programs.met
    return 0.0 if programs_at_work(job, facts) else met[waits.TIMER] / max(1, _samples(met))


def feeding(woken_by: Mapping[int, float], infos: Mapping[int, ProcInfo], hot: Container[int]) -> frozenset[int]:
    """Processes outside ``hot`` (trainers, workers) that wake a trainer with its input, such as actors; also their siblings with the same
    command (never waited for, because they were ahead) and the children of both. Empty if the trainer hardly waits for them."""
    known = {pid: share for pid, share in woken_by.items() if pid > 1 and pid in infos and pid not in hot and infos[pid].cmdline}
    found = {pid: share for pid, share in known.items() if share > policy.HARDLY}
    if sum(found.values()) < policy.LOST:
        return frozenset()
    commands = {command_of(infos[pid]) for pid in found}
    alike = {pid for pid, info in infos.items() if command_of(info) in commands}
    return frozenset(pid for pid, info in infos.items() if (pid in alike or info.ppid in alike) and pid not in hot)


def command_of(info: ProcInfo) -> tuple[int, str, tuple[str, ...]]:
    """What siblings of one pool have in common: parent, name and command."""
    return info.ppid, info.comm, tuple(info.cmdline)


def readers(trainer: ProcFacts, woken_by: Mapping[int, float]) -> list[int]:
    """Pids of the processes that read what the trainer's main thread, or threads that it waits for, wait to write, most waited for first:
    holders of the pipe's other end which, if probed, also woke the main thread (``woken_by``). Without a known holder: the processes that
    woke it, if the wait to write is more than half of its sleep until others woke it."""
    if trainer.held_up < policy.LITTLE:
        by_threads = trainer.kinds.get(waits.LOCK, 0.0) >= policy.LITTLE and trainer.threads_held_up >= policy.HALF
        return list(trainer.info.read_by) if by_threads else []
    woke = {pid: share for pid, share in woken_by.items() if pid not in (0, trainer.pid) and share >= policy.TENTH * trainer.held_up}
    known = [pid for pid in trainer.info.read_by if not woke or pid in woke]
    alone = woke if 2 * trainer.held_up > sum(woke.values()) else {}
    return sorted(known or alone, key=lambda pid: -woke.get(pid, 0.0))


def read_from(trainer: ProcFacts) -> dict[int, float]:
    """Pid -> share of the window that the main thread waited to read from that process, at a pipe, a socket or a semaphore in memory that
    they share; divided evenly among the possible writers."""
    slept, pids = trainer.kinds.get(waits.PIPE, 0.0) + trainer.kinds.get(waits.NETWORK, 0.0), trainer.info.other_ends
    slept += 0.0 if trainer.lock_holder else trainer.awaits_memory
    return dict.fromkeys(pids, slept / len(pids)) if pids else {}


def read_by_threads(
    trainer: ProcFacts, infos: Mapping[int, ProcInfo], children: Sequence[int], woken_by_own: float | None, idle: float
) -> dict[int, float]:
    """Like `read_from`, for the trainer's other threads: processes at the other ends of what these read, and programs it started in another
    cgroup, which may throttle them. Counted as long as the main thread sleeps for its own threads (``woken_by_own``) or, if not probed, at
    most as long as the GPUs were ``idle``."""
    slept = max(woken_by_own or 0.0, trainer.kinds.get(waits.LOCK, 0.0))
    if woken_by_own is None:
        slept = max(slept, min(idle, sum(trainer.kinds.get(kind, 0.0) for kind in UNSURE)))
    if slept < policy.LOST:
        return {}
    pids = [pid for pid in children if infos[pid].cgroup and infos[pid].cgroup != trainer.info.cgroup]
    pids += [pid for pid in trainer.info.other_ends if pid in infos and pid not in pids and infos[pid].ppid != trainer.pid]
    met = trainer.threads_met if pids else Counter()
    reading = (met[waits.PIPE] + met[waits.NETWORK]) / max(1, sum(met.values()))
    return dict.fromkeys(pids, reading * slept / len(pids)) if reading else {}


Service = tuple[ProcFacts, list[ProcFacts]]  # a trainer without a GPU, and its workers


def lending(services: Iterable[Service], woken_by: Mapping[int, float]) -> list[Service]:
    """The services that a trainer without workers waits for: they are its loaders. ``woken_by``: see `FeederFacts`."""
    waited = [(one, sum(woken_by.get(proc.pid, 0.0) for proc in (one[0], *one[1]))) for one in services]
    return [one for one, share in waited if share >= policy.LOST]


def loaders_of(service: ProcFacts, workers: list[ProcFacts]) -> list[ProcFacts]:
    """A service's ``workers``, and its main process if that works or there are no workers."""
    return [*workers, service] if not workers or service.run + service.runnable >= policy.AT_WORK else workers


def elsewhere(job: JobFacts, facts: Facts) -> list[Taker]:
    """Feeders of the job that use CPU and were not started by the trainer: its wakers, and members of its family at which the walk may
    end."""
    own = {taker.pid for taker in started(job, facts)}
    feed = job.feeders.pids | {one.pid for one in job.members if one.part != READS}
    found = [taker for taker in facts.takers if taker.pid in feed and taker.pid not in own]
    return found if sum(taker.cores for taker in found) >= policy.AT_WORK else []


def at_other_ends(job: JobFacts) -> list[int]:
    """Pids of the members of the family that the trainer reads from."""
    return [one.pid for one in job.members if one.pid in job.trainer.info.other_ends and one.part != READS]


def sources(job: JobFacts, facts: Facts) -> list[Taker]:
    """Programs at work that the trainer started before the window and that its main thread waits for: a decoder at the other end of its
    pipe. (A program that is started for each batch is the main thread's own work.)"""
    lasting = [] if job.workers else [taker for taker in started(job, facts) if taker.pid in job.programs.lasting]
    found = [taker for taker in lasting if taker.cores >= policy.AT_WORK]
    return found if 2 * sum(taker.cores for taker in found) >= job.trainer.programs[0] else []


def is_alone(job: JobFacts, facts: Facts) -> bool:
    """True if one program alone feeds the main thread, from a source of its own: a second one would have nothing to read. (What the job
    itself writes to its program it could divide among several.)"""
    written = (thread.wchan for sample in job.trainer.samples for thread in sample.threads)
    return len(sources(job, facts)) == 1 and not any(map(waits.is_ahead, written))


def at_work_for(job: JobFacts, facts: Facts) -> list[Taker]:
    """Processes at work outside the job's own that load for it, busiest first."""
    return loading_programs(job, facts) or elsewhere(job, facts) or sources(job, facts)


def _programs_late_for(met: Counter[str]) -> dict[str, float]:
    return _late_for({waits.DISK: met[waits.DISK], waits.NETWORK: met[waits.NETWORK] + met[waits.POLL]}, _samples(met))


def _samples(met: Counter[str]) -> int:
    """Number of samples, without waits of shells for their own programs."""
    return sum(met.values()) - met[waits.CHILD]


def _late_for(met: dict[str, int], samples: int) -> dict[str, float]:
    often = sum(met.values()) >= policy.QUARTER * samples > 0.0
    return {kind: count / samples for kind, count in met.items() if count} if often else {}


def programs_at_work(job: JobFacts, facts: Facts) -> bool:
    """True if programs compute for the job: running ones, or short ones whose CPU time their parents inherit. With workers, only programs
    that the workers started."""
    parents = job.workers or [job.trainer]
    ended = sum(min(1.0, parent.children) for parent in parents) if not job.loader.births else 0.0  # workers that ended are no programs
    running = 0.0 if job.workers else sum(taker.cores for taker in started(job, facts))
    return job.cpus.helpers + ended + running >= policy.AT_WORK


def asks_others(job: JobFacts) -> bool:
    """True if the trainer is only a network client: it has connections and no listening socket."""
    return job.trainer.info.sockets == CONNECTED


def is_asked_by_parent(job: JobFacts) -> bool:
    """True if the trainer's parent holds the other end of the pipe that the main thread reads: a pool's child, a tool on standard input."""
    wakers = {pid for pid, share in job.feeders.woken_by.items() if share >= policy.LOST}
    return job.trainer.info.ppid in wakers | {*job.trainer.info.other_ends}


def serves(job: JobFacts) -> bool:
    """True if the trainer is a server that mostly waits for requests. Waits of its threads, but not of its programs, are then its clients'
    concern."""
    return not job.workers and job.trainer.info.sockets == LISTENING and job.trainer.kinds.get(waits.POLL, 0.0) >= policy.HALF


def started(job: JobFacts, facts: Facts) -> list[Taker]:
    """Programs that the trainer started and that run now, busiest first. (Programs started by workers count as helpers.)"""
    return [taker for taker in facts.takers if taker.info is not None and taker.info.ppid == job.trainer.pid]


def is_torchs(job: JobFacts) -> bool:
    """True if the job's loader is torch's DataLoader: workers bear its name or poll as it does. Importing torch alone is no proof."""
    return any(worker.info.comm == TORCH_WORKER for worker in job.workers) or (
        any(worker.role.loader == "torch" for worker in job.workers)
        and any(waits.QUEUE in proc.kinds for proc in (job.trainer, *job.workers))
    )


def at_work(job: JobFacts) -> list[ProcFacts]:
    """The workers that get work."""
    return [worker for worker in job.workers if not _is_unused(worker)]


def _is_unused(worker: ProcFacts) -> bool:
    looks = worker.sleeps_per_s is not None and worker.sleeps_per_s <= policy.ASKS_PER_S and worker.cores <= policy.TRIFLE
    return worker.ahead >= policy.NEARLY_ALL and (worker.still_s >= policy.STUCK_S or looks)
