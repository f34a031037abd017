"""undersized-work: the GPUs are more than the job uses at once. It is no fault.

Costs: most SMs have no work, though some kernel always runs; or one of several GPUs waits while another works.
Seen: leaf gpu x light (`intensity.is_light`): kernels that use few SMs by GPM, else little power above idle; gpu x turns: a process has
several GPUs, some without work while others work, as for a model cut into parts (``device_map="auto"``).
Abstains: the host is busy launching those kernels (small-kernels); its GPUs may wait for other ranks' (`life.has_peers`), for a
collective's kernel also runs on few SMs until the last rank arrives; or they may work together: utilization is a mean over 0.1 s and more,
so two at 40 % may.
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, advice, percent
from gputop.diagnosis.facts import intensity
from gputop.diagnosis.facts.facts import GpuFacts
from gputop.diagnosis.facts.life import has_peers
from gputop.diagnosis.graph.edges import Leaf
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.waitgraph import Walk
from gputop.findings import policy
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import Evidence, of_gpus


def _part(walk: Walk, _leaf: Leaf) -> float:
    return 0.0 if has_peers(walk.job) else 1.0


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    if _take_turns(job):
        return _tell_of_turns(job, facts)
    gpu = min(job.gpus, key=lambda gpu: intensity.intensity(gpu) or 1.0)
    detail = filled(
        "kernels run {:.0f}% of the time and use {} while they run: it is bigger than the job", 100 * (gpu.util or 0.0), share_used(gpu)
    )
    fixes = advice.fixes(advice.computing(job, facts).bigger)
    return Finding(detail, how_used(gpu), fixes, (), (job.trainer.pid,))


def _take_turns(job: WalkedJob) -> bool:
    """True if the GPUs take turns rather than have too little work each."""
    return job.gpu_use.turns > job.gpu_use.waste.get("light", 0.0)


def work_apart(job: WalkedJob) -> bool:
    """True if the job's GPUs hardly ever worked at the same time; otherwise some only have less work."""
    worked = 1.0 - (1.0 if job.idle is None else job.idle)
    return sum(gpu.util or 0.0 for gpu in job.gpus) - worked < policy.TENTH


def _tell_of_turns(job: WalkedJob, facts: WalkedFacts) -> Finding:
    worked, idle = 1.0 - (job.idle or 0.0), [gpu for gpu in job.gpus if gpu.util is not None and gpu.util < policy.HARDLY]
    names = joined(", ", (filled("GPU {} {:.0f}%", gpu.name, 100 * (gpu.util or 0.0)) for gpu in job.gpus))
    how = "hardly ever work at once" if work_apart(job) else "do not work alike"
    detail = filled("its {} GPUs {}: {} of the time, some of them {:.0f}%", len(job.gpus), how, names, 100 * worked)
    why = filled("{} got no work", of_gpus([gpu.name for gpu in idle])) if idle else "each waits for what another computes"
    if worked >= 1.0 - policy.LOST:
        detail += filled(". The host is not late: {}", why)
    elif idle or work_apart(job):
        detail += filled(": {}", why)
    evidence = (
        percent("any_gpu_pct", worked, "of the time some of its GPUs worked"),
        percent("turns_pct", job.gpu_use.turns, "of each GPU's time, in the mean, it had nothing to do while another worked"),
    )
    return Finding(detail, evidence, advice.fixes(advice.computing(job, facts).turns), (), (job.trainer.pid,))


def _felt(job: WalkedJob) -> str:
    return "wait-heavy" if _take_turns(job) else "busy-not-working"


def share_used(gpu: GpuFacts) -> str:
    """Words for the part of the GPU that running kernels use, and the figure's source."""
    working = intensity.intensity(gpu)
    used = "little" if working is None else f"{100 * working:.0f}%"
    return filled("{} of the GPU{}", used, " (by its power)" if working is not None and gpu.sm_active is None else "")


def how_used(gpu: GpuFacts) -> tuple[Evidence, ...]:
    """Evidence for the part of the GPU in use."""
    limit = filled(" of {:.0f} W", gpu.power_limit_w) if gpu.power_limit_w else ""
    return (
        percent("util_pct", gpu.util, "of the time some kernel ran"),
        percent("sm_active_pct", gpu.sm_active, "of the SMs had work"),
        Evidence("power_w", None if gpu.power_w is None else round(gpu.power_w, 1), "W", filled("drawn{}", limit)),
    )


JUDGE = Judge(
    "undersized-work", "busy-not-working", _tell, rows=(("gpu", "light"), ("gpu", "turns")), part=_part, fault=False, felt=_felt
)
