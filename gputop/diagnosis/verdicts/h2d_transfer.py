"""h2d-transfer: the trainer waits for copies to (or from) the GPU.

Threshold: time inside memcpy calls where probed; else PCIe traffic of `BYTES_PER_S` (KempnerPulse: I/O from 1 GB/s at low SM), or of
`OF_LINK` of what a narrow link carries.
"""

from __future__ import annotations

import math

from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import GpuFacts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.model import Evidence
from gputop.diagnosis.model import Fix
from gputop.diagnosis.verdicts import Claims
from gputop.diagnosis.verdicts import Finding
from gputop.diagnosis.verdicts import Judge

BYTES_PER_S, OF_LINK = 1e9, 0.3
LANE_BYTES_PER_S = (0.25e9, 0.5e9, 0.985e9, 1.97e9, 3.94e9, 7.56e9)
"""Of PCIe 1 to 6, less what their line codes take."""
_ASK = "nvidia-smi -i {} --query-gpu=pcie.link.width.current,pcie.link.width.max --format=csv"
_WAITS = ("main.sync", "main.timer", "main.driver", "main.poll", "main.computing", "main.unknown", "main.lock")
_POOLS = ("main.transfer", *_WAITS)


def _claim(job: JobFacts, _facts: Facts) -> Claims:
    claims: Claims = {"main.transfer": 1.0}
    if copies_much(job):
        claims |= dict.fromkeys(_WAITS, 1.0)
        claims["main.computing"] = 1.0 if job.calls is None else 0.0
    return claims


def copies_much(job: JobFacts) -> bool:
    """Its GPUs' links are busy enough to be what it waits for."""
    return traffic(job) >= BYTES_PER_S or any((gpu.pcie_bytes_per_s or 0.0) >= OF_LINK * _link(gpu) for gpu in job.gpus)


def _link(gpu: GpuFacts) -> float:
    """Bytes per second that its link carries one way as it now runs; endless where that is not told."""
    lane = int(gpu.pcie_gen or 0)
    return LANE_BYTES_PER_S[lane - 1] * (gpu.pcie_width or 0) if 0 < lane <= len(LANE_BYTES_PER_S) and gpu.pcie_width else math.inf


def traffic(job: JobFacts) -> float:
    """Bytes per second over PCIe, both ways, of its GPUs together; 0 where they are not read."""
    return sum(gpu.pcie_bytes_per_s or 0.0 for gpu in job.gpus)


def _tell(job: JobFacts, _facts: Facts) -> Finding:
    calls = job.calls
    known = any(gpu.pcie_bytes_per_s is not None for gpu in job.gpus)
    moved = traffic(job)
    spent = f"copies take {100 * calls.copy:.0f}% of the time" if calls is not None else "the GPU waits for copies"
    detail = f"{spent}{f', {moved / 1e9:.1f} GB/s over PCIe' if known else ''}; workers have batches ready"
    evidence = (
        Evidence("copy_pct", None if calls is None else round(100 * calls.copy, 1), "%", "of the trainer's time inside memcpy calls"),
        Evidence("copies_per_s", None if calls is None else round(calls.copy_per_s, 1), "/s", "memcpy calls"),
        Evidence("pcie_bytes_per_s", round(moved) if known else None, "B/s", "over PCIe, both ways"),
    )
    fixes = (
        *_widening(job),
        Fix("Copy from pinned memory, beside the computing", "DataLoader(..., pin_memory=True); batch.to(device, non_blocking=True)"),
        Fix("Send less: uint8 images instead of float32, normalize on the GPU; prefetch the next batch on a side stream"),
    )
    return Finding(detail, evidence, fixes, (), (job.trainer.pid,))


def _widening(job: JobFacts) -> list[Fix]:
    """A card in a narrow slot, on a riser, or badly seated."""
    lanes = [(gpu.index, int(gpu.pcie_width or 0), int(gpu.pcie_width_max or 0)) for gpu in job.gpus]
    return [
        Fix(f"GPU {index} has {has} of its {most} PCIe lanes: another slot, or no riser", _ASK.format(index))
        for index, has, most in lanes
        if 0 < has < most
    ]


JUDGE = Judge("h2d-transfer", "transfer-bound", 76, _POOLS, _claim, _tell, needs="CUDA uprobes, or NVML's PCIe counters")
