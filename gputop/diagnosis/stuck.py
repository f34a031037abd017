"""Who does not answer: workers and programs that are stopped, dead, or do not move, while their trainer waits. Pure."""

from __future__ import annotations

from gputop.diagnosis.measure import waits
from gputop.diagnosis.measure.facts import JobFacts
from gputop.diagnosis.measure.proc import ProcFacts
from gputop.findings import policy


def is_unanswered(job: JobFacts) -> bool:
    """Whether all that the job waits for is somebody who does not answer."""
    if job.mute or (job.stopped and not job.workers) or (held(job) and gpus_rest(job, policy.BREAK_NS / 1e9)):
        return True
    return gpus_rest(job, policy.STUCK_S) and (bool(job.stopped) or job.unheard or nobody_moves(job) or bool(hung(job)))


def gpus_rest(job: JobFacts, seconds: float) -> bool:
    """Whether all its GPUs have done nothing for so long."""
    return all(gpu.idle_s >= seconds for gpu in job.gpus)


def held(job: JobFacts) -> list[ProcFacts]:
    """Workers that are stopped now, or ended by a signal or an error: no batch comes of these."""
    return [one for one in job.workers if one.newer.state in waits.STOPPED_STATES or _has_failed(one)]


def _has_failed(worker: ProcFacts) -> bool:
    return worker.newer.state in waits.ENDED_STATES and bool(worker.newer.exit_code)


def killed(job: JobFacts) -> bool:
    """Whether a worker ended by a signal or an error, which its trainer has not been told: it still waits for what that was to deliver."""
    waits_on = (job.data, job.trainer.kinds.get(waits.PIPE, 0.0), job.trainer.kinds.get(waits.LOCK, 0.0))
    return _have_rested(job) and max(waits_on) >= policy.NEARLY_ALL and any(map(_has_failed, job.workers))


def all_others_are_ahead(job: JobFacts) -> bool:
    """Whether the trainer mostly waits for data though who is not stuck has nothing to do: of any loader it waits for who is."""
    others = [worker for worker in job.workers if not _is_stuck(worker, policy.LONG_STUCK_S)]
    ahead = all(worker.ahead >= policy.NEARLY_ALL for worker in others)
    return bool(others) and len(others) < len(job.workers) and ahead and job.data >= policy.HALF


def all_are_dead(job: JobFacts) -> bool:
    """Whether all workers are, and who started them has not asked for their ends, for it still waits for them."""
    dead = all(worker.newer.state in waits.ENDED_STATES for worker in job.workers)
    return bool(job.workers) and dead and job.trainer.still_s >= policy.STUCK_S


def nobody_moves(job: JobFacts) -> bool:
    """After steady work, and nobody of it waits on a queue where it would be asked again."""
    asked = any(waits.QUEUE in proc.kinds for proc in (job.trainer, *job.workers))
    return job.still_s >= policy.STUCK_S and bool(job.workers) and not asked and all(gpu.stretch_s > 0.0 for gpu in job.gpus)


def hung(job: JobFacts) -> list[ProcFacts]:
    """Workers that are stopped, dead, stuck, or ask for ever."""
    return [one for one in job.workers if is_stopped(one) or _is_stuck(one) or _asks_for_ever(one, job)] or held(job)


def is_stopped(worker: ProcFacts) -> bool:
    """Whether it was stopped, or dead, for so much of the window that this is what it does."""
    return worker.kinds.get(waits.STOPPED, 0.0) > policy.SOME


def _have_rested(job: JobFacts) -> bool:
    return bool(job.gpus) and gpus_rest(job, policy.NAPPED_S)


def _asks_for_ever(worker: ProcFacts, job: JobFacts) -> bool:
    """Whether it merely looks now and then while all others are ahead; or all do, for so long that no transform would merely sleep: a store
    is gone, and each tries again and again."""
    others = [other for other in job.workers if other is not worker]
    alone = bool(others) and all(other.ahead >= policy.NEARLY_ALL for other in others)
    return _naps(worker) and (alone or (_have_rested(job) and all(map(_naps, job.workers)) and job.data >= policy.HALF))


def _naps(worker: ProcFacts) -> bool:
    return worker.kinds.get(waits.TIMER, 0.0) >= policy.NEARLY_ALL and worker.cores < policy.HARDLY


def _is_stuck(worker: ProcFacts, least_s: float = policy.STUCK_S) -> bool:
    """Asleep for long, and not on its queue."""
    fractions = worker.state.fractions
    return worker.still_s >= least_s and fractions.get("blocked", 0.0) + fractions.get("disk", 0.0) > policy.HALF
