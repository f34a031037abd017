"""small-kernels: the host launches kernels too small to fill the GPU, and launching takes longer than running them.

Costs: PyTorch takes 5 to 20 us to launch a kernel, with Python's part; the GPU takes a fraction of that to run it.
Seen: row launch x main, by its price (`gpuside.launches`): `policy.LAUNCH_COST_S` of the main thread's time, or of the backward thread's,
for each launch, less the GPU's work in that time; with light kernels (`intensity.is_light`), all that thread's time up to
`policy.LIGHT_COST_S` for each launch. It is taken from work x main and gpu x light.
Abstains: the trainer mostly waits for the GPU (undersized-work); the GPU rests at other times than the launches; or light kernels may be
collectives, which wait for other ranks: then `policy.LAUNCH_COST_S` for each launch is all.
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, advice, percent, traced
from gputop.diagnosis.causes.undersized_work import how_used, share_used
from gputop.diagnosis.facts import intensity
from gputop.diagnosis.facts.life import may_spin
from gputop.diagnosis.graph.gpuside import launching, outlasting
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import Evidence


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    gpu = min(job.gpus, key=lambda gpu: intensity.intensity(gpu) or 1.0)
    rate, worked = job.cuda.launches_per_s, 1.0 - (job.idle or 0.0)
    used = "" if intensity.intensity(gpu) is None else filled(", which use {} while they run", share_used(gpu))
    if rate and outlasting(job) > 0.0:
        used = filled(": {:,.0f} a second, each at most {:.0f} µs of the GPU's work", rate, 1e6 * worked / rate)
    spins = ". It may also spin in waits for the GPU: from /proc both look the same" if may_spin(job) else ""
    counted = "kernels launched, about, by how often it was met launching" if job.cuda.sampled else "kernels launched, counted now and then"
    evidence = (
        *how_used(gpu),
        Evidence("launches_per_s", rate and round(rate, 1), "/s", counted),
        percent("main_cpu_pct", job.trainer.run, "on-CPU share of the trainer's main thread"),
        percent("backward_cpu_pct", job.trainer.autograd_run or None, "on-CPU share of its backward thread"),
        *traced.kernels(job),
    )
    fixes = advice.fixes(advice.computing(job, facts).launches)
    detail = filled("the trainer launches kernels {:.0f}% of the time{}{}", 100 * launching(job), used, spins)
    return Finding(detail, evidence, fixes, (), (job.trainer.pid,))


def _felt(job: WalkedJob) -> str:
    return "wait-heavy" if (job.idle or 0.0) > policy.HALF else "busy-not-working"


JUDGE = Judge("small-kernels", "busy-not-working", _tell, rows=(("launch", "main"),), felt=_felt)
