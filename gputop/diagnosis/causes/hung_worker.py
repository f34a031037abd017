"""What it is (hung-worker): a worker is stopped, dead, or does not move while its trainer waits and the GPU does nothing.

Why it costs: the batch that it was to deliver never comes, and a loader that keeps the order of its batches waits for ever.
How it is seen: row nobody x worker: stopped or zombie in /proc, or neither run nor switched for `policy.STUCK_S` beside a GPU that rests
(`policy.LONG_STUCK_S` beside one that others still feed), or left out while others deliver (`owners.left_out`): a slow but living worker
wakes up many times in that span. A rule takes the waits of the others and of the trainer as well, where one hangs beside a GPU that rests,
or workers merely ask again and again for what does not come (`_asks_for_ever`); where one was killed (`killed`) or replaced (`replacing`);
where nobody of the job moves; and where a program that feeds the trainer is stopped, or nobody reads what it or the trainer writes.
When it abstains: somebody moves, or is asked at a queue. Where it is not known whose fault it is, `gputop.diagnosis.hangs` tells.
"""

from __future__ import annotations

from gputop.diagnosis import owners, policy
from gputop.diagnosis.causes import Claims, Finding, Judge, Rule, percent
from gputop.diagnosis.measure import waits
from gputop.diagnosis.measure.facts import Facts, JobFacts
from gputop.diagnosis.measure.feeders import programs_at_work
from gputop.diagnosis.measure.proc import ProcFacts
from gputop.diagnosis.model import Evidence, Fix
from gputop.diagnosis.shell import kill, word

NAMED = 4  # workers that stand alike; of more it is said how many
STOPPED = 0.3  # of the window that a worker is stopped, or ended, from which that is what it does
TRACED = "t"  # state in /proc/PID/stat of who is stopped by a debugger: SIGCONT does not wake it
_STILL = ("data.lock", "data.network", "data.pipe", "data.timer", "data.poll", "data.unknown", "data.disk", "data.child", "data.driver")
_MAIN = ("main.lock", "main.pipe", "main.poll", "main.network", "main.unknown")  # what a trainer may wait in for who never answers
_AT_WORK = ("data.running", "data.runnable", "data.ahead")  # what the others may still do where one of them was killed
_POOLS = ("data.stopped", *_AT_WORK, *_MAIN, *_STILL)
_WAS_KILLED = "dmesg | grep -i 'killed process'"


def _claim(job: JobFacts, facts: Facts) -> Claims:
    claims, rests = {"data.stopped": 1.0}, _rest_for(job, policy.RESTS_S)
    if job.unheard and rests:
        claims |= {"main.pipe": 1.0, "main.network": 1.0, "data.ahead": 1.0}
    if killed(job):
        claims |= dict.fromkeys((*_STILL, *_AT_WORK, *_MAIN), 1.0)
    elif job.mute or (job.stopped and (rests or not (job.workers or programs_at_work(job, facts)))):
        claims |= dict.fromkeys((*_STILL, *_MAIN), 1.0)
    elif rests and _hung(job):
        claims |= dict.fromkeys(_STILL, 1.0)
    if rests and (_nobody_moves(job) or replacing(job)):
        asked = 0.0 if programs_at_work(job, facts) else 1.0
        claims |= {"main.lock": 1.0, "main.pipe": asked, "main.poll": asked, "data.ahead": 1.0}
    return claims


def _rest_for(job: JobFacts, seconds: float) -> bool:
    """Whether all its GPUs have done nothing for so long."""
    return all(gpu.idle_s >= seconds for gpu in job.gpus)


def _has_rested(job: JobFacts) -> bool:
    return bool(job.gpus) and _rest_for(job, policy.NAPPED_S)


def all_others_are_ahead(job: JobFacts) -> bool:
    """Whether the trainer mostly waits for data though who is not stuck has nothing to do: of any loader it waits for who is."""
    others = [worker for worker in job.workers if not (_is_stuck(worker, policy.LONG_STUCK_S) or _asks_for_ever(worker, job))]
    ahead = all(worker.ahead >= policy.NEARLY_ALL for worker in others)
    return bool(others) and len(others) < len(job.workers) and ahead and job.data >= policy.HALF


def all_are_dead(job: JobFacts) -> bool:
    """Whether all workers are, and who started them has not asked for their ends, for it still waits for them."""
    dead = all(worker.newer.state in waits.ENDED_STATES for worker in job.workers)
    return bool(job.workers) and dead and job.trainer.still_s >= policy.STUCK_S


def killed(job: JobFacts) -> list[ProcFacts]:
    """Workers that ended by a signal or an error, which their trainer has not been told: it still waits for what they were to deliver."""
    waits_on = (job.data, job.trainer.kinds.get(waits.PIPE, 0.0), job.trainer.kinds.get(waits.LOCK, 0.0))
    if not _has_rested(job) or max(waits_on) < policy.NEARLY_ALL:
        return []
    return [worker for worker in job.workers if worker.newer.state in waits.ENDED_STATES and worker.newer.exit_code]


def replacing(job: JobFacts) -> list[ProcFacts]:
    """Of a pool that does not stir, nor who waits for it at a lock, those that are younger than the others: what those took along whom they
    replace never comes."""
    trainer = job.trainer
    if job.is_torchs or not job.workers or trainer.kinds.get(waits.LOCK, 0.0) < policy.NEARLY_ALL or trainer.others_run >= policy.NAPS:
        return []
    if any(proc.still_s < policy.POOL_STILL_S or proc.cores >= policy.NAPS for proc in (trainer, *job.workers)):
        return []
    born = sorted(worker.info.start_ticks for worker in job.workers)
    last_elder = born[len(born) // 2]
    late = last_elder + max(policy.LATER_TICKS, policy.APART * (last_elder - born[0]))
    return [worker for worker in job.workers if worker.info.start_ticks >= late]


def _nobody_moves(job: JobFacts) -> bool:
    """After steady work, and nobody of it waits on a queue where it would be asked again."""
    asked = any(waits.QUEUE in proc.kinds for proc in (job.trainer, *job.workers))
    return job.still_s >= policy.STUCK_S and bool(job.workers) and not asked and all(gpu.stretch_s > 0.0 for gpu in job.gpus)


def _asks_for_ever(worker: ProcFacts, job: JobFacts) -> bool:
    """Whether it merely looks now and then while all others are ahead; or all do, for so long that no transform would merely sleep: a store
    is gone, and each tries again and again."""
    others = [other for other in job.workers if other is not worker]
    alone = bool(others) and all(other.ahead >= policy.NEARLY_ALL for other in others)
    return _naps(worker) and (alone or (_has_rested(job) and all(map(_naps, job.workers)) and job.data >= policy.HALF))


def _naps(worker: ProcFacts) -> bool:
    return worker.kinds.get(waits.TIMER, 0.0) >= policy.NEARLY_ALL and worker.cores < policy.NAPS


def _is_stuck(worker: ProcFacts, least_s: float = policy.STUCK_S) -> bool:
    """Asleep for long, and not on its queue."""
    fractions = worker.state.fractions
    return worker.still_s >= least_s and fractions.get("blocked", 0.0) + fractions.get("disk", 0.0) > policy.HALF


def _hung(job: JobFacts) -> list[ProcFacts]:
    found = [one for one in job.workers if one.kinds.get(waits.STOPPED, 0.0) > STOPPED or _is_stuck(one) or _asks_for_ever(one, job)]
    return found or [worker for worker in job.workers if worker.pid in owners.left_out(job)]


def _tell(job: JobFacts, _facts: Facts) -> Finding:
    pid, hung = job.trainer.pid, _hung(job)
    if job.unheard and _rest_for(job, policy.RESTS_S):
        return _tell_of_unheard(job)
    if job.stopped and not hung:
        named, one = _programs(job.stopped), len(job.stopped) == 1
        evidence = Evidence("stopped", len(job.stopped), "programs", "that it started have been stopped by a signal")
        fix = Fix("Let it go on" if one else "Let them go on", kill(job.stopped, "CONT"))
        return Finding(f"{named}, which it started and waits for, {'is' if one else 'are'} stopped", (evidence,), (fix,), (), (pid,))
    if job.mute and not hung:
        return _tell_of_mute(job.mute, pid)
    if _nobody_moves(job) or replacing(job):
        return _tell_of_all(job)
    others = "the others cannot deliver in its place" if _rest_for(job, policy.RESTS_S) else "the others go on without it"
    others = "nobody is left to deliver" if len(hung) == len(job.workers) else others
    victims = tuple(worker.pid for worker in hung)
    return Finding(f"{_who_is_how(hung)}; {others}", tuple(map(_evidence, hung)), tuple(_fixes(hung, job.is_torchs)), (), victims)


def _programs(programs: dict[int, str]) -> str:
    return ", ".join(f"{name} ({pid})" for pid, name in programs.items())


def _tell_of_mute(mute: dict[int, str], pid: int) -> Finding:
    has, its, stands = ("has", "its", "stands") if len(mute) == 1 else ("have", "their", "stand")
    detail = f"{_programs(mute)}, which it started, {has} filled the pipe to which {its} errors go, and {stands}: nobody reads it"
    evidence = Evidence("mute", len(mute), "programs", "that it started wait until somebody reads their errors")
    read = Fix("Read it, and let it go on", f"cat /proc/{min(mute)}/fd/2")
    redirect = Fix("Read the errors of what it starts, or send them to a file", "subprocess.Popen(..., stderr=open('errors.log', 'ab'))")
    return Finding(detail, (evidence,), (read, redirect), (), (pid,))


def _tell_of_unheard(job: JobFacts) -> Finding:
    pid, fd, still_s = job.trainer.pid, job.trainer.newer.syscall_arg, job.trainer.still_s
    detail = f"{job.trainer.role.label} ({pid}) has not moved for {still_s:.1f} s: nobody takes what it writes to standard "
    evidence = Evidence("still_s", round(still_s, 1), "s", "it has neither run nor switched, in a write")
    fixes = (
        Fix("See where that goes, and let it go on: a pager, a terminal stopped by Ctrl-S", f"ls -l /proc/{pid}/fd/{fd}"),
        Fix("Or read it yourself, if it is a pipe", f"cat /proc/{pid}/fd/{fd}"),
        Fix("Write to a file the next time", f"{word(job.trainer.role.label.partition(' rank')[0])} > train.log 2>&1"),
    )
    return Finding(f"{detail}{'output' if fd == 1 else 'error'}", (evidence,), fixes, (), (pid,))


def _tell_of_all(job: JobFacts) -> Finding:
    still_s, younger = job.trainer.still_s, replacing(job)
    lost, unlike = " a worker has died lately, and" if job.births else "", _unlike(job)
    if younger and not job.births:
        one = len(younger) == 1
        lost = f" {_listed(younger)} {'is' if one else 'are'} there for {'one' if one else 'others'} that died, and"
        unlike = ""
    evidence = Evidence("still_s", round(still_s, 1), "s", "the trainer and all of its workers have neither run nor switched")
    dead = [worker for worker in job.workers if _how(worker) == "dead"]
    look = Fix("See where they stand", f"gputop stacks {' '.join(str(proc.pid) for proc in (job.trainer, *job.workers))}")
    fixes = (look, *(_fixes(dead, job.is_torchs) or [Fix("Was a worker killed?", _WAS_KILLED)]))
    detail = f"trainer and workers have not moved for {still_s:.1f} s:{lost} the batch that it waits for will not come{unlike}"
    return Finding(detail, (evidence,), fixes, (), tuple(worker.pid for worker in job.workers))


def _how(worker: ProcFacts) -> str:
    if worker.kinds.get(waits.STOPPED, 0.0) > STOPPED:
        if worker.newer.state in waits.ENDED_STATES or not worker.info.cmdline:
            return "dead"
        return "held by a debugger" if worker.newer.state == TRACED else "stopped"
    kind = max(worker.kinds, key=worker.kinds.__getitem__, default=waits.UNKNOWN)
    words = {
        "lock": "waiting for a lock", "network": "waiting for the network", "unknown": "asleep",
        "timer": "asking again and again for something that does not come",
    }  # fmt: skip
    return words.get(kind, f"waiting ({kind})")


def _unlike(job: JobFacts) -> str:
    """Who waits for something else than most of the workers do."""
    by_kind: dict[str, list[ProcFacts]] = {}
    for worker in job.workers:
        by_kind.setdefault(max(worker.kinds, key=worker.kinds.__getitem__, default=waits.UNKNOWN), []).append(worker)
    odd = min(by_kind.values(), key=len)
    return f"; {_who_is_how(odd)}, unlike the others" if 2 * len(odd) < len(job.workers) else ""


def _who_is_how(workers: list[ProcFacts]) -> str:
    alike: dict[str, list[ProcFacts]] = {}
    for worker in workers:
        alike.setdefault(_how(worker), []).append(worker)
    return ", ".join(f"{_listed(some)} {'is' if len(some) == 1 else 'are'} {how}" for how, some in alike.items())


def _listed(workers: list[ProcFacts]) -> str:
    names, more = [f"{worker.role.label} ({worker.pid})" for worker in workers], len(workers) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _evidence(worker: ProcFacts) -> Evidence:
    asks, label = worker.kinds.get(waits.TIMER, 0.0), worker.role.label
    if worker.still_s < policy.STUCK_S and asks >= policy.NEARLY_ALL:
        return percent("timer_pct", asks, f"of its time {label} slept between one look and the next")
    return Evidence("still_s", round(worker.still_s, 1), "s", f"{label} has neither run nor switched")


def _fixes(hung: list[ProcFacts], torchs: bool) -> list[Fix]:
    fixes, waiting = [], []
    for worker in hung:
        how, label = _how(worker), worker.role.label
        if how == "stopped":
            fixes.append(Fix(f"Let {label} go on", kill([worker.pid], "CONT")))
        elif how == "held by a debugger":
            fixes.append(Fix("Find the debugger, and have it go on or detach", f"grep TracerPid /proc/{worker.pid}/status"))
        elif how == "dead":
            fixes.append(Fix(f"{label} has died (killed, or out of memory?): the training must be restarted", _WAS_KILLED))
        else:
            waiting.append(worker)
    if waiting:
        names, pids = ", ".join(worker.role.label for worker in waiting), " ".join(str(worker.pid) for worker in waiting)
        fixes.append(Fix(f"See where {names} {'stands' if len(waiting) == 1 else 'stand'}", f"gputop stacks {pids}"))
        ends = "DataLoader(..., timeout=60)" if torchs else ""
        fixes.append(Fix("Have the next one end the training with an error, rather than wait for ever", ends))
    return fixes


def _felt(job: JobFacts) -> str:
    return "wait-heavy" if job.unheard else "input-bound"


JUDGE = Judge(
    "hung-worker", "input-bound", _tell, rows=(("nobody", "worker"),), rule=Rule(10, _POOLS, _claim),
    explains_hangs=True, needs="/proc/PID/stat; status for the switches", felt=_felt,
)  # fmt: skip
