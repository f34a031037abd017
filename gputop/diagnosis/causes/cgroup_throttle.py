"""cgroup-throttle: the CPU quota of the job's control group stops it while CPUs may be free.

Threshold: `states.THROTTLED_PERIODS` of the quota's periods with throttling (cpu.stat); run-queue delay alone looks like contention.
Processes of the same group that are none of the job's are blamed where they use `OF_QUOTA` of it: a sidecar, somebody's `kubectl exec`.
"""

from __future__ import annotations

from math import ceil, floor

from gputop.diagnosis import shell
from gputop.diagnosis.capacity import capacity, needed, strangers
from gputop.diagnosis.causes import Finding, Judge
from gputop.diagnosis.facts import Facts, JobFacts, Taker
from gputop.diagnosis.feeders import with_workers
from gputop.diagnosis.model import Evidence, Fix
from gputop.diagnosis.takers import blame, names_of
from gputop.system.text import counted

OF_QUOTA = 0.1
PERIOD_US = 100_000  # of cpu.max, unless somebody chose another


def _tell(job: JobFacts, facts: Facts) -> Finding:
    quota = "?" if job.quota_cpus is None else f"{job.quota_cpus:g}"
    share, guests = 100 * max(job.throttled_periods, job.fed_throttled_periods), _guests(job, facts)
    wants = f"the job wants {_wanted(job, facts):.1f}"
    feeders = [taker for taker in facts.takers if taker.pid in job.fed_by] if job.fed_throttled_periods else []
    loads = f", in which {_names(feeders)} {'loads' if len(feeders) == 1 else 'load'} for it," if feeders else ""
    detail = f"cgroup {job.quota_path}{loads} may use {quota} CPUs and was throttled in {share:.0f}% of its periods; {wants}"
    if guests:
        detail += f", {_names(guests)} in the same group took {sum(guest.cores for guest in guests):.1f}"
    evidence = (
        Evidence("throttled_periods_pct", round(share, 1), "%", f"periods in which {job.quota_path} was throttled (cpu.stat)"),
        Evidence("quota_cpus", job.quota_cpus, "CPUs", "its quota"),
    )
    return Finding(detail, evidence, tuple(_fixes(job, facts, guests)), blame(guests, facts.seconds))


def _wanted(job: JobFacts, facts: Facts) -> float:
    """CPUs with which it would keep its GPU at work, at most those that it may run on: who is throttled is runnable all the time, even
    where little is left to do."""
    return min(needed(job), float(len(capacity(job, facts).allowed)))


def _guests(job: JobFacts, facts: Facts) -> list[Taker]:
    """Those in the group, or below it, that are none of the job's and take a part of its quota, most first."""
    if not job.quota_path.strip("/"):
        return []
    inside = [taker for taker in strangers(job, facts) if taker.info is not None and shell.holds_group(job.quota_path, taker.info.cgroup)]
    return [taker for taker in inside if taker.cores >= OF_QUOTA * (job.quota_cpus or 0.0)]


def _names(guests: list[Taker]) -> str:
    return ", ".join(names_of(guests))


def _fixes(job: JobFacts, facts: Facts, guests: list[Taker]) -> list[Fix]:
    fixes = []
    if guests:
        pids = ",".join(str(guest.pid) for guest in guests)
        fixes.append(Fix(f"End {_names(guests)}, or run it outside of {job.quota_path}", f"ps -o pid,ppid,etime,args -p {pids}"))
    wanted = _wanted(job, facts) + sum(guest.cores for guest in guests)
    fixes.append(_raising(job, wanted, len(capacity(job, facts).allowed)))
    if job.quota_cpus is not None and job.workers and len(job.workers) > job.quota_cpus + 1 and wanted <= job.quota_cpus:
        fixes.append(Fix("Or start no more workers than may run at once", with_workers(job, max(1, int(job.quota_cpus)))))
    return fixes


def _raising(job: JobFacts, wanted: float, most: int) -> Fix:
    """To whole CPUs, and more than it has: who runs by bursts is throttled in these, though in the mean it wants less."""
    cpus = min(most, max(ceil(wanted), floor(job.quota_cpus or 0.0) + 1))
    text = f"Raise the quota of {job.quota_path} to {counted(cpus, 'CPU')}"
    if job.cgroup_version == 1:
        period, quota = (shell.cgroup_file(1, "cpu", job.quota_path, f"cpu.cfs_{name}_us") for name in ("period", "quota"))
        return Fix(text, f"echo $(({cpus} * $(cat {period}))) > {quota}")
    return Fix(text, f"echo '{cpus * PERIOD_US} {PERIOD_US}' > {shell.cgroup_file(2, 'cpu', job.quota_path, 'cpu.max')}")


JUDGE = Judge(
    "cgroup-throttle", "input-bound", _tell, rows=(("quota", "main"), ("quota", "worker"),), needs="cpu.stat of the job's cgroup",
)  # fmt: skip
