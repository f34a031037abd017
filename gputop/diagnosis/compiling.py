"""When a trainer has torch.compile at work: its main thread traces, a pool of processes makes kernels, and the GPU rests."""

from __future__ import annotations

from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.model import Fix

AT_WORK = 0.1  # CPUs from which the pool is at work; idle it takes none
FIXES = (
    Fix("See why it compiles again: a size or a flag that changes from step to step", "TORCH_LOGS=recompiles"),
    Fix("Compile once for all sizes", "torch.compile(model, dynamic=True)"),
)


def compiles(job: JobFacts) -> bool:
    """In this window."""
    return job.compiling >= AT_WORK


def told(job: JobFacts) -> str:
    """Of one that does."""
    return f"compiles, torch.compile's processes run on {job.compiling:.1f} CPUs"
