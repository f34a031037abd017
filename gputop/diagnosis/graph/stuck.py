"""Workers and programs that do not answer (stopped, dead, or still) while their trainer waits. Pure."""

from __future__ import annotations

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.graph.job import WalkedJob
from gputop.findings import policy


def is_unanswered(job: WalkedJob) -> bool:
    """True if the job waits only for a worker or program that does not answer."""
    if job.programs.mute or (job.programs.stopped and not job.workers) or (held(job) and gpus_rest(job, policy.BREAK_NS / 1e9)):
        return True
    return gpus_rest(job, policy.STUCK_S) and (bool(job.programs.stopped) or job.output.unheard or is_still(job) or bool(hung(job)))


def gpus_rest(job: WalkedJob, seconds: float) -> bool:
    """True if all of the job's GPUs have been idle for so many seconds."""
    return all(gpu.idle_s >= seconds for gpu in job.gpus)


def held(job: WalkedJob) -> list[ProcFacts]:
    """Workers that are stopped now, or ended by a signal or an error: they deliver no batch."""
    return [one for one in job.workers if one.newer.state in waits.STOPPED_STATES or _has_failed(one)]


def _has_failed(worker: ProcFacts) -> bool:
    return worker.newer.state in waits.ENDED_STATES and bool(worker.newer.exit_code)


def killed(job: WalkedJob) -> bool:
    """True if a worker ended by a signal or an error and its trainer does not know: it still waits for that worker's batch."""
    waits_on = (job.data, job.trainer.kinds.get(waits.PIPE, 0.0), job.trainer.kinds.get(waits.LOCK, 0.0))
    return _have_rested(job) and max(waits_on) >= policy.NEARLY_ALL and any(map(_has_failed, job.workers))


def all_others_are_ahead(job: WalkedJob) -> bool:
    """True if the trainer mostly waits for data though every worker that is not stuck has nothing to do: it waits for a stuck one."""
    others = [worker for worker in job.workers if not _is_stuck(worker, policy.LONG_STUCK_S)]
    ahead = all(worker.ahead >= policy.NEARLY_ALL for worker in others)
    return bool(others) and len(others) < len(job.workers) and ahead and job.data >= policy.HALF


def all_are_dead(job: WalkedJob) -> bool:
    """True if all workers have ended and were not reaped, for the trainer still waits for them."""
    dead = all(worker.newer.state in waits.ENDED_STATES for worker in job.workers)
    return bool(job.workers) and dead and job.trainer.still_s >= policy.STUCK_S


def is_still(job: WalkedJob) -> bool:
    """True if trainer and workers stand still after steady work, and none waits on a queue with a time limit."""
    asked = any(waits.QUEUE in proc.kinds for proc in (job.trainer, *job.workers))
    return job.life.still_s >= policy.STUCK_S and bool(job.workers) and not asked and all(gpu.stretch_s > 0.0 for gpu in job.gpus)


def hung(job: WalkedJob) -> list[ProcFacts]:
    """Workers that are stopped, dead, stuck, or retry for ever."""
    return [one for one in job.workers if is_stopped(one) or _is_stuck(one) or _asks_for_ever(one, job)] or held(job)


def is_stopped(worker: ProcFacts) -> bool:
    """True if the worker was stopped, or dead, for more than `policy.SOME` of the window."""
    return worker.kinds.get(waits.STOPPED, 0.0) > policy.SOME


def _have_rested(job: WalkedJob) -> bool:
    return bool(job.gpus) and gpus_rest(job, policy.NAPPED_S)


def _asks_for_ever(worker: ProcFacts, job: WalkedJob) -> bool:
    """True if the worker only retries now and then while all others are ahead; or all workers do so for longer than any transform sleeps: a
    store is gone."""
    others = [other for other in job.workers if other is not worker]
    alone = bool(others) and all(other.ahead >= policy.NEARLY_ALL for other in others)
    return _naps(worker) and (alone or (_have_rested(job) and all(map(_naps, job.workers)) and job.data >= policy.HALF))


def _naps(worker: ProcFacts) -> bool:
    return worker.kinds.get(waits.TIMER, 0.0) >= policy.NEARLY_ALL and worker.cores < policy.HARDLY


def _is_stuck(worker: ProcFacts, least_s: float = policy.STUCK_S) -> bool:
    """True if the worker has been asleep for long, and not on its queue."""
    fractions = worker.state.fractions
    return worker.still_s >= least_s and fractions.get("blocked", 0.0) + fractions.get("disk", 0.0) > policy.HALF
