"""undersized-work: the GPU is bigger than the job. Kernels leave most SMs idle while the trainer just waits for them: no fault."""

from __future__ import annotations

from gputop.diagnosis import intensity
from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import GpuFacts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.model import Evidence
from gputop.diagnosis.model import Fix
from gputop.diagnosis.verdicts import Claims
from gputop.diagnosis.verdicts import Finding
from gputop.diagnosis.verdicts import Judge

_POOLS = ("gpu.light",)


def _claim(_job: JobFacts, _facts: Facts) -> Claims:
    return {"gpu.light": 1.0}


def _tell(job: JobFacts, _facts: Facts) -> Finding:
    gpu = min(job.gpus, key=lambda gpu: intensity.intensity(gpu) or 1.0)
    detail = f"kernels run {100 * (gpu.util or 0.0):.0f}% of the time and use {share_used(gpu)} meanwhile: it is bigger than the job"
    fixes = (
        Fix("Give it more at once: a larger batch, or a larger model"),
        Fix("Or share the GPU between jobs", f"sudo nvidia-smi -i {gpu.index} -mig 1"),
    )
    return Finding(detail, how_used(gpu), fixes, (), (job.trainer.pid,))


def share_used(gpu: GpuFacts) -> str:
    """How much of it kernels use while they run, and by what that is told."""
    working = intensity.intensity(gpu)
    used = "little" if working is None else f"{100 * working:.0f}%"
    return f"{used} of the GPU{' (by its power)' if working is not None and gpu.sm_active is None else ''}"


def how_used(gpu: GpuFacts) -> tuple[Evidence, ...]:
    """What that rests on."""
    limit = f" of {gpu.power_limit_w:.0f} W" if gpu.power_limit_w else ""
    return (
        Evidence("util_pct", None if gpu.util is None else round(100 * gpu.util, 1), "%", "of the time some kernel ran"),
        Evidence("sm_active_pct", None if gpu.sm_active is None else round(100 * gpu.sm_active, 1), "%", "of the SMs had work"),
        Evidence("power_w", None if gpu.power_w is None else round(gpu.power_w, 1), "W", f"drawn{limit}"),
    )


JUDGE = Judge("undersized-work", "busy-not-working", 90, _POOLS, _claim, _tell, fault=False, needs="GPM SM activity, or power and limit")
