"""hung-worker: a worker is stopped, dead, or does not move while its trainer waits and the GPU does nothing.

Threshold: stopped or zombie in /proc; or neither run nor switched for `STUCK_S`, with the GPU idle for `IDLE_S`: a slow but living
worker wakes up many times in that span. Or for `LONG_STUCK_S` with a GPU that other workers still feed. One that merely asks now and
then whether something is there yet (`ASKS`) hangs too where all the others are ahead, or all do so for `NAPPED_S`; and one of a home-made
loader that sleeps at a lock for `states.LEFT_OUT_S` while these deliver. In a trainer that seems to start all of a pool hang of which some
were born later than the others (`LATER_TICKS`). And where nobody of the job moves, the trainer included, a worker that died took along
what it was to deliver; as did one that was killed, whatever the others do, where the GPU has rested for `NAPPED_S`. A stopped program that
feeds the trainer is as bad as a stopped worker, as is one that cannot write its errors, and a trainer that cannot write its log. Where it
is not known whose fault it is that nothing moves, `gputop.diagnosis.hangs` says so.
"""

from __future__ import annotations

from gputop.diagnosis import waits
from gputop.diagnosis.causes import Claims, Finding, Judge, Rule
from gputop.diagnosis.facts import Facts, JobFacts
from gputop.diagnosis.feeders import programs_at_work
from gputop.diagnosis.model import Evidence, Fix
from gputop.diagnosis.policy import left_out
from gputop.diagnosis.proc import ProcFacts
from gputop.diagnosis.shell import kill, word

STUCK_S, LONG_STUCK_S, IDLE_S = 2.0, 3.0, 1.5
NAPPED_S = 4.0  # so long no batch has come of workers that all sleep by a timer, and look
HELD_S = 5.0  # so long a pool has not stirred of which some were born late
LATER_TICKS, APART = 25, 5
"""A pool's processes are born together. Who comes so much later (a quarter of a second: USER_HZ is 100 wherever there is a driver), and so
many times as long after them as these took, replaces one that has died."""
NAMED = 4  # workers that stand alike; of more it is said how many
ASKS, AHEAD = 0.02, 0.9  # share of the window on a CPU of who sleeps by a timer and looks; and of the others' without any work
WAITED = 0.5  # share of the window that a trainer waits for data where none of those who could deliver has anything to do
TRACED = "t"  # state in /proc/PID/stat of who is stopped by a debugger: SIGCONT does not wake it
_STILL = ("data.lock", "data.network", "data.pipe", "data.timer", "data.poll", "data.unknown", "data.disk", "data.child", "data.driver")
_MAIN = ("main.lock", "main.pipe", "main.poll", "main.network", "main.unknown")  # what a trainer may wait in for who never answers
_AT_WORK = ("data.running", "data.runnable", "data.ahead")  # what the others may still do where one of them was killed
_TIMED = "main.timer"  # the same of one that goes on without him after a while


def _claim(job: JobFacts, facts: Facts) -> Claims:
    claims = {"data.stopped": 1.0}
    idle = _gpu_rests(job)
    if job.unheard and idle:
        claims |= {"main.pipe": 1.0, "main.network": 1.0, "data.ahead": 1.0}
    if killed(job):
        claims |= dict.fromkeys((*_STILL, *_AT_WORK, *_MAIN), 1.0)
    elif job.mute or (job.stopped and (idle or not (job.workers or programs_at_work(job, facts)))):
        claims |= dict.fromkeys((*_STILL, *_MAIN), 1.0)
    elif idle and _hung(job):
        claims |= dict.fromkeys(_STILL, 1.0)
    elif job.is_torchs or all_others_are_ahead(job):
        claims |= dict.fromkeys(_STILL, _stuck_part(job))
    elif left_out(job):
        claims |= dict.fromkeys((*_STILL, *_MAIN, _TIMED), 1.0)
    if idle and (_nobody_moves(job) or replacing(job)):
        asked = 0.0 if programs_at_work(job, facts) else 1.0
        claims |= {"main.lock": 1.0, "main.pipe": asked, "main.poll": asked, "data.ahead": 1.0}
    return claims


def _gpu_rests(job: JobFacts) -> bool:
    return not job.gpus or all(gpu.idle_s >= IDLE_S for gpu in job.gpus)


def _has_rested(job: JobFacts) -> bool:
    """Its GPUs have done nothing for long; False where it has none."""
    return bool(job.gpus) and all(gpu.idle_s >= NAPPED_S for gpu in job.gpus)


def _stuck_part(job: JobFacts) -> float:
    """Of the workers that owe a batch, how many are stuck while others go on delivering (a loader that keeps no order)."""
    owing = [worker for worker in job.workers if worker.ahead < AHEAD]
    return sum(stuck(worker, LONG_STUCK_S) for worker in owing) / len(owing) if owing else 0.0


def all_others_are_ahead(job: JobFacts) -> bool:
    """The trainer mostly waits for data, though who is not stuck has nothing to do: of a home-made loader, too, it waits for who is."""
    others = [worker for worker in job.workers if not (stuck(worker, LONG_STUCK_S) or _asks_for_ever(worker, job))]
    ahead = all(worker.ahead >= AHEAD for worker in others)
    return bool(others) and len(others) < len(job.workers) and ahead and job.data >= WAITED


def all_are_dead(job: JobFacts) -> bool:
    """And who started them has not asked for their ends, for he still waits for them."""
    dead = all(worker.newer.state in waits.ENDED_STATES for worker in job.workers)
    return bool(job.workers) and dead and job.trainer.still_s >= STUCK_S


def killed(job: JobFacts) -> list[ProcFacts]:
    """Workers that ended by a signal or an error, which their trainer has not been told: it still waits for what they were to deliver."""
    waits_on = (job.data, job.trainer.kinds.get(waits.PIPE, 0.0), job.trainer.kinds.get(waits.LOCK, 0.0))
    if not _has_rested(job) or max(waits_on) < AHEAD:
        return []
    return [worker for worker in job.workers if worker.newer.state in waits.ENDED_STATES and worker.newer.exit_code]


def _nobody_moves(job: JobFacts) -> bool:
    """After steady work, and nobody of it waits on a queue where it would be asked again."""
    asked = any(waits.QUEUE in proc.kinds for proc in (job.trainer, *job.workers))
    return job.still_s >= STUCK_S and bool(job.workers) and not asked and all(gpu.stretch_s > 0.0 for gpu in job.gpus)


def replacing(job: JobFacts) -> list[ProcFacts]:
    """Of a pool that does not stir, nor who waits for it at a lock, those that are younger than the others: what those took along whom they
    replace never comes."""
    trainer = job.trainer
    if job.is_torchs or not job.workers or trainer.kinds.get(waits.LOCK, 0.0) < AHEAD or trainer.others_run >= ASKS:
        return []
    if any(proc.still_s < HELD_S or proc.cores >= ASKS for proc in (trainer, *job.workers)):
        return []
    workers = sorted(job.workers, key=_born_ticks)
    elder = workers[: len(workers) // 2 + 1]
    late = _born_ticks(elder[-1]) + max(LATER_TICKS, APART * (_born_ticks(elder[-1]) - _born_ticks(elder[0])))
    return [worker for worker in workers if _born_ticks(worker) >= late]


def _born_ticks(worker: ProcFacts) -> int:
    return worker.info.start_ticks


def _asks_for_ever(worker: ProcFacts, job: JobFacts) -> bool:
    return _naps(worker) and (_all_are_ahead_but(worker, job) or _all_ask_for_ever(job))


def _all_are_ahead_but(worker: ProcFacts, job: JobFacts) -> bool:
    return len(job.workers) > 1 and all(other.ahead >= AHEAD for other in job.workers if other is not worker)


def _all_ask_for_ever(job: JobFacts) -> bool:
    """And have asked for so long that no transform would merely sleep: a store is gone, and each tries again and again."""
    return _has_rested(job) and bool(job.workers) and all(map(_naps, job.workers)) and job.data >= WAITED


def _naps(worker: ProcFacts) -> bool:
    return worker.kinds.get(waits.TIMER, 0.0) >= AHEAD and worker.cores < ASKS


def stuck(worker: ProcFacts, least_s: float = STUCK_S) -> bool:
    """Asleep for long, and not on its queue."""
    fractions = worker.state.fractions
    return worker.still_s >= least_s and fractions.get("blocked", 0.0) + fractions.get("disk", 0.0) > 0.5


def _hung(job: JobFacts) -> list[ProcFacts]:
    found = (one for one in job.workers if one.kinds.get(waits.STOPPED, 0.0) > 0.3 or stuck(one) or _asks_for_ever(one, job))
    return list(found) or [worker for worker in job.workers if worker.pid in left_out(job)]


def _how(worker: ProcFacts) -> str:
    if worker.kinds.get(waits.STOPPED, 0.0) > 0.3:
        if worker.newer.state in waits.ENDED_STATES or not worker.info.cmdline:
            return "dead"
        return "held by a debugger" if worker.newer.state == TRACED else "stopped"
    kind = max(worker.kinds, key=worker.kinds.__getitem__, default=waits.UNKNOWN)
    words = {
        "lock": "waiting for a lock", "network": "waiting for the network", "unknown": "asleep",
        "timer": "asking again and again for something that does not come",
    }  # fmt: skip
    return words.get(kind, f"waiting ({kind})")


def _tell(job: JobFacts, _facts: Facts) -> Finding:
    if job.unheard and _gpu_rests(job):
        return _tell_of_unheard(job)
    if (job.stopped or job.mute) and not _hung(job):
        return _tell_of_stopped(job.stopped, job.trainer.pid) if job.stopped else _tell_of_mute(job.mute, job.trainer.pid)
    return _tell_of_all(job) if _nobody_moves(job) or replacing(job) else _tell_of(job)


def _tell_of_all(job: JobFacts) -> Finding:
    still_s, pids = job.trainer.still_s, " ".join(str(proc.pid) for proc in (job.trainer, *job.workers))
    lost, unlike = " a worker has died lately, and" if job.births else "", _unlike(job)
    if not lost and (younger := replacing(job)):
        names, one = ", ".join(f"{worker.role.label} ({worker.pid})" for worker in younger), len(younger) == 1
        lost, unlike = f" {names} {'is' if one else 'are'} there for {'one' if one else 'others'} that died, and", ""
    detail = f"trainer and workers have not moved for {still_s:.1f} s:{lost} the batch that it waits for will not come{unlike}"
    evidence = Evidence("still_s", round(still_s, 1), "s", "the trainer and all of its workers have neither run nor switched")
    dead = [worker for worker in job.workers if _how(worker) == "dead"]
    killed = _fixes(dead, job.is_torchs) or [Fix("Was a worker killed?", "dmesg | grep -i 'killed process'")]
    fixes = (Fix("See where they stand", f"gputop stacks {pids}"), *killed)
    return Finding(detail, (evidence,), fixes, (), tuple(worker.pid for worker in job.workers))


def _tell_of_stopped(stopped: dict[int, str], trainer_pid: int) -> Finding:
    names = ", ".join(f"{name} ({pid})" for pid, name in stopped.items())
    detail = f"{names}, which it started and waits for, {'is' if len(stopped) == 1 else 'are'} stopped"
    evidence = Evidence("stopped", len(stopped), "programs", "that it started have been stopped by a signal")
    fix = Fix("Let them go on" if len(stopped) > 1 else "Let it go on", kill(stopped, "CONT"))
    return Finding(detail, (evidence,), (fix,), (), (trainer_pid,))


def _tell_of_mute(mute: dict[int, str], trainer_pid: int) -> Finding:
    names, one = ", ".join(f"{name} ({pid})" for pid, name in mute.items()), len(mute) == 1
    detail = f"{names}, which it started, {'has' if one else 'have'} filled the pipe to which {'its' if one else 'their'} errors go, "
    detail += f"and {'stands' if one else 'stand'}: nobody reads it"
    evidence = Evidence("mute", len(mute), "programs", "that it started wait until somebody reads their errors")
    read = Fix("Read it, and let it go on", f"cat /proc/{min(mute)}/fd/2")
    redirect = Fix("Read the errors of what it starts, or send them to a file", "subprocess.Popen(..., stderr=open('errors.log', 'ab'))")
    return Finding(detail, (evidence,), (read, redirect), (), (trainer_pid,))


def _tell_of_unheard(job: JobFacts) -> Finding:
    pid, fd = job.trainer.pid, job.trainer.newer.syscall_arg
    name = "standard output" if fd == 1 else "standard error"
    detail = f"{job.trainer.role.label} ({pid}) has not moved for {job.trainer.still_s:.1f} s: nobody takes what it writes to {name}"
    evidence = Evidence("still_s", round(job.trainer.still_s, 1), "s", "it has neither run nor switched, in a write")
    fixes = (
        Fix("See where that goes, and let it go on: a pager, a terminal stopped by Ctrl-S", f"ls -l /proc/{pid}/fd/{fd}"),
        Fix("Or read it yourself, if it is a pipe", f"cat /proc/{pid}/fd/{fd}"),
        Fix("Write to a file the next time", f"{word(job.trainer.role.label.partition(' rank')[0])} > train.log 2>&1"),
    )
    return Finding(detail, (evidence,), fixes, (), (pid,))


def _felt(job: JobFacts) -> str:
    return "wait-heavy" if job.unheard else "input-bound"


def _unlike(job: JobFacts) -> str:
    """Who waits for something else than most of the workers do."""
    by_kind: dict[str, list[ProcFacts]] = {}
    for worker in job.workers:
        by_kind.setdefault(max(worker.kinds, key=worker.kinds.__getitem__, default=waits.UNKNOWN), []).append(worker)
    odd = min(by_kind.values(), key=len)
    if 2 * len(odd) >= len(job.workers):
        return ""
    return f"; {_who_is_how(odd)}, unlike the others"


def _who_is_how(workers: list[ProcFacts]) -> str:
    alike: dict[str, list[str]] = {}
    for worker in workers:
        alike.setdefault(_how(worker), []).append(f"{worker.role.label} ({worker.pid})")
    return ", ".join(f"{_listed(names)} {'is' if len(names) == 1 else 'are'} {how}" for how, names in alike.items())


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _tell_of(job: JobFacts) -> Finding:
    hung = _hung(job)
    evidence = tuple(_evidence(worker) for worker in hung)
    others = "the others cannot deliver in its place" if _gpu_rests(job) else "the others go on without it"
    if len(hung) == len(job.workers):
        others = "nobody is left to deliver"
    fixes = tuple(_fixes(hung, job.is_torchs))
    return Finding(f"{_who_is_how(hung)}; {others}", evidence, fixes, (), tuple(worker.pid for worker in hung))


def _evidence(worker: ProcFacts) -> Evidence:
    asks = worker.kinds.get(waits.TIMER, 0.0)
    if worker.still_s < STUCK_S and asks >= AHEAD:
        return Evidence("timer_pct", round(100 * asks, 1), "%", f"of its time {worker.role.label} slept between one look and the next")
    return Evidence("still_s", round(worker.still_s, 1), "s", f"{worker.role.label} has neither run nor switched")


def _fixes(hung: list[ProcFacts], torchs: bool) -> list[Fix]:
    fixes, waiting = [], []
    for worker in hung:
        how = _how(worker)
        if how == "stopped":
            fixes.append(Fix(f"Let {worker.role.label} go on", kill([worker.pid], "CONT")))
        elif how == "held by a debugger":
            fixes.append(Fix("Find the debugger, and have it go on or detach", f"grep TracerPid /proc/{worker.pid}/status"))
        elif how == "dead":
            text = f"{worker.role.label} has died (killed, or out of memory?): the training must be restarted"
            fixes.append(Fix(text, "dmesg | grep -i 'killed process'"))
        else:
            waiting.append(worker)
    return fixes + (_ends_of_waiting(waiting, torchs) if waiting else [])


def _ends_of_waiting(waiting: list[ProcFacts], torchs: bool) -> list[Fix]:
    names, pids = ", ".join(worker.role.label for worker in waiting), " ".join(str(worker.pid) for worker in waiting)
    look = Fix(f"See where {names} {'stands' if len(waiting) == 1 else 'stand'}", f"gputop stacks {pids}")
    ends = "DataLoader(..., timeout=60)" if torchs else ""
    return [look, Fix("Have the next one end the training with an error, rather than wait for ever", ends)]


_POOLS = ("data.stopped", *_AT_WORK, *_MAIN, _TIMED, *_STILL)
JUDGE = Judge(
    "hung-worker", "input-bound", _tell, rows=(("nobody", "worker"),), rule=Rule(10, _POOLS, _claim),
    needs="/proc/PID/stat; status for the switches", felt=_felt,
)  # fmt: skip
