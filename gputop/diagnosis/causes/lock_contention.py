"""lock-contention: workers, or their trainer, wait for a lock (futex, flock, semaphore) that another one holds.

A lock wait that turns over: workers that never move are hung instead. A lock that a process of its own gives out (a Manager's) is
waited for at a pipe or socket: there it is told by the workers' running, `TURNS` CPUs in all however many they are, and where that
process is looked at by its threads, each of which stands for a client. Trainers that share a lock wake one another. Who asks again
and again for the lock of a file sleeps by a timer meanwhile, and somebody else holds one in `HELD` of the samples; in fewer where
several workers were met as its holders, for each has it shortly. A trainer that itself stands at a file's has a holder in as many.
"""

from __future__ import annotations

from collections import Counter

from gputop.diagnosis.causes import Finding, Judge
from gputop.diagnosis.facts import Facts, JobFacts
from gputop.diagnosis.feeders import WOKEN, programs_at_work, programs_wait
from gputop.diagnosis.model import Culprit, Evidence, Fix
from gputop.diagnosis.proc import ProcFacts
from gputop.diagnosis.waits import LOCK, TIMER
from gputop.system.text import counted

TURNS, HELD, HELD_BY_TURNS = (0.75, 1.15), 0.4, 0.2
_WHERE = {"lock": "in futex, flock or a semaphore", "pipe": "until a process that gives out the lock answers",
          "timer": "between one try for the lock of a file and the next"}  # fmt: skip
READS = 0.5  # of the time, in which one of the workers waits for a disk
ASKS, LEAST = 0.25, 2
"""Share of the window at a pipe of one that asks a server, and how many these are: torch's workers serve their trainer, too."""
OF_CLIENTS, SERVES = 0.5, 0.9
"""Of those who may wait for a lock, all but its holder, and share of the window in which a server's main thread waits for its end."""
STILL_S = 1.0  # a worker that has not moved for this long does not take turns; after `hung_worker.STUCK_S` it hangs


def _asking(job: JobFacts) -> float:
    """How many of the workers that sleep by a timer do so while somebody else holds the file."""
    asleep = [worker for worker in job.workers if worker.kinds.get("timer", 0.0) >= 0.3]
    by_turns = len({worker.pid for worker in job.workers} & set(job.holders)) > 1
    return sum(worker.kept_out(TIMER) >= (HELD_BY_TURNS if by_turns else HELD) for worker in asleep) / len(asleep) if asleep else 0.0


def _served_in_turns(job: JobFacts, facts: Facts) -> bool:
    """The same of workers that read an answer, from somebody who hardly runs and waits for no disk and no network either; not of those who
    wait until their trainer asks them."""
    asking = [worker for worker in job.workers if worker.kinds.get("pipe", 0.0) - worker.ahead >= 0.3]
    running = sum(worker.run for worker in job.workers)
    idle = not programs_at_work(job, facts) and not programs_wait(job, facts)
    return len(asking) >= 2 and len(asking) == len(job.workers) and TURNS[0] <= running <= TURNS[1] and idle


def _between_trainers(job: JobFacts) -> bool:
    """Its main thread sleeps until other trainers let go of what they share, such as a table in shared memory."""
    return sum(job.rivals.values()) >= WOKEN


def _felt(job: JobFacts) -> str:
    """Its workers deliver: it is no input for which it waits."""
    return "wait-heavy" if _between_trainers(job) or _is_kept_out(job) else "input-bound"


def _is_kept_out(job: JobFacts) -> bool:
    """Its main thread itself sleeps in fcntl or flock, rather than its workers, while somebody holds the file."""
    return job.trainer.kept_out(LOCK) >= HELD and job.pools.get("main.lock", 0.0) >= job.pools.get("data.lock", 0.0)


def _server(job: JobFacts) -> ProcFacts | None:
    """Who gives out a lock for which most of those wait whom it serves, at pipes. Of an empty queue, or a full one, only one side waits."""
    if sum(proc.kinds.get("pipe", 0.0) >= ASKS for proc in (job.trainer, *job.workers)) < LEAST:
        return None
    for worker in job.workers:
        clients, locked = worker.clients if worker.kinds.get("lock", 0.0) >= SERVES else (0.0, 0.0)
        if locked >= max(1.0, OF_CLIENTS * (clients - 1.0)):
            return worker
    return None


def _tell(job: JobFacts, facts: Facts) -> Finding:
    if _between_trainers(job):
        return _tell_of_rivals(job, facts)
    if _is_kept_out(job):
        return _tell_of_kept_out(job)
    server = _server(job)
    return _tell_of_waiting(job, facts) if server is None else _tell_of_server(job, server)


def _tell_of_rivals(job: JobFacts, facts: Facts) -> Finding:
    labels = {other.trainer.pid: other.trainer.role.label for other in facts.jobs}
    names = ", ".join(f"{labels.get(pid, 'another trainer')} ({pid})" for pid in sorted(job.rivals))
    share, pids = 100 * sum(job.rivals.values()), " ".join(map(str, sorted({job.trainer.pid, *job.rivals})))
    own = f"{job.trainer.role.label} ({job.trainer.pid})"
    detail = f"the main thread of {own} slept {share:.0f}% of the time at a lock until {names} let go of it"
    evidence = (Evidence("lock_pct", round(share, 1), "%", "of its time asleep at a lock that another trainer held"),)
    fixes = (
        Fix("See which lock, and what is done under it", f"gputop stacks {pids}"),
        Fix("Hold it for shorter (not while the GPU works), or give each trainer its own part of what it guards"),
    )
    return Finding(detail, evidence, fixes, (), (job.trainer.pid,))


def _tell_of_kept_out(job: JobFacts) -> Finding:
    trainer, pid = job.trainer, job.trainer.locked_out[0]
    name, share = job.holders[pid], 100 * trainer.kinds.get(LOCK, 0.0)
    detail = f"the main thread of {trainer.role.label} ({trainer.pid}) waited for the lock of a file {share:.0f}% of the time"
    evidence = (Evidence("lock_pct", round(share, 1), "%", "of its time asleep in fcntl or flock"),)
    fixes = (
        Fix("See what the holder does meanwhile", f"gputop stacks {pid} --duration 5"),
        Fix(f"Have {name} ({pid}) hold it for shorter, or lock the file less often than in each step"),
    )
    return Finding(detail + _held(job, [trainer]), evidence, fixes, (Culprit(pid, name, None),), (trainer.pid,))


def _tell_of_server(job: JobFacts, server: ProcFacts) -> Finding:
    clients, locked = server.clients
    others = [worker for worker in job.workers if worker is not server]
    detail = f"{server.role.label} ({server.pid}) serves trainer and workers, and {locked:.1f} of its {clients:.0f} clients wait for a "
    detail += "lock that it gives out (a Manager's)"
    evidence = (Evidence("locked_clients", round(locked, 1), "clients", "whose threads in the server stand at a lock, at a time"),)
    pids = " ".join(str(worker.pid) for worker in others)
    fixes = (
        Fix("See who holds it, and what for", f"gputop stacks {pids or server.pid}"),
        Fix("Hold it for shorter: each call of a Manager's object is a message and an answer, so write many items in one; or take a queue"),
    )
    return Finding(detail, evidence, fixes, (), tuple(worker.pid for worker in others))


def _tell_of_waiting(job: JobFacts, facts: Facts) -> Finding:
    waited = Counter({"lock": 0.0}) + sum((Counter(worker.state.waits) for worker in job.workers), Counter())
    by_timer = _asking(job) and waited["timer"] > waited["lock"]
    kind = "pipe" if _served_in_turns(job, facts) else "timer" if by_timer else "lock"
    share = 100 * waited[kind] / max(1, len(job.workers))
    running = sum(worker.run for worker in job.workers)
    detail = f"{counted(len(job.workers), 'worker')} waited for a lock {share:.0f}% of the time; together they run on {running:.1f} CPUs"
    detail += _held(job, job.workers)
    if sum(worker.state.fractions.get("disk", 0.0) for worker in job.workers) >= READS:
        detail += "; who holds it waits for the disk"
    evidence = (
        Evidence("lock_pct", round(share, 1), "%", f"of the workers' time asleep {_WHERE[kind]}"),
        Evidence("running_cpus", round(running, 2), "CPUs", "used by all workers together"),
    )
    pids = " ".join(map(str, job.holders)) or " ".join(str(worker.pid) for worker in job.workers)
    own = {worker.pid for worker in job.workers}
    culprits = tuple(Culprit(pid, name, None) for pid, name in job.holders.items() if pid not in own)
    others = ", ".join(f"{one.name} ({one.pid})" for one in culprits)
    look = "See what the holder does meanwhile" if job.holders else "See which lock, and who holds it"
    fixes = (
        Fix(look, f"gputop stacks {pids} --duration 5"),
        *([Fix(f"Have {others} hold it for shorter (commit sooner), or keep what it writes elsewhere")] if others else []),
        Fix("Give each worker its own handle or shard (HDF5, LMDB, SQLite, a file cache), opened in worker_init_fn, to read only"),
    )
    return Finding(detail, evidence, fixes, culprits)


def _held(job: JobFacts, waiting: list[ProcFacts]) -> str:
    """By whom most of the time, where /proc/locks tells; nobody where workers hold it in turns."""
    pid, share = max((proc.locked_out for proc in waiting), key=lambda pair: pair[1], default=(0, 0.0))
    if len({worker.pid for worker in job.workers} & set(job.holders)) > 1:
        return "; they hold it in turns"
    label = next((worker.role.label for worker in job.workers if worker.pid == pid), job.holders.get(pid, ""))
    return f"; {label} ({pid}) held it in {100 * share:.0f}% of the samples" if pid else ""


JUDGE = Judge(
    "lock-contention", "input-bound", _tell, rows=(("lock", "sibling"), ("lock", "process"), ("lock", "worker"),),
    needs="/proc/PID/syscall or wchan", felt=_felt,
)  # fmt: skip
