"""hung-worker: a worker is stopped, dead, or does not move while its trainer waits and the GPU does nothing.

Costs: its batch never comes, and a loader that keeps the order of batches waits for ever.
Seen: row nobody x worker: stopped or zombie in /proc, or neither run nor switched for `policy.STUCK_S` while the GPU rests
(`policy.LONG_STUCK_S` while others still feed it), or left out while others deliver (`owners.left_out`): a slow but living worker wakes up
many times in that span. All waits of the trainer are booked to it (`gputop.diagnosis.graph.stuck`) if GPUs rest for `policy.BREAK_NS` and a
worker is stopped or dead; or for longer, and a worker hangs or polls in vain, or no process of the job moves; and if a program that feeds
the trainer is stopped, or the output of it or of the trainer has no reader.
Abstains: a process moves, or is asked at a queue. If the fault is in no worker, `gputop.diagnosis.hangs` finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gputop.diagnosis.causes import Finding, Judge, advice, percent
from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.graph import stuck
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.shell import wake
from gputop.findings import policy
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import Evidence, Fix

NAMED = 4  # workers in the same state that are named; the others are counted
TRACED = "t"  # state in /proc/PID/stat of a process stopped by a debugger: SIGCONT does not wake it
_AGAIN = "stopped again and again"
_WAS_KILLED = "dmesg | grep -i 'killed process'"
_STANDS = {
    waits.LOCK: "waiting for a lock", waits.NETWORK: "waiting for the network", waits.UNKNOWN: "asleep",
    waits.TIMER: "asking again and again for something that does not come",
}  # fmt: skip


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    hung, rests = stuck.hung(job) or [one for one in job.workers if _was_stopped(one)], stuck.gpus_rest(job, policy.STUCK_S)
    if job.output.unheard and rests:
        return _tell_of_unheard(job)
    if (job.programs.stopped or job.programs.mute) and not hung:
        return _tell_of_programs(job, facts)
    if stuck.is_still(job):
        return _tell_of_all(job, facts)
    others = "the others cannot deliver in its place" if rests else "the others go on without it"
    others = "none is left to deliver" if len(hung) == len(job.workers) else others
    victims = tuple(worker.pid for worker in hung)
    return Finding(filled("{}; {}", _states_line(hung), others), tuple(map(_evidence, hung)), tuple(_fixes(hung, job, facts)), (), victims)


def _tell_of_programs(job: WalkedJob, facts: WalkedFacts) -> Finding:
    """The finding about programs of the trainer that are stopped, or blocked writing errors that no process reads."""
    named = joined(", ", (filled("{} ({})", name, pid) for pid, name in (job.programs.stopped or job.programs.mute).items()))
    one = len(job.programs.stopped or job.programs.mute) == 1
    if job.programs.stopped:
        detail = filled("{}, which it started and waits for, {} stopped", named, "is" if one else "are")
        evidence = Evidence("stopped", len(job.programs.stopped), "programs", "that it started have been stopped by a signal")
        fixes: tuple[Fix, ...] = (Fix("Let it go on" if one else "Let them go on", wake(job.programs.stopped)),)
    else:
        has, its, stands = ("has", "its", "stands") if one else ("have", "their", "stand")
        detail = filled("{}, which it started, {} filled the pipe to which {} errors go, and {}: it has no reader", named, has, its, stands)
        evidence = Evidence("mute", len(job.programs.mute), "programs", "that it started wait until their errors are read")
        redirect = "Read the errors of what it starts, or send them to a file"
        command = "subprocess.Popen(..., stderr=open('errors.log', 'ab'))" if advice.is_scripted(job, facts) else ""
        fixes = (
            Fix("Read it, and let it go on", filled("cat /proc/{:pid}/fd/2", min(job.programs.mute))),
            Fix(redirect, command),
        )
    return Finding(detail, (evidence,), fixes, (), (job.trainer.pid,))


def _tell_of_unheard(job: WalkedJob) -> Finding:
    pid, fd, still_s = job.trainer.pid, job.trainer.newer.syscall_arg, job.trainer.still_s
    detail = filled("{} ({}) has not moved for {:.1f} s: no reader takes its standard ", job.trainer.role.label, pid, still_s)
    evidence = Evidence("still_s", round(still_s, 1), "s", "it has neither run nor switched, in a write")
    goes = filled("ls -l /proc/{:pid}/fd/{:d}", pid, fd)
    fixes = (
        Fix("Let it go on where that goes: a pager, a terminal stopped by Ctrl-S", goes, look=True),
        Fix("Or read it yourself, if it is a pipe", filled("cat /proc/{:pid}/fd/{:d}", pid, fd)),
        Fix("Write to a file the next time", "... > output.log 2>&1"),
    )
    return Finding(filled("{}{}", detail, "output" if fd == 1 else "error"), (evidence,), fixes, (), (pid,))


def _tell_of_all(job: WalkedJob, facts: WalkedFacts) -> Finding:
    still_s = job.trainer.still_s
    odd = min(_alike(job.workers, _kind).values(), key=len)
    unlike = filled("; {}, unlike the others", _states_line(odd)) if 2 * len(odd) < len(job.workers) else ""
    lost = " a worker has died lately, and" if job.loader.births else ""
    evidence = Evidence("still_s", round(still_s, 1), "s", "the trainer and all of its workers have neither run nor switched")
    dead = [worker for worker in job.workers if _how(worker) == "dead"]
    look = Fix("See where they stand", filled("gputop stacks {:pids}", [proc.pid for proc in (job.trainer, *job.workers)]), look=True)
    killed = Fix("Was a worker killed?", _WAS_KILLED, look=True)
    fixes = (look, *(_fixes(dead, job, facts) if dead else (killed, *advice.fixes(advice.loading(job, facts).endless))))
    detail = filled("trainer and workers have not moved for {:.1f} s:{} the batch that it waits for will not come{}", still_s, lost, unlike)
    return Finding(detail, (evidence,), fixes, (), tuple(worker.pid for worker in job.workers))


def _kind(worker: ProcFacts) -> str:
    return max(worker.kinds, key=worker.kinds.__getitem__, default=waits.UNKNOWN)


def _was_stopped(worker: ProcFacts) -> bool:
    return worker.kinds.get(waits.STOPPED, 0.0) > 0.0


def _how(worker: ProcFacts) -> str:
    if not _was_stopped(worker):
        return _STANDS.get(_kind(worker), filled("waiting ({})", _kind(worker)))
    if worker.newer.state in waits.ENDED_STATES or not worker.info.cmdline:
        return "dead"
    if worker.newer.state == TRACED:
        return "held by a debugger"
    return "stopped" if worker.newer.state in waits.STOPPED_STATES else _AGAIN


def _alike(workers: list[ProcFacts], key: Callable[[ProcFacts], str]) -> dict[str, list[ProcFacts]]:
    alike: dict[str, list[ProcFacts]] = {}
    for worker in workers:
        alike.setdefault(key(worker), []).append(worker)
    return alike


def _states_line(workers: list[ProcFacts]) -> str:
    told = (filled("{} {} {}", _listed(some), "is" if len(some) == 1 else "are", how) for how, some in _alike(workers, _how).items())
    return joined(", ", told)


def _listed(workers: list[ProcFacts]) -> str:
    names, more = [filled("{} ({})", worker.role.label, worker.pid) for worker in workers], len(workers) - NAMED
    return joined(", ", names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _evidence(worker: ProcFacts) -> Evidence:
    asks, label = worker.kinds.get(waits.TIMER, 0.0), worker.role.label
    if worker.still_s < policy.STUCK_S and asks >= policy.NEARLY_ALL:
        return percent("timer_pct", asks, filled("of its time {} slept between one look and the next", label))
    return Evidence("still_s", round(worker.still_s, 1), "s", filled("{} has neither run nor switched", label))


def _fixes(hung: list[ProcFacts], job: WalkedJob, facts: WalkedFacts) -> Iterator[Fix]:
    """Fixes for all that stand alike: in the order of batches one that goes on waits for another that does not."""
    alike = _alike(hung, _how)
    stopped, traced, again, dead = (alike.pop(how, []) for how in ("stopped", "held by a debugger", _AGAIN, "dead"))
    if stopped:
        yield Fix(filled("Let {} go on", _labels(stopped)), wake(worker.pid for worker in stopped))
    for worker in traced[:1]:
        yield Fix("Find the debugger, and have it go on or detach", filled("grep TracerPid /proc/{:pid}/status", worker.pid), look=True)
    for worker in again[:1]:
        text = filled("Find who stops {}: a debugger or a profiler that attaches, a limiter of CPU time", _labels(again))
        yield Fix(text, filled("grep TracerPid /proc/{:pid}/status", worker.pid), look=True)
    if dead:
        has = "has" if len(dead) == 1 else "have"
        yield Fix(filled("{} {} died (killed, or out of memory?): the job must be restarted", _labels(dead), has))
        yield Fix("See whether the kernel killed it" if len(dead) == 1 else "See whether the kernel killed them", _WAS_KILLED, look=True)
    if waiting := [worker for some in alike.values() for worker in some]:
        text = filled("See where {} {}", _labels(waiting), "stands" if len(waiting) == 1 else "stand")
        yield Fix(text, filled("gputop stacks {:pids}", [worker.pid for worker in waiting]), look=True)
        yield from advice.fixes(advice.loading(job, facts).endless)


def _labels(workers: list[ProcFacts]) -> str:
    return joined(", ", (worker.role.label for worker in workers))


JUDGE = Judge(
    "hung-worker", "input-bound", _tell, rows=(("nobody", "worker"),), explains_hangs=True,
    felt=lambda job: "wait-heavy" if job.output.unheard else "input-bound",
)  # fmt: skip
