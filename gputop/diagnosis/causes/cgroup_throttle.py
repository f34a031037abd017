"""cgroup-throttle: the CPU quota of the job's control group, or of one above it, stops its threads.

Costs: once the quota of a period (100 ms) is used up the job does not run until the next, even with free CPUs.
Seen: rows quota x worker, quota x main: a part of each wait for a CPU, twice the share of periods with throttling (cpu.stat) if that is
`policy.TENTH` or more; also by the quota of the trainer's feeders, or of a process at its other ends that it waits for. Other processes in
the group are blamed if they use `policy.TENTH` of the quota: a sidecar, a `kubectl exec`.
Abstains: no quota, or cpu.stat cannot be read; throttling in fewer periods.
"""

from __future__ import annotations

from math import ceil, floor

from msgspec.structs import replace

from gputop.diagnosis.causes import Finding, Judge, advice, percent
from gputop.diagnosis.facts.capacity import capacity, needed, strangers
from gputop.diagnosis.facts.facts import Member, Taker
from gputop.diagnosis.facts.takers import blame, names_of
from gputop.diagnosis.graph import shell
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings import policy
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import Evidence, Fix
from gputop.model.identity import in_pod
from gputop.system.text import counted

PERIOD_US = 100_000  # us, period of cpu.max by default


def _stopped_member(job: WalkedJob) -> Member | None:
    """The member of the job's family at which the walk ended, for a quota of its own stops it."""
    ends = {claim.way.trail[-1].pid for claim in job.claims if claim.cause == JUDGE.cause and claim.way.trail}
    return next((one for one in job.members if one.pid in ends & job.limits.of_members.keys()), None)


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    if (member := _stopped_member(job)) is not None:
        share, cpus, path = job.limits.of_members[member.pid]
        limits = replace(job.limits, throttled_periods=0.0, fed_throttled_periods=share, quota_cpus=cpus, quota_path=path)
        job = replace(job, limits=limits, feeders=replace(job.feeders, pids=frozenset({member.pid})))
    limits, guests, path = job.limits, _guests(job, facts), job.limits.quota_path
    share = max(limits.throttled_periods, limits.fed_throttled_periods)
    feeders = [taker for taker in facts.takers if taker.pid in job.feeders.pids] if limits.fed_throttled_periods else []
    loads = filled(", in which {} {} for it,", joined(", ", names_of(feeders)), "loads" if len(feeders) == 1 else "load") if feeders else ""
    quota = "?" if limits.quota_cpus is None else filled("{:g}", limits.quota_cpus)
    detail = filled("cgroup {}{} may use {} CPUs and was throttled in {:.0f}% of its periods; ", path, loads, quota, 100 * share)
    detail += filled("the job wants {:.1f}" if member is None else "that one wants {:.1f}", _wanted(job, facts))
    if guests:
        detail += filled(", {} in the same group took {:.1f}", joined(", ", names_of(guests)), sum(guest.cores for guest in guests))
    evidence = (
        percent("throttled_periods_pct", share, filled("periods in which {} was throttled (cpu.stat)", path)),
        Evidence("quota_cpus", limits.quota_cpus, "CPUs", "its quota"),
    )
    return Finding(detail, evidence, tuple(_fixes(job, facts, guests)), blame(guests, facts.seconds), _throttled(job))


def _throttled(job: WalkedJob) -> tuple[int, ...] | None:
    """Pids of the job's processes that ran within the quota; None if they are not the job's, such as a feeder's."""
    path = job.limits.quota_path
    inside = (one for one in (job.trainer, *job.workers) if path and shell.holds_group(path, one.info.cgroup))
    return tuple(one.pid for one in inside if one.run + one.others_run + one.runnable >= policy.HARDLY) or None


def _wanted(job: WalkedJob, facts: WalkedFacts) -> float:
    """CPUs with which the job would keep its GPU at work, at most those it may run on: throttled processes are runnable all the time. Of a
    member with a quota of its own: what that one wants."""
    member = _stopped_member(job)
    wants = needed(job) if member is None else member.cores + member.ready
    return min(wants, float(len(capacity(job, facts).allowed)))


def _guests(job: WalkedJob, facts: WalkedFacts) -> list[Taker]:
    """Processes in or below the throttled group that are not the job's and use a part of its quota, most first."""
    path = job.limits.quota_path
    if not path.strip("/"):
        return []
    inside = [taker for taker in strangers(job, facts) if taker.info is not None and shell.holds_group(path, taker.info.cgroup)]
    return [taker for taker in inside if taker.cores >= policy.TENTH * (job.limits.quota_cpus or 0.0)]


def _fixes(job: WalkedJob, facts: WalkedFacts, guests: list[Taker]) -> list[Fix]:
    fixes, quota = [], job.limits.quota_cpus or 0.0
    if guests:
        names, pids = joined(", ", names_of(guests)), [guest.pid for guest in guests]
        fixes.append(
            Fix(
                filled("Run {} outside of {}, or end it if it is not needed", names, job.limits.quota_path),
                filled("ps -o pid,ppid,etime,args -p {:pids,}", pids),
            )
        )
    wanted = _wanted(job, facts) + sum(guest.cores for guest in guests)
    # More than the present quota: a process that runs in bursts is throttled in them, though its mean demand is lower.
    cpus = min(len(capacity(job, facts).allowed), max(ceil(wanted), floor(quota) + 1))
    fixes.append(Fix(filled("Raise the quota of {} to {}", job.limits.quota_path, counted(cpus, "CPU")), _raising(job, cpus)))
    if in_pod(job.trainer.info):
        text = "And in the pod's spec, for its next start: the kubelet sets the quota from there"
        fixes.append(Fix(text, filled("kubectl set resources ... --limits=cpu={:d}", cpus)))
    if quota and job.workers and len(job.workers) > quota + 1 and wanted <= quota:
        fixes += advice.fixes(advice.loading(job, facts).fewer, max(1, int(quota)))
    return fixes


def _raising(job: WalkedJob, cpus: int) -> str:
    if job.limits.cgroup_version == 1:
        period, quota = (shell.cgroup_file(1, "cpu", job.limits.quota_path, name) for name in ("cpu.cfs_period_us", "cpu.cfs_quota_us"))
        return filled("echo $(({:d} * $(cat {:file}))) > {:file}", cpus, period, quota)
    return filled("echo '{:d} {:d}' > {:file}", cpus * PERIOD_US, PERIOD_US, shell.cgroup_file(2, "cpu", job.limits.quota_path, "cpu.max"))


JUDGE = Judge("cgroup-throttle", "input-bound", _tell, rows=(("quota", "main"), ("quota", "worker")))
