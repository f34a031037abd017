"""gpu-throttle: heat, a power brake, a lowered power limit or a user's setting holds the clocks down while the GPU is busy.

Costs: a kernel takes longer in proportion to the lost SM clock.
Seen: leaf gpu x slowed (`intensity.slowed_by`): one of these clock-event reasons of NVML in half of the samples, and the SM clock under
`policy.SLOW_CLOCK` of its highest. The loss is 1 - clock / free clock.
Abstains: the GPU is not busy; the power limit is the card's default: it is as fast as built.
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, percent
from gputop.diagnosis.facts.facts import GpuFacts
from gputop.diagnosis.facts.intensity import POWER_CAP, SET_CLOCKS, slowed_by
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import Evidence, Fix
from gputop.model.fields import throttle_words

_METRIC = {"power cap": "power_cap", "sync boost": "sync_boost", "heat": "heat", "heat (HW)": "hw_heat", "power brake": "power_brake"}
"""Reason of `GpuFacts.slowed_parts` -> its part of the evidence's name."""


def _tell(job: WalkedJob, _facts: WalkedFacts) -> Finding:
    gpu = min((gpu for gpu in job.gpus if slowed_by(gpu)), key=lambda gpu: gpu.sm_clock_mhz or 0.0)
    limit = gpu.power_limit_w if slowed_by(gpu) == POWER_CAP else None
    evidence = (
        Evidence("sm_clock_mhz", gpu.sm_clock_mhz, "MHz", filled("of {:.0f} MHz; limited by: {}", gpu.sm_clock_max_mhz, _words(gpu))),
        Evidence("sm_clock_free_mhz", gpu.sm_clock_free_mhz, "MHz", "the SM clock at which it worked before"),
        *(percent(f"slowed_{_METRIC[word]}_pct", part, filled("of the time the driver counted clocks held down by {}", word))
          for word, part in gpu.slowed_parts.items()),
        Evidence("power_smoothing", 1.0 if gpu.power_smoothing else None, "", "its power is smoothed on purpose: ramps of power are slow"),
        Evidence("temp_c", gpu.temp_c, "°C", "GPU temperature"),
        Evidence("power_limit_w", limit, "W", filled("its default is {:.0f} W", gpu.power_limit_default_w or 0)),
    )
    return Finding(held(gpu), evidence, fixes(gpu), (), (job.trainer.pid,))


def held(gpu: GpuFacts) -> str:
    """Words for how slowly a GPU that is `slowed_by` something runs, and the reason."""
    heat = "" if gpu.temp_c is None or not slowed_by(gpu) & ~(POWER_CAP | SET_CLOCKS) else filled(" at {:.0f} °C", gpu.temp_c)
    if slowed_by(gpu) == POWER_CAP and gpu.power_limit_w:
        heat = filled(" of {:.0f} W", gpu.power_limit_w)
    return filled("GPU {} runs at {:.0f} of {:.0f} MHz: {}{}", gpu.index, gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, _words(gpu), heat)


def _words(gpu: GpuFacts) -> str:
    return joined(", ", throttle_words(slowed_by(gpu)))


def fixes(gpu: GpuFacts) -> tuple[Fix, ...]:
    """Fixes that let the GPU run at full speed."""
    if slowed_by(gpu) & POWER_CAP:
        restore = filled("sudo nvidia-smi -i {:d} -pl {:.0f}", gpu.index, gpu.power_limit_default_w)
        return (Fix("Someone lowered the power limit: restore it", restore),)
    if slowed_by(gpu) == SET_CLOCKS:
        ask = filled("sudo nvidia-smi -i {:d} -rgc; sudo nvidia-smi -i {:d} -rac", gpu.index, gpu.index)
        return (Fix("Someone set its clocks (nvidia-smi -lgc or -ac): let it choose them itself", ask),)
    look = filled("nvidia-smi -i {:d} -q -d PERFORMANCE,TEMPERATURE,POWER", gpu.index)
    return Fix("Check fans, airflow and the room"), Fix("See what holds its clocks, and when it began", look, look=True)


JUDGE = Judge("gpu-throttle", "compute-bound", _tell, rows=(("gpu", "slowed"),))
