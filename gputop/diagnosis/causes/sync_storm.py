"""What it is (sync-storm): the trainer waits for the GPU after every few operations (.item(), print, nonzero).

Why it costs: the two take turns. While the host waits it launches nothing, and once it goes on the GPU has run dry.
How it is seen: a rule over the main thread's time. Probed (`_takes_turns`): `policy.SYNCS_PER_S` waits a second; or `policy.WAITS_PER_S`,
of which a step (a copy to the GPU) has `policy.PER_STEP`; or many short ones behind each step's long one; or with `policy.TURNS_PER_S`
about one kernel before each. Sampled: `policy.SPINS_PER_S` waits in which it spins, `policy.SPINS` of the window. Else
`policy.SLEEPS_PER_S` voluntary switches while the GPU works (a step with one wait makes about six) and `policy.SLEEPS_PER_BATCH` for each
of the workers'.
When it abstains: many kernels run between two waits that take next to no time, for then the host is late by what it launches; links are
busy (h2d-transfer); its own threads, short steps, or writes are why it sleeps so often.
"""

from __future__ import annotations

from gputop.diagnosis import policy
from gputop.diagnosis.causes import Claims, Finding, Judge, Rule, percent
from gputop.diagnosis.causes.h2d_transfer import copies_much
from gputop.diagnosis.measure import waits
from gputop.diagnosis.measure.facts import CallFacts, Facts, JobFacts
from gputop.diagnosis.measure.feeders import threads_at_work
from gputop.diagnosis.model import Evidence, Fix

_NO_GPU = (waits.QUEUE, waits.PIPE, waits.NETWORK, waits.CHILD, waits.DISK, waits.STOPPED)
_BETWEEN = ("main.sync", "main.computing", "main.timer", "main.driver", "main.poll", "main.lock", "main.unknown", "main.transfer")
_POOLS = ("main.runnable", *_BETWEEN)


def _claim(job: JobFacts, _facts: Facts) -> Claims:
    if copies_much(job) or not _takes_turns(job):
        return {}
    # Each turn ends with a wake-up, and on a busy host that one waits for a CPU: it is the turns that make it hurt.
    slept = min(_calls_per_s(job.calls), job.trainer.sleeps_per_s or 0.0) if job.calls is not None else 0.0
    return dict.fromkeys(_BETWEEN, 1.0) | {"main.runnable": 1.0 if max(_rate(job), slept) >= policy.SYNCS_PER_S else 0.0}


def _takes_turns(job: JobFacts) -> bool:
    rate, calls = _rate(job), job.calls
    if calls is None:
        return rate >= (policy.SLEEPS_PER_S if _spins(job) is None else policy.SPINS_PER_S)
    steps, called, launches = calls.to_gpu_per_s, _calls_per_s(calls), job.launches_per_s or 0.0
    if launches >= policy.MANY_KERNELS * called and calls.sync < policy.IN_THEM and launches:
        return False
    if called >= policy.TURNS_PER_S and policy.LEAST_KERNELS * called <= launches <= policy.FEW_KERNELS * called:
        return True
    if called >= max(policy.SYNCS_PER_S, policy.CALLS_PER_STEP * steps) and rate >= policy.BEHIND_LONG * steps > 0.0:
        return True
    many = called >= policy.SYNCS_PER_S or rate >= policy.PER_STEP * steps > 0.0
    return rate >= policy.SYNCS_PER_S or (rate >= policy.WAITS_PER_S and many)


def _rate(job: JobFacts) -> float:
    """Waits for the GPU per second; short of the probe, sleeps of a main thread that has no other reason to sleep so often."""
    if job.calls is not None:
        return job.calls.waits_per_s
    if (spins_per_s := _spins(job)) is not None:
        return spins_per_s
    worked = job.idle is not None and job.idle < policy.HARDLY_WORKS
    return (job.trainer.sleeps_per_s or 0.0) if worked and not _sleeps_for_others(job) else 0.0


def _spins(job: JobFacts) -> float | None:
    """Waits per second of one that spins in them for a part of its time, where it was sampled."""
    return job.sampled.waits_per_s if job.sampled is not None and job.sampled.sync >= policy.SPINS else None


def _sleeps_for_others(job: JobFacts) -> bool:
    """Whether it sleeps for less time than its GPU works, so that short sleeps may hand over batches; has steps so short that they are as
    many sleeps; writes to storage at each; or mostly sleeps on locks, while threads of its own work."""
    trainer, kinds = job.trainer, job.trainer.kinds
    sleeps_per_s, batches_per_s = trainer.sleeps_per_s or 0.0, sum(worker.sleeps_per_s or 0.0 for worker in job.workers)
    asleep = sum(share for kind, share in kinds.items() if kind not in _NO_GPU)
    return (
        asleep < policy.SLEPT_BESIDE * (1.0 - (job.idle or 0.0))
        or sleeps_per_s < policy.SLEEPS_PER_BATCH * batches_per_s
        or (trainer.write_bytes_per_s or 0.0) >= policy.WRITTEN_BYTES * sleeps_per_s > 0.0
        or (threads_at_work(job) and 2 * kinds.get(waits.LOCK, 0.0) >= sum(kinds.values()))
    )


def _calls_per_s(calls: CallFacts) -> float:
    """Of the most frequent call that waits: `.item()` makes two, a copy and a synchronize."""
    return min(calls.sync_per_s, max(calls.rates, default=0.0))


def _tell(job: JobFacts, _facts: Facts) -> Finding:
    calls, sampled = job.calls, job.sampled if _spins(job) is not None else None
    rate = _rate(job) if calls is None else _calls_per_s(calls)
    often = f"{rate:,.0f} sleeps of the main thread, as many as synchronizing calls make, per second"
    if calls is not None:
        often = f"{rate:,.0f} synchronizing calls per second"
    elif sampled is not None:
        often = f"{sampled.seen_per_s:,.0f} waits per second and more, in which its main thread spins"
    inside, counted = calls or sampled, "" if calls is None else calls.counted_in
    evidence = (
        Evidence("syncs_per_s", None if calls is None else round(rate, 1), "/s", f"synchronizing calls{counted}"),
        percent("sync_pct", None if inside is None else inside.sync, "of the trainer's time inside them"),
        Evidence("launches_per_s", None if calls is None else job.launches_per_s, "/s", "kernels launched, counted now and then"),
        Evidence("sleeps_per_s", round(job.trainer.sleeps_per_s or 0.0, 1), "/s", "voluntary switches of the main thread"),
    )
    find = "Find the call that waits: .item(), .cpu(), print(tensor), nonzero(), a boolean mask, torch.cuda.synchronize()"
    fixes = (
        Fix(find, f"gputop stacks {job.trainer.pid} --duration 10"),
        Fix("Let torch name each one", 'torch.cuda.set_sync_debug_mode("warn")'),
        Fix("Keep the loss on the GPU and read it every hundred steps"),
    )
    return Finding(f"{often}: GPU and host take turns instead of overlapping", evidence, fixes, (), (job.trainer.pid,))


JUDGE = Judge(
    "sync-storm", "wait-heavy", _tell, rule=Rule(48, _POOLS, _claim), needs="CUDA uprobes, or the main thread's voluntary switches",
)  # fmt: skip
