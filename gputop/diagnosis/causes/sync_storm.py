"""sync-storm: the trainer waits for the GPU after every few operations (.item(), print, nonzero), so that the two take turns.

Threshold, where probed: `SYNCS_PER_S` waits a second; or `LEAST_PER_S` of which a step (a copy to the GPU) has `PER_STEP`, or among so
many calls that most find the GPU nearly done; or `CALLS_PER_STEP` short ones behind the step's long one, that together take as long. Where
launches are counted too: `TURNS_PER_S` waits, however short, with about one kernel before each and at most `FEW_KERNELS`; but none with
`MANY_KERNELS` and more between them that take less than `IN_THEM` of the time: the GPU is done when it is asked, and the host is late by
what it launches. Where the main thread was sampled: `SPINS_PER_S` waits in which it spins, `SPINS` of the time. Else `SLEEPS_PER_S`
voluntary switches of it, of which a step with one wait makes about six, if it is `ASLEEP` meanwhile, they are `SLEEPS_PER_BATCH` and
more, and it does not write at each.
"""

from __future__ import annotations

from gputop.diagnosis import waits
from gputop.diagnosis.causes import Claims, Finding, Judge, Rule
from gputop.diagnosis.causes.h2d_transfer import copies_much
from gputop.diagnosis.facts import CallFacts, Facts, JobFacts
from gputop.diagnosis.feeders import threads_at_work
from gputop.diagnosis.model import Evidence, Fix

SYNCS_PER_S, SLEEPS_PER_S = 400.0, 350.0
LEAST_PER_S, PER_STEP = 150.0, 8.0
CALLS_PER_STEP, BEHIND_LONG = 40.0, 4.0  # of calls, and of waits: with one long one, four say that all others take its time again
TURNS_PER_S, LEAST_KERNELS, FEW_KERNELS, MANY_KERNELS, IN_THEM = 2000.0, 0.5, 8.0, 40.0, 0.05
SPINS_PER_S, SPINS = 250.0, 0.1
ASLEEP = 0.5  # of the time in which its GPU works
SLEEPS_PER_BATCH, WRITTEN_BYTES = 12.0, 1024.0
"""Voluntary switches for one of the workers, who sleep about once for each batch; and written to storage at each by who syncs files."""
_NO_GPU = (waits.QUEUE, waits.PIPE, waits.NETWORK, waits.CHILD, waits.DISK, waits.STOPPED)
_BETWEEN = ("main.sync", "main.computing", "main.timer", "main.driver", "main.poll", "main.lock", "main.unknown", "main.transfer")
_POOLS = ("main.runnable", *_BETWEEN)




def _claim(job: JobFacts, _facts: Facts) -> Claims:
    if copies_much(job) or not _takes_turns(job):
        return {}
    # Each turn ends with a wake-up, and on a busy host that one waits for a CPU: it is the turns that make it hurt.
    slept = min(_calls_per_s(job.calls), job.trainer.sleeps_per_s or 0.0) if job.calls is not None else 0.0
    return dict.fromkeys(_BETWEEN, 1.0) | {"main.runnable": 1.0 if max(_rate(job), slept) >= SYNCS_PER_S else 0.0}


def _takes_turns(job: JobFacts) -> bool:
    rate, calls = _rate(job), job.calls
    if calls is None:
        return rate >= (SLEEPS_PER_S if _spins(job) is None else SPINS_PER_S)
    steps, called, launches = calls.to_gpu_per_s, _calls_per_s(calls), job.launches_per_s
    if launches and launches >= MANY_KERNELS * called and calls.sync < IN_THEM:
        return False
    if launches and called >= TURNS_PER_S and LEAST_KERNELS * called <= launches <= FEW_KERNELS * called:
        return True
    if called >= max(SYNCS_PER_S, CALLS_PER_STEP * steps) and rate >= BEHIND_LONG * steps > 0.0:
        return True
    many = called >= SYNCS_PER_S or rate >= PER_STEP * steps > 0.0
    return rate >= SYNCS_PER_S or (rate >= LEAST_PER_S and many)


def _rate(job: JobFacts) -> float:
    """Waits for the GPU per second; short of the probe, sleeps of a main thread that has no other reason to sleep so often."""
    if job.calls is not None:
        return job.calls.waits_per_s
    if (spins_per_s := _spins(job)) is not None:
        return spins_per_s
    worked = job.idle is not None and job.idle < 0.9
    other = _waits_for_threads(job) or _has_short_steps(job) or _writes_at_each(job)
    return (job.trainer.sleeps_per_s or 0.0) if worked and _sleeps_while_it_works(job) and not other else 0.0


def _spins(job: JobFacts) -> float | None:
    """Waits per second of one that spins in them for a part of its time, where it was sampled."""
    return job.sampled.waits_per_s if job.sampled is not None and job.sampled.sync >= SPINS else None


def _has_short_steps(job: JobFacts) -> bool:
    """A hundred steps a second are as many sleeps as a storm in slow ones."""
    batches_per_s = sum(worker.sleeps_per_s or 0.0 for worker in job.workers)
    return (job.trainer.sleeps_per_s or 0.0) < SLEEPS_PER_BATCH * batches_per_s


def _writes_at_each(job: JobFacts) -> bool:
    return (job.trainer.write_bytes_per_s or 0.0) >= WRITTEN_BYTES * (job.trainer.sleeps_per_s or 0.0) > 0.0


def _sleeps_while_it_works(job: JobFacts) -> bool:
    """Who waits after every few operations sleeps for as long as its GPU works; short sleeps may hand over batches, too."""
    asleep = sum(share for kind, share in job.trainer.kinds.items() if kind not in _NO_GPU)
    return asleep >= ASLEEP * (1.0 - (job.idle or 0.0))


def _waits_for_threads(job: JobFacts) -> bool:
    """Half of its sleep and more is on locks, while threads of its own work: these are its reason to sleep so often."""
    kinds = job.trainer.kinds
    return threads_at_work(job) and 2 * kinds.get("lock", 0.0) >= sum(kinds.values())


def _calls_per_s(calls: CallFacts) -> float:
    """Of the most frequent call that waits: `.item()` makes two, a copy and a synchronize."""
    return min(calls.sync_per_s, max(calls.rates, default=0.0))


def _tell(job: JobFacts, _facts: Facts) -> Finding:
    calls, spins = job.calls, job.sampled if _spins(job) is not None else None
    rate = _rate(job) if calls is None else _calls_per_s(calls)
    detail = f"{_how_often(job, rate)}: GPU and host take turns instead of overlapping"
    inside = calls or spins
    made = f"synchronizing calls{'' if calls is None else calls.counted_in}"
    evidence = (
        Evidence("syncs_per_s", None if calls is None else round(rate, 1), "/s", made),
        Evidence("sync_pct", None if inside is None else round(100 * inside.sync, 1), "%", "of the trainer's time inside them"),
        Evidence("launches_per_s", None if calls is None else job.launches_per_s, "/s", "kernels launched, counted now and then"),
        Evidence("sleeps_per_s", round(job.trainer.sleeps_per_s or 0.0, 1), "/s", "voluntary switches of the main thread"),
    )
    find = "Find the call that waits: .item(), .cpu(), print(tensor), nonzero(), a boolean mask, torch.cuda.synchronize()"
    fixes = (
        Fix(find, f"gputop stacks {job.trainer.pid} --duration 10"),
        Fix("Let torch name each one", 'torch.cuda.set_sync_debug_mode("warn")'),
        Fix("Keep the loss on the GPU and read it every hundred steps"),
    )
    return Finding(detail, evidence, fixes, (), (job.trainer.pid,))


def _how_often(job: JobFacts, rate: float) -> str:
    if job.calls is not None:
        return f"{rate:,.0f} synchronizing calls per second"
    if job.sampled is not None and _spins(job) is not None:
        return f"{job.sampled.seen_per_s:,.0f} waits per second and more, in which its main thread spins"
    return f"{rate:,.0f} sleeps of the main thread, as many as synchronizing calls make, per second"


JUDGE = Judge(
    "sync-storm", "wait-heavy", _tell, rule=Rule(48, _POOLS, _claim), needs="CUDA uprobes, or the main thread's voluntary switches",
)  # fmt: skip
