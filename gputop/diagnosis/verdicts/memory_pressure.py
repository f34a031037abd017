"""memory-pressure: reclaim, swapping or thrashing stops workers or the trainer.

Threshold: PSI memory `some` of `states.MEMORY_STALL` or a cgroup at its limit with refaults; then disk waits and kernel time are reclaim's.
"""

from __future__ import annotations

from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.model import Evidence
from gputop.diagnosis.model import Fix
from gputop.diagnosis.verdicts import Claims
from gputop.diagnosis.verdicts import Finding
from gputop.diagnosis.verdicts import Judge

_POOLS = ("data.memory", "main.memory")


def _claim(_job: JobFacts, _facts: Facts) -> Claims:
    return dict.fromkeys(_POOLS, 1.0)


def _tell(job: JobFacts, facts: Facts) -> Finding:
    procs = job.workers or [job.trainer]
    share = 100 * sum(proc.state.fractions.get("memory", 0.0) for proc in procs) / len(procs)
    faults = sum(proc.majflt_per_s for proc in procs)
    where = f"cgroup {job.memory_path} is at its limit" if job.memory_path else "the host reclaims memory"
    psi = facts.host.psi_memory
    evidence = (
        Evidence("memory_stall_pct", round(share, 1), "%", "of the loaders' time went to reclaim, swap or pages read again"),
        Evidence("psi_memory_pct", None if psi is None else round(100 * psi, 1), "%", "PSI memory some"),
        Evidence("majflt_per_s", round(faults, 1), "/s", "major faults of the loaders"),
    )
    return Finding(
        f"{where}: loaders stalled on memory {share:.0f}% of the time, {faults:.0f} major faults/s", evidence, tuple(_fixes(job))
    )


def _fixes(job: JobFacts) -> list[Fix]:
    if job.memory_path:
        base = "/sys/fs/cgroup/memory" if job.cgroup_version == 1 else "/sys/fs/cgroup"
        name = "memory.limit_in_bytes" if job.cgroup_version == 1 else "memory.max"
        return [
            Fix(
                f"Raise the memory limit of {job.memory_path}", f"echo {2 * (job.memory_limit_bytes or 0)} > {base}{job.memory_path}/{name}"
            ),
            Fix(
                "Or hold less: fewer workers, a smaller prefetch_factor",
                f"DataLoader(..., num_workers={max(1, len(job.workers) // 2)}, prefetch_factor=1)",
            ),
        ]
    return [Fix("See who holds the memory", "ps -eo pid,rss,comm --sort=-rss | head")]


JUDGE = Judge("memory-pressure", "input-bound", 25, _POOLS, _claim, _tell, needs="/proc/pressure/memory or the cgroup's memory.stat")
