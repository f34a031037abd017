"""h2d-transfer: the trainer waits for copies to (or from) the GPU.

Threshold: time inside memcpy calls where probed; else PCIe traffic of `BYTES_PER_S` (KempnerPulse: I/O from 1 GB/s at low SM).
"""

from __future__ import annotations

from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.model import Evidence
from gputop.diagnosis.model import Fix
from gputop.diagnosis.verdicts import Claims
from gputop.diagnosis.verdicts import Finding
from gputop.diagnosis.verdicts import Judge

BYTES_PER_S = 1e9
_WAITS = ("main.sync", "main.timer", "main.driver", "main.poll", "main.computing", "main.unknown", "main.lock")
_POOLS = ("main.transfer", *_WAITS)


def _claim(job: JobFacts, _facts: Facts) -> Claims:
    claims: Claims = {"main.transfer": 1.0}
    if traffic(job) >= BYTES_PER_S:
        claims |= dict.fromkeys(_WAITS, 1.0)
        claims["main.computing"] = 1.0 if job.calls is None else 0.0
    return claims


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
        Fix("Copy from pinned memory, beside the computing", "DataLoader(..., pin_memory=True); batch.to(device, non_blocking=True)"),
        Fix("Send less: uint8 images instead of float32, normalize on the GPU; prefetch the next batch on a side stream"),
    )
    return Finding(detail, evidence, fixes, (), (job.trainer.pid,))


JUDGE = Judge("h2d-transfer", "transfer-bound", 76, _POOLS, _claim, _tell, needs="CUDA uprobes, or NVML's PCIe counters")
