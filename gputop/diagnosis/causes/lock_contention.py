"""lock-contention: workers, or their trainer, wait for a lock (futex, flock, semaphore) held by another process.

Costs: work that could run in parallel runs in sequence.
Seen: rows lock x sibling: by the probe a worker's sleep at a futex ends when another worker wakes it, by samples it sleeps at a lock, or
the trainer at a lock that both take: they wake each other there, or samples met both there (even if the holder sleeps); lock x process:
another training wakes it, a process holds the lock of a file for which it asks again and again (/proc/locks, in `policy.HALF` of the
samples) or a mutex in shared memory that names it, or a process that gives out a lock answers at a pipe (`owners.served_in_turns`); lock x
worker; lock x thread: another thread of the process sleeps with the mutex.
Abstains: the workers never move (hung-worker); the holder of the lock reads all that the cgroup may (disk-io).
"""

from __future__ import annotations

from collections import Counter

from gputop.diagnosis.causes import Finding, Judge, advice, percent
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.facts.waits import LOCK
from gputop.diagnosis.graph import owners
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings import policy
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import Culprit, Evidence, Fix
from gputop.system.text import counted

_WHERE = {"lock": "in futex, flock or a semaphore", "pipe": "until a process that gives out the lock answers",
          "timer": "between one try for the lock of a file and the next"}  # fmt: skip


def _between_trainers(job: WalkedJob) -> bool:
    """True if the main thread sleeps until other trainers release something shared, such as a table in shared memory."""
    return sum(job.locks.rivals.values()) >= policy.LOST


def _is_kept_out(job: WalkedJob) -> bool:
    """True if the main thread itself, rather than its workers, sleeps until another process lets go of a file or a mutex. A mutex that a
    worker holds is taken in turn."""
    if owners.held_by_worker(job)[1]:
        return False
    return job.trainer.kept_out(LOCK) >= policy.HALF and job.pools.get("main.lock", 0.0) >= job.pools.get("data.lock", 0.0)


def _takes_turns(job: WalkedJob) -> bool:
    """True if the main thread itself takes the lock in turn with its workers."""
    return sum(job.locked_by.values()) >= policy.LOST


def _own_thread_holds(job: WalkedJob) -> bool:
    """True if the main thread sleeps until another thread of its process lets go of a mutex."""
    return job.trainer.lock_thread[1] * job.trainer.kinds.get(LOCK, 0.0) >= policy.LOST


def _felt(job: WalkedJob) -> str:
    """The symptom: the trainer does not wait for input if its workers deliver. Under a lock that it takes in turn with them lies its input,
    such as a replay buffer."""
    return "wait-heavy" if _between_trainers(job) or _is_kept_out(job) or _own_thread_holds(job) else "input-bound"


def _server(job: WalkedJob) -> ProcFacts | None:
    """The process (Manager or worker) that holds a lock while most of its clients wait on pipes; None without one. (A queue that is merely
    empty or full blocks one side.)"""
    if sum(proc.kinds.get("pipe", 0.0) >= policy.QUARTER for proc in (job.trainer, *job.workers)) < policy.SEVERAL:
        return None
    for worker in (*job.managers, *job.workers):
        clients, locked = worker.clients if worker.kinds.get(LOCK, 0.0) >= policy.NEARLY_ALL else (0.0, 0.0)
        if locked >= max(1.0, policy.HALF * (clients - 1.0)):
            return worker
    return None


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    if _between_trainers(job):
        return _tell_of_rivals(job, facts)
    if _is_kept_out(job):
        return _tell_of_kept_out(job)
    if _takes_turns(job):
        return _tell_of_turns(job)
    if _own_thread_holds(job):
        return _tell_of_own_thread(job)
    if not job.workers and any(one.locked_by for one in job.members):
        return _tell_of_members(job)
    server = _server(job)
    return _tell_of_waiting(job, facts) if server is None else _tell_of_server(job, server)


def _tell_of_rivals(job: WalkedJob, facts: WalkedFacts) -> Finding:
    labels = {other.trainer.pid: other.trainer.role.label for other in facts.jobs}
    names = joined(", ", (filled("{} ({})", labels.get(pid, "another trainer"), pid) for pid in sorted(job.locks.rivals)))
    share, pids = sum(job.locks.rivals.values()), sorted({job.trainer.pid, *job.locks.rivals})
    own = filled("{} ({})", job.trainer.role.label, job.trainer.pid)
    fixes = (
        Fix("See which lock, and what is done under it", filled("gputop stacks {:pids}", pids), look=True),
        Fix("Hold it for shorter (not while the GPU works), or give each process its own part of what it guards"),
    )
    return Finding(
        filled("the main thread of {} slept {:.0f}% of the time at a lock until {} let go of it", own, 100 * share, names),
        (percent("lock_pct", share, "of its time asleep at a lock that another trainer held"),), fixes, (), (job.trainer.pid,),
    )  # fmt: skip


def _tell_of_kept_out(job: WalkedJob) -> Finding:
    trainer, pid = job.trainer, job.trainer.locked_out[0]
    name, share = job.locks.holders[pid], trainer.kinds.get(LOCK, 0.0)
    lock = "mutex that processes share" if trainer.at_mutex else "lock of a file"
    detail = filled("the main thread of {} ({}) waited for the {} {:.0f}% of the time", trainer.role.label, trainer.pid, lock, 100 * share)
    fixes = (
        Fix("See what the holder does", filled("gputop stacks {:pid} --duration 5", pid), look=True),
        Fix(filled("Have {} ({}) hold it for shorter, or take it less often than in each step", name, pid)),
    )
    evidence = percent("lock_pct", share, "of its time asleep at it")
    return Finding(detail + _held(job, [trainer]), (evidence,), fixes, (Culprit(pid, name, None),), (trainer.pid,))


def _tell_of_turns(job: WalkedJob) -> Finding:
    trainer, share = job.trainer, sum(job.locked_by.values())
    held = {worker.pid: job.locked_by[worker.pid] for worker in job.workers if worker.pid in job.locked_by}
    most = [pid for pid, part in sorted(held.items(), key=lambda row: -row[1]) if part >= policy.TENTH * share]
    workers = {worker.pid: worker for worker in job.workers}
    ran = sum(worker.run for worker in job.workers)
    detail = filled("the main thread of {} ({}) waits {:.0f}% of the time for a ", trainer.role.label, trainer.pid, 100 * share)
    titles = {worker.role.label.rpartition(" ")[0] for worker in job.workers}
    detail += filled("lock that it takes in turn with its {}", counted(len(job.workers), titles.pop() if len(titles) == 1 else "worker"))
    detail += filled(", which run on {:.1f} CPUs together{}", ran, ": its holder sleeps" if ran < policy.HALF * share else "")
    evidence = (
        percent("lock_pct", share, "of its time asleep at a lock that its workers take, too"),
        Evidence("running_cpus", round(ran, 2), "CPUs", "used by all workers together"),
    )
    fixes = (
        Fix("See what is done under the lock", filled("gputop stacks {:pids} --duration 5", most or sorted(workers)), look=True),
        Fix("Hold it for shorter: compute, compress and write before or after, and only exchange what is ready under it"),
        Fix("Or give each worker a part of its own (a queue, a shard, a lock for each), so that the trainer waits for none"),
    )
    culprits = tuple(Culprit(pid, workers[pid].role.label, round(workers[pid].cpu_s, 3)) for pid in most)
    return Finding(detail, evidence, fixes, culprits, (trainer.pid,))


def _tell_of_members(job: WalkedJob) -> Finding:
    """Members of the family that feed the trainer wait for a mutex."""
    trainer, waiting = job.trainer, [one for one in job.members if one.locked_by]
    held = sum((one.locked_by for one in waiting), Counter[int]())
    pid, share = held.most_common(1)[0][0], held.total() / max(1, sum(one.met.total() for one in waiting))
    name, cores = job.locks.holders.get(pid, "process"), next((one.cores for one in job.members if one.pid == pid), None)
    names = joined(", ", (filled("{} ({})", one.name, one.pid) for one in waiting if one.pid != pid))
    own = filled("{} ({})", trainer.role.label, trainer.pid)
    detail = filled("the main thread of {} waits for {}, which waited {:.0f}% of the time for a mutex", own, names, 100 * share)
    asleep = cores is not None and cores < policy.TENTH
    detail += filled("; {} ({}) holds it{}", name, pid, ", and sleeps meanwhile" if asleep else "")
    evidence = percent("lock_pct", share, "of the samples asleep at a mutex that another process holds")
    fixes = (
        Fix("See what the holder does", filled("gputop stacks {:pid} --duration 5", pid), look=True),
        Fix(filled("Have {} ({}) hold it for shorter: copy what it needs under the mutex, and write, send or wait without it", name, pid)),
        Fix("Or give each of them a part of its own, with a mutex for each"),
    )
    victims = (trainer.pid, *(one.pid for one in waiting if one.pid != pid))
    return Finding(detail, (evidence,), fixes, (Culprit(pid, name, None),), victims)


def _tell_of_own_thread(job: WalkedJob) -> Finding:
    """Another thread of the trainer holds a mutex, asleep."""
    trainer, (tid, part) = job.trainer, job.trainer.lock_thread
    share = trainer.kinds.get(LOCK, 0.0) * part
    name = next((thread.comm for thread in trainer.info.threads if thread.tid == tid), "")
    detail = filled("the main thread of {} ({}) waited for a mutex {:.0f}% of the time", trainer.role.label, trainer.pid, 100 * share)
    detail += filled("; its thread {} holds it", filled("{} ({})", name, tid) if name else tid)
    evidence = percent("lock_pct", share, "of its time asleep at a mutex of its own process")
    fixes = (
        Fix("See what the holder does", filled("gputop stacks {:pid} --duration 5", trainer.pid), look=True),
        Fix("Hold it for shorter: prepare before, write, send or wait after, and only exchange what is ready under it"),
    )
    return Finding(detail, (evidence,), fixes, (), (trainer.pid,))


def _tell_of_server(job: WalkedJob, server: ProcFacts) -> Finding:
    clients, locked = server.clients
    victims = tuple(worker.pid for worker in job.workers if worker is not server)
    detail = filled(
        "{} ({}) serves trainer and workers, and {:.1f} of its {:.0f} clients wait for a ", server.role.label, server.pid, locked, clients
    )
    detail += "lock that it gives out (a Manager's)"
    evidence = Evidence("locked_clients", round(locked, 1), "clients", "whose threads in the server stand at a lock, at a time")
    fixes = (
        Fix("See its holder, and what for", filled("gputop stacks {:pids}", victims or (server.pid,)), look=True),
        Fix("Hold it for shorter: each call of a Manager's object is a message and an answer, so write many items in one; or take a queue"),
    )
    return Finding(detail, (evidence,), fixes, (), victims)


def _tell_of_waiting(job: WalkedJob, facts: WalkedFacts) -> Finding:
    waited = sum((Counter(worker.state.waits) for worker in job.workers), Counter[str]())
    kind = max(_WHERE, key=lambda word: waited[word])
    share, running = waited[kind] / max(1, len(job.workers)), sum(worker.run for worker in job.workers)
    detail = filled("{} waited for a lock {:.0f}% of the time; ", counted(len(job.workers), "worker"), 100 * share)
    detail += filled("together they run on {:.1f} CPUs{}", running, _held(job, job.workers))
    if sum(worker.state.fractions.get("disk", 0.0) for worker in job.workers) >= policy.HALF:
        detail += "; its holder waits for the disk"
    evidence = (
        percent("lock_pct", share, filled("of the workers' time asleep {}", _WHERE[kind])),
        Evidence("running_cpus", round(running, 2), "CPUs", "used by all workers together"),
    )
    own = {worker.pid for worker in job.workers}
    culprits = tuple(Culprit(pid, name, None) for pid, name in job.locks.holders.items() if pid not in own)
    others = joined(", ", (filled("{} ({})", one.name, one.pid) for one in culprits))
    look = "See what the holder does" if job.locks.holders else "See which lock, and its holder"
    fixes = (
        Fix(look, filled("gputop stacks {:pids} --duration 5", list(job.locks.holders) or sorted(own)), look=True),
        *([Fix(filled("Have {} hold it for shorter (commit sooner), or keep what it writes elsewhere", others))] if others else []),
        *advice.fixes(advice.loading(job, facts).handles),
    )
    return Finding(detail, evidence, fixes, culprits)


def _held(job: WalkedJob, waiting: list[ProcFacts]) -> str:
    """Words for the process that held the lock most of the time, by /proc/locks; empty if unknown."""
    pid, share = max((proc.locked_out for proc in waiting), key=lambda pair: pair[1], default=(0, 0.0))
    if len({worker.pid for worker in job.workers} & set(job.locks.holders)) > 1:
        return "; they hold it in turns"
    label = next((worker.role.label for worker in job.workers if worker.pid == pid), job.locks.holders.get(pid, ""))
    return filled("; {} ({}) held it in {:.0f}% of the samples", label, pid, 100 * share) if pid else ""


_HOLDERS = ("sibling", "process", "worker", "thread")
JUDGE = Judge("lock-contention", "input-bound", _tell, rows=tuple(("lock", by) for by in _HOLDERS), felt=_felt)
