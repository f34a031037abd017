"""lock-contention: workers wait for a lock (futex, flock, semaphore) that another one holds.

A lock wait that turns over: workers that never move are hung instead. A lock that a process of its own gives out (a Manager's) is
waited for at a pipe or socket: there it is told by the workers' running, `TURNS` CPUs in all however many they are. Who asks again
and again for the lock of a file sleeps by a timer meanwhile, and somebody else holds one in `HELD` of the samples; in fewer where
several workers were met as its holders, for each has it shortly.
"""

from __future__ import annotations

from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.feeders import programs_at_work
from gputop.diagnosis.feeders import programs_wait
from gputop.diagnosis.model import Culprit
from gputop.diagnosis.model import Evidence
from gputop.diagnosis.model import Fix
from gputop.diagnosis.verdicts import Claims
from gputop.diagnosis.verdicts import Finding
from gputop.diagnosis.verdicts import Judge
from gputop.text import counted

TURNS, HELD, HELD_BY_TURNS = (0.75, 1.15), 0.4, 0.2
_WHERE = {"lock": "in futex, flock or a semaphore", "pipe": "until a process that gives out the lock answers",
          "timer": "between one try for the lock of a file and the next"}  # fmt: skip
STILL_S = 1.0
"""A worker that has not moved for this long does not take turns; after `hung_worker.STUCK_S` it hangs."""


def _claim(job: JobFacts, facts: Facts) -> Claims:
    waiting = [worker for worker in job.workers if worker.kinds.get("lock", 0.0) > 0.0]
    turning = sum(worker.still_s < STILL_S for worker in waiting) / len(waiting) if waiting else 0.0
    served = _served_in_turns(job, facts)
    running = 1.0 if served or _one_at_a_time(job) else 0.0
    return {"data.lock": turning, "data.pipe": 1.0 if served else 0.0, "data.running": running, "data.timer": _asking(job)}


def _asking(job: JobFacts) -> float:
    """How many of the workers that sleep by a timer do so while somebody else holds the file."""
    asleep = [worker for worker in job.workers if worker.kinds.get("timer", 0.0) >= 0.3]
    by_turns = len({worker.pid for worker in job.workers} & set(job.holders)) > 1
    return sum(worker.kept_out >= (HELD_BY_TURNS if by_turns else HELD) for worker in asleep) / len(asleep) if asleep else 0.0


def _one_at_a_time(job: JobFacts) -> bool:
    """Several workers, all waiting for locks most of the time, together running on about one CPU: the holder's work is the queue's.

    Who waits for a thread of its own, which works meanwhile, waits for no other worker.
    """
    locked = [worker for worker in job.workers if worker.kinds.get("lock", 0.0) - worker.others_run >= 0.3]
    return len(locked) >= 2 and sum(worker.run + worker.others_run for worker in job.workers) <= 1.25


def _served_in_turns(job: JobFacts, facts: Facts) -> bool:
    """The same of workers that read an answer, from somebody who hardly runs and waits for no disk and no network either."""
    asking = [worker for worker in job.workers if worker.kinds.get("pipe", 0.0) >= 0.3]
    running = sum(worker.run for worker in job.workers)
    idle = not programs_at_work(job, facts) and not programs_wait(job, facts)
    return len(asking) >= 2 and len(asking) == len(job.workers) and TURNS[0] <= running <= TURNS[1] and idle


def _tell(job: JobFacts, facts: Facts) -> Finding:
    kind = "pipe" if _served_in_turns(job, facts) else "timer" if _asking(job) else "lock"
    share = 100 * sum(worker.state.waits.get(kind, 0.0) for worker in job.workers) / max(1, len(job.workers))
    running = sum(worker.run for worker in job.workers)
    detail = f"{counted(len(job.workers), 'worker')} waited for a lock {share:.0f}% of the time; together they run on {running:.1f} CPUs"
    detail += _held(job)
    evidence = (
        Evidence("lock_pct", round(share, 1), "%", f"of the workers' time asleep {_WHERE[kind]}"),
        Evidence("running_cpus", round(running, 2), "CPUs", "used by all workers together"),
    )
    pids = " ".join(map(str, job.holders)) or " ".join(str(worker.pid) for worker in job.workers)
    fixes = (
        Fix("See what the holder does meanwhile" if job.holders else "See which lock, and who holds it", f"gputop stacks {pids}"),
        Fix("Give each worker its own handle or shard (HDF5, LMDB, SQLite, a file cache), opened in worker_init_fn, to read only"),
    )
    own = {worker.pid for worker in job.workers}
    culprits = tuple(Culprit(pid, name, None) for pid, name in job.holders.items() if pid not in own)
    return Finding(detail, evidence, fixes, culprits)


def _held(job: JobFacts) -> str:
    """By whom most of the time, where /proc/locks tells; nobody where workers hold it in turns."""
    pid, share = max((worker.locked_out for worker in job.workers), key=lambda pair: pair[1], default=(0, 0.0))
    if len({worker.pid for worker in job.workers} & set(job.holders)) > 1:
        return "; they hold it in turns"
    label = next((worker.role.label for worker in job.workers if worker.pid == pid), job.holders.get(pid, ""))
    return f"; {label} ({pid}) held it in {100 * share:.0f}% of the samples" if pid else ""


_POOLS = ("data.lock", "data.pipe", "data.running", "data.timer")
JUDGE = Judge("lock-contention", "input-bound", 66, _POOLS, _claim, _tell, needs="/proc/PID/syscall or wchan")
