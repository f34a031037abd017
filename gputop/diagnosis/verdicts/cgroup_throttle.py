"""cgroup-throttle: the CPU quota of the job's control group stops it while CPUs may be free.

Threshold: `states.THROTTLED_PERIODS` of the quota's periods with throttling (cpu.stat); run-queue delay alone looks like contention.
"""

from __future__ import annotations

from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.model import Evidence
from gputop.diagnosis.model import Fix
from gputop.diagnosis.verdicts import Claims
from gputop.diagnosis.verdicts import Finding
from gputop.diagnosis.verdicts import Judge

_POOLS = ("data.throttled", "main.throttled")


def _claim(_job: JobFacts, _facts: Facts) -> Claims:
    return dict.fromkeys(_POOLS, 1.0)


def _tell(job: JobFacts, _facts: Facts) -> Finding:
    quota = "?" if job.quota_cpus is None else f"{job.quota_cpus:g}"
    share = 100 * job.throttled_periods
    wanted = sum(proc.cpu_s / proc.seconds + proc.runnable for proc in (job.trainer, *job.workers))
    detail = f"cgroup {job.quota_path} may use {quota} CPUs and was throttled in {share:.0f}% of its periods; the job wants {wanted:.1f}"
    evidence = (
        Evidence("throttled_periods_pct", round(share, 1), "%", f"periods in which {job.quota_path} was throttled (cpu.stat)"),
        Evidence("quota_cpus", job.quota_cpus, "CPUs", "its quota"),
    )
    return Finding(detail, evidence, tuple(_fixes(job, wanted)))


def _fixes(job: JobFacts, wanted: float) -> list[Fix]:
    fixes = [Fix(f"Raise the quota of {job.quota_path} to what the job wants ({wanted:.0f} CPUs), or lift it", _command(job))]
    if job.quota_cpus is not None and job.workers and len(job.workers) > job.quota_cpus + 1:
        fixes.append(Fix("Or start no more workers than the quota can feed", f"DataLoader(..., num_workers={max(1, int(job.quota_cpus))})"))
    return fixes


def _command(job: JobFacts) -> str:
    if job.cgroup_version == 1:
        return f"echo -1 > /sys/fs/cgroup/cpu{job.quota_path}/cpu.cfs_quota_us"
    return f"echo max > /sys/fs/cgroup{job.quota_path}/cpu.max"


JUDGE = Judge("cgroup-throttle", "input-bound", 20, _POOLS, _claim, _tell, needs="cpu.stat of the job's cgroup")
