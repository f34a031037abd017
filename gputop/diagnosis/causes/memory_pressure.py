"""memory-pressure: reclaim, swapping or pages that are read again and again stop workers or the trainer.

Costs: the kernel takes pages that are needed soon: their reader waits for the disk, or for the kernel's search.
Seen: rows memory x worker, memory x main: waits for a disk, and kernel time, where PSI memory `some` is `policy.LITTLE` or more, or the
cgroup is at its limit with refaults; or pages of the process come back from swap, or soon after they were dropped (`owners.thrashes`).
Of a process that feeds the job as well; its major faults count its sleeps for pages where no sample met these.
Blamed are processes outside the job that have grown more than it since they were first seen.
Abstains: pages are read for the first time (disk-io).
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, advice, percent
from gputop.diagnosis.facts.facts import Grower
from gputop.diagnosis.facts.feeders import MEMORY, programs_wait, threads_wait
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.facts.waits import DISK, ONCPU
from gputop.diagnosis.graph import owners, shell
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings import policy
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import Culprit, Evidence, Fix

NAMED = 3  # culprits at most


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    procs = job.workers or [job.trainer]
    share = max(sum(_stalled(job, proc) for proc in procs) / len(procs), programs_wait(job, facts).get(MEMORY, 0.0))
    stalled = "loaders"
    if (one := owners.member_at(job, MEMORY)) is not None:
        share, stalled = one.spent.get(DISK, 0.0) + one.kernel * one.spent[ONCPU], filled("{} ({})", one.name, one.pid)
    faults, own = sum(proc.majflt_per_s for proc in procs), _own_growth(job)
    growers = _growers(job, facts)
    where = filled("cgroup {} is at its limit", job.limits.memory_path) if job.limits.memory_path else "the host reclaims memory"
    evidence = (
        percent("memory_stall_pct", share, "of the loaders' time went to reclaim, swap or pages read again"),
        percent("psi_memory_pct", facts.host.psi_memory or None, "PSI memory some"),
        Evidence("majflt_per_s", round(faults, 1) if faults >= policy.TOLD_FAULTS_PER_S else None, "/s", "major faults of the loaders"),
        Evidence("refaults_per_s", round(facts.host.refaults_per_s or 0.0) or None, "/s", "pages dropped and read again, host-wide"),
        Evidence("grown_bytes", own if own >= policy.GROWN_BYTES else None, "B", "that the job holds more than when it was first seen"),
    )
    detail = filled("{}: {} stalled on memory {:.0f}% of the time", where, stalled, 100 * share)
    detail += filled(", {:.0f} major faults/s", faults) if faults >= policy.TOLD_FAULTS_PER_S else ""
    if growers:
        detail += filled(
            "; outside of the job grew {}", joined(", ", (filled("{} by {:.0f} MB", _named(one), one.grown_bytes / 1e6) for one in growers))
        )
    culprits = tuple(Culprit(one.pid, one.name, None) for one in growers)
    return Finding(detail, evidence, (*_ending(growers), *_fixes(job, facts)), culprits, tuple(proc.pid for proc in procs))


def _stalled(job: WalkedJob, proc: ProcFacts) -> float:
    """Share of the window that the main thread, or the threads it waits for, stalled on memory."""
    return max(proc.state.fractions.get(MEMORY, 0.0), threads_wait(job, proc).get(MEMORY, 0.0))


def _own_growth(job: WalkedJob) -> int:
    return sum(max(0, proc.grown_bytes) for proc in (job.trainer, *job.workers))


def _growers(job: WalkedJob, facts: WalkedFacts) -> list[Grower]:
    """Processes outside the job whose memory has grown more than the job's since they were first seen; if a control group is full, only
    processes inside it that took a tenth of its limit at least."""
    found = [one for one in facts.growers if not job.limits.memory_path or shell.holds_group(job.limits.memory_path, one.cgroup)]
    most = found[0].grown_bytes if found else 0
    least = policy.TENTH * (job.limits.memory_limit_bytes or 0) if job.limits.memory_path else 0.0
    return [one for one in found if one.grown_bytes >= max(_own_growth(job), policy.SOME * most, least)][:NAMED]


def _named(one: Grower) -> str:
    return f"{one.name} ({one.pid})"


def _ending(growers: list[Grower]) -> list[Fix]:
    names, pids = joined(", ", map(_named, growers)), [one.pid for one in growers]
    return (
        [
            Fix(
                filled("Give {} a limit of memory of its own, or end it if it is not needed", names),
                filled("ps -o pid,ppid,rss,args -p {:pids,}", pids),
            )
        ]
        if growers
        else []
    )


def _fixes(job: WalkedJob, facts: WalkedFacts) -> list[Fix]:
    less = advice.fixes(advice.loading(job, facts).less_held, max(1, len(job.workers) // 2))
    if not job.limits.memory_path:
        look = Fix("See who holds the memory", "ps -eo pid,rss,comm --sort=-rss | head", look=True)
        return [Fix("Leave it more of the host's memory: end, limit or move what holds most of it and is not needed here"), *less, look]
    limit, cached = job.limits.memory_limit_bytes or 0, job.limits.memory_file_bytes or 0
    name = "memory.limit_in_bytes" if job.limits.cgroup_version == 1 else "memory.max"
    file = shell.cgroup_file(job.limits.cgroup_version, "memory", job.limits.memory_path, name)
    if 2 * cached > limit:
        text = "Or read less: {:.0f} of its {:.0f} MB are pages of files, packed or smaller ones would fit"
        less = (Fix(filled(text, cached / 1e6, limit / 1e6)),)
    return [Fix(filled("Raise the memory limit of {}", job.limits.memory_path), filled("echo {:d} > {:file}", int(2 * limit), file)), *less]


JUDGE = Judge("memory-pressure", "input-bound", _tell, rows=(("memory", "main"), ("memory", "worker")))
