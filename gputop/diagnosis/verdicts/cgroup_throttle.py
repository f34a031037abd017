"""cgroup-throttle: the CPU quota of the job's control group stops it while CPUs may be free.

Threshold: `states.THROTTLED_PERIODS` of the quota's periods with throttling (cpu.stat); run-queue delay alone looks like contention.
Processes of the same group that are none of the job's are blamed where they use `OF_QUOTA` of it: a sidecar, somebody's `kubectl exec`.
"""

from __future__ import annotations

from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.facts import Taker
from gputop.diagnosis.model import Evidence
from gputop.diagnosis.model import Fix
from gputop.diagnosis.takers import blame
from gputop.diagnosis.takers import names_of
from gputop.diagnosis.verdicts import Claims
from gputop.diagnosis.verdicts import Finding
from gputop.diagnosis.verdicts import Judge

OF_QUOTA = 0.1
_POOLS = ("data.throttled", "main.throttled")


def _claim(_job: JobFacts, _facts: Facts) -> Claims:
    return dict.fromkeys(_POOLS, 1.0)


def _tell(job: JobFacts, facts: Facts) -> Finding:
    quota = "?" if job.quota_cpus is None else f"{job.quota_cpus:g}"
    share = 100 * job.throttled_periods
    wanted = sum(proc.cpu_s / proc.seconds + proc.runnable for proc in (job.trainer, *job.workers))
    detail = f"cgroup {job.quota_path} may use {quota} CPUs and was throttled in {share:.0f}% of its periods; the job wants {wanted:.1f}"
    guests = _guests(job, facts)
    if guests:
        detail += f", {_names(guests)} in the same group took {sum(guest.cores for guest in guests):.1f}"
    evidence = (
        Evidence("throttled_periods_pct", round(share, 1), "%", f"periods in which {job.quota_path} was throttled (cpu.stat)"),
        Evidence("quota_cpus", job.quota_cpus, "CPUs", "its quota"),
    )
    return Finding(detail, evidence, tuple(_fixes(job, wanted, guests)), blame(guests, facts.seconds))


def _guests(job: JobFacts, facts: Facts) -> list[Taker]:
    """Those in the group, or below it, that are none of the job's and take a part of its quota, most first."""
    inside = [taker for taker in facts.takers if taker.info is not None and _is_inside(taker.info.cgroup, job.quota_path)]
    return [taker for taker in inside if taker.cores >= OF_QUOTA * (job.quota_cpus or 0.0)]


def _names(guests: list[Taker]) -> str:
    return ", ".join(names_of(guests))


def _is_inside(path: str, group: str) -> bool:
    return bool(group.strip("/")) and (path == group or path.startswith(group + "/"))


def _fixes(job: JobFacts, wanted: float, guests: list[Taker]) -> list[Fix]:
    fixes = []
    if guests:
        pids = ",".join(str(guest.pid) for guest in guests)
        fixes.append(Fix(f"End {_names(guests)}, or run it outside of {job.quota_path}", f"ps -o pid,ppid,etime,args -p {pids}"))
    fixes.append(Fix(f"Raise the quota of {job.quota_path} to what the job wants ({wanted:.0f} CPUs), or lift it", _command(job)))
    if job.quota_cpus is not None and job.workers and len(job.workers) > job.quota_cpus + 1:
        fixes.append(Fix("Or start no more workers than the quota can feed", f"DataLoader(..., num_workers={max(1, int(job.quota_cpus))})"))
    return fixes


def _command(job: JobFacts) -> str:
    if job.cgroup_version == 1:
        return f"echo -1 > /sys/fs/cgroup/cpu{job.quota_path}/cpu.cfs_quota_us"
    return f"echo max > /sys/fs/cgroup{job.quota_path}/cpu.max"


JUDGE = Judge("cgroup-throttle", "input-bound", 20, _POOLS, _claim, _tell, needs="cpu.stat of the job's cgroup")
