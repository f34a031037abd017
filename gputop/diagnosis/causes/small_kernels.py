"""What it is (small-kernels): the host launches kernels too small to fill the GPU, one after the other, and is the slower of the two.

Why it costs: PyTorch takes 5 to 20 us to launch a kernel, with Python's part; the GPU takes a fraction of that to run it.
How it is seen: a rule over main x computing, main x lock (a backward thread launches) and gpu x light: the trainer is busy, maybe
launching, for `policy.LAUNCHING` of the window, and kernels use `policy.FEW` of the GPU at most (`intensity`). Where launches are counted:
`policy.MANY_LAUNCHES` a second, each worth `policy.SHORT_S` of the GPU's work and `policy.EACH_S` of the main thread's at most.
When it abstains: the trainer mostly waits for the GPU (undersized-work); or the GPU rests at other times than those of the launches.
"""

from __future__ import annotations

from gputop.diagnosis import policy
from gputop.diagnosis.causes import Claims, Finding, Judge, Rule, percent
from gputop.diagnosis.causes.undersized_work import how_used, share_used
from gputop.diagnosis.measure import intensity
from gputop.diagnosis.measure.facts import Facts, JobFacts, may_spin
from gputop.diagnosis.measure.feeders import threads_at_work
from gputop.diagnosis.model import Evidence, Fix

_POOLS = ("gpu.light", "main.computing", "main.lock")


def _claim(job: JobFacts, _facts: Facts) -> Claims:
    if _launching(job) < policy.LAUNCHING or not _overlaps(job):
        return {}
    working = [part for part in (intensity.intensity(gpu) for gpu in job.gpus) if part is not None]
    fills_little = bool(working) and min(working) <= policy.FEW and (job.idle or 0.0) < policy.MOSTLY_IDLE
    own = 1.0 if fills_little or _launches_short_ones(job) else 0.0
    return {"gpu.light": 1.0, "main.computing": own, "main.lock": own if threads_at_work(job) else 0.0}


def _overlaps(job: JobFacts) -> bool:
    """Whether it may launch kernels all the while: by their number, or else by the time in which both GPU and main thread were busy. Not
    where it was met launching beside a GPU that hardly rests then, and rests at other times."""
    idle, beside = job.idle or 0.0, job.sampled.idle_beside_launches if job.sampled is not None else None
    if beside is not None and beside < policy.RESTS_BESIDE * (idle - policy.RESTS):
        return False
    if job.launches_per_s:
        return _launching(job) <= policy.MOST_EACH_S * job.launches_per_s
    threads = job.trainer.others_run if threads_at_work(job) else 0.0
    return max(_launching(job), job.trainer.state.fractions.get("computing", 0.0) + threads) - idle >= policy.OVERLAP


def _launches_short_ones(job: JobFacts) -> bool:
    """By their number, and what the GPU and the main thread do meanwhile."""
    rate = job.launches_per_s or 0.0
    if rate < policy.MANY_LAUNCHES or job.idle is None:
        return False
    return (1.0 - job.idle) / rate <= policy.SHORT_S and _launching(job) / rate <= policy.EACH_S


def _launching(job: JobFacts) -> float:
    """Share of the window in which its main thread, or the one that it waits for in the backward pass, may have launched kernels."""
    state = job.trainer.state
    awaited = state.waits.get("lock", 0.0) if threads_at_work(job) else 0.0
    # Without probes a wait for that thread looks like one for the GPU.
    return state.fractions.get("computing", 0.0) + max(awaited, job.trainer.autograd_run)


def _tell(job: JobFacts, _facts: Facts) -> Finding:
    gpu = min(job.gpus, key=lambda gpu: intensity.intensity(gpu) or 1.0)
    rate, worked = job.launches_per_s, 1.0 - (job.idle or 0.0)
    used = "" if intensity.intensity(gpu) is None else f", which use {share_used(gpu)} while they run"
    if rate and _launches_short_ones(job):
        used = f": {rate:,.0f} a second, each at most {1e6 * worked / rate:.0f} µs of the GPU's work"
    spins = ". It may also spin in waits for the GPU: from /proc both look the same" if may_spin(job) else ""
    counted = "kernels launched, about, by how often it was met launching" if job.sampled else "kernels launched, counted now and then"
    evidence = (
        *how_used(gpu),
        Evidence("launches_per_s", rate and round(rate, 1), "/s", counted),
        percent("main_cpu_pct", job.trainer.run, "on-CPU share of the trainer's main thread"),
        percent("backward_cpu_pct", job.trainer.autograd_run or None, "on-CPU share of its backward thread"),
    )
    fixes = (
        Fix("Launch many kernels at once, by CUDA graphs", 'model = torch.compile(model, mode="reduce-overhead")'),
        Fix("Fuse the optimizer's kernels", "torch.optim.AdamW(..., fused=True)"),
        Fix("Or give each kernel more to do: a larger batch"),
    )
    detail = f"the trainer launches kernels {100 * _launching(job):.0f}% of the time{used}{spins}"
    return Finding(detail, evidence, fixes, (), (job.trainer.pid,))


def _felt(job: JobFacts) -> str:
    return "wait-heavy" if (job.idle or 0.0) > policy.LOOKS_IDLE else "busy-not-working"


JUDGE = Judge(
    "small-kernels", "busy-not-working", _tell, rule=Rule(82, _POOLS, _claim), felt=_felt,
)  # fmt: skip
