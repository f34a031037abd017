"""small-kernels: the host launches kernels too small to fill the GPU, one after the other, and is the slower of the two.

Threshold: few SMs at work (`intensity`) while the trainer is busy launching for `LAUNCHING` of the time; a trainer that mostly waits
for the GPU has undersized work instead. Where launches are counted: `MANY` of them a second, each worth `SHORT_S` of the GPU's work at
most, and `EACH_S` of the main thread's, which then does little else. A GPU without any kernel for more than `IDLES` of the time does
not look busy.
"""

from __future__ import annotations

from gputop.diagnosis import intensity
from gputop.diagnosis.causes import Claims, Finding, Judge, Rule
from gputop.diagnosis.causes.undersized_work import how_used, share_used
from gputop.diagnosis.facts import Facts, JobFacts
from gputop.diagnosis.feeders import threads_at_work
from gputop.diagnosis.model import Evidence, Fix
from gputop.diagnosis.states import may_spin

LAUNCHING, IDLES = 0.25, 0.4
FEW = 0.35
MANY, SHORT_S, EACH_S = 4000.0, 25e-6, 60e-6
"""PyTorch takes 5 to 20 us to launch a kernel, with Python's part; it takes a GPU a fraction of that to begin the next."""
MOST_EACH_S, OVERLAP = 200e-6, 0.1  # of the main thread's time, of one that does nothing else; and share of the window
RESTS, BESIDE = 0.1, 0.5
"""Share of the window that a GPU may rest anyhow; and of what it rests besides, what it does at least while it waits for launches."""
_COUNTED, _ABOUT = "kernels launched, counted now and then", "kernels launched, about, by how often it was met launching"
_POOLS = ("gpu.light", "main.computing", "main.lock")


def _claim(job: JobFacts, _facts: Facts) -> Claims:
    if _launching(job) < LAUNCHING or not _overlaps(job):
        return {}
    claims: Claims = {"gpu.light": 1.0}
    working = [part for part in (intensity.intensity(gpu) for gpu in job.gpus) if part is not None]
    if (working and min(working) <= FEW and (job.idle or 0.0) < 0.8) or _launches_short_ones(job):
        claims |= {"main.computing": 1.0, "main.lock": 1.0 if threads_at_work(job) else 0.0}
    return claims


def _overlaps(job: JobFacts) -> bool:
    """Whether it may launch kernels all the while: by their number, or else by the time in which both GPU and main thread were busy. Not
    where it was met launching beside a GPU that hardly rests then, and rests at other times."""
    if job.sampled is not None and job.sampled.idle_beside_launches is not None:
        rested = (job.idle or 0.0) - RESTS
        if job.sampled.idle_beside_launches < BESIDE * rested:
            return False
    if job.launches_per_s:
        return _launching(job) <= MOST_EACH_S * job.launches_per_s
    threads = job.trainer.others_run if threads_at_work(job) else 0.0
    launching = max(_launching(job), job.trainer.state.fractions.get("computing", 0.0) + threads)
    return launching - (job.idle or 0.0) >= OVERLAP


def _launches_short_ones(job: JobFacts) -> bool:
    """By their number, and what the GPU and the main thread do meanwhile."""
    rate = job.launches_per_s or 0.0
    if rate < MANY or job.idle is None:
        return False
    return (1.0 - job.idle) / rate <= SHORT_S and _launching(job) / rate <= EACH_S


def _launching(job: JobFacts) -> float:
    """Share of the window in which its main thread, or the one that it waits for in the backward pass, may have launched kernels."""
    state = job.trainer.state
    awaited = state.waits.get("lock", 0.0) if threads_at_work(job) else 0.0
    # Without probes a wait for that thread looks like one for the GPU.
    return state.fractions.get("computing", 0.0) + max(awaited, job.trainer.autograd_run)


def _tell(job: JobFacts, _facts: Facts) -> Finding:
    gpu = min(job.gpus, key=lambda gpu: intensity.intensity(gpu) or 1.0)
    share, working = 100 * _launching(job), intensity.intensity(gpu)
    used = "" if working is None else f", which use {share_used(gpu)} while they run"
    rate, worked = job.launches_per_s, 1.0 - (job.idle or 0.0)
    if rate and _launches_short_ones(job):
        used = f": {rate:,.0f} a second, each at most {1e6 * worked / rate:.0f} µs of the GPU's work"
    detail = f"the trainer launches kernels {share:.0f}% of the time{used}"
    if may_spin(job):
        detail += ". It may also spin in waits for the GPU: from /proc both look the same"
    evidence = (
        *how_used(gpu),
        Evidence("launches_per_s", rate and round(rate, 1), "/s", _ABOUT if job.sampled else _COUNTED),
        Evidence("main_cpu_pct", round(100 * job.trainer.run, 1), "%", "on-CPU share of the trainer's main thread"),
        Evidence("backward_cpu_pct", round(100 * job.trainer.autograd_run, 1) or None, "%", "on-CPU share of its backward thread"),
    )
    fixes = (
        Fix("Launch many kernels at once, by CUDA graphs", 'model = torch.compile(model, mode="reduce-overhead")'),
        Fix("Fuse the optimizer's kernels", "torch.optim.AdamW(..., fused=True)"),
        Fix("Or give each kernel more to do: a larger batch"),
    )
    return Finding(detail, evidence, fixes, (), (job.trainer.pid,))


def _felt(job: JobFacts) -> str:
    return "wait-heavy" if (job.idle or 0.0) > IDLES else "busy-not-working"


JUDGE = Judge(
    "small-kernels", "busy-not-working", _tell, rule=Rule(82, _POOLS, _claim), needs="SM activity, power, or launches", felt=_felt,
)  # fmt: skip
