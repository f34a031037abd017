"""disk-io: workers wait for block I/O, or the trainer itself does between its steps.

Costs: storage delivers bytes more slowly than the GPU uses them, because of its own speed, of other processes or of the cgroup's limit.
Seen: rows disk x worker, disk x main: uninterruptible sleep by the probe, else by samples of /proc; also of threads and programs for which
they wait, and of the holder of a lock that the other workers wait for while they read all that their cgroup may.
Abstains: memory is short, so that the pages were taken from it (memory-pressure); or a trainer writes while its GPU has rested for
`policy.BREAK_NS`: it saves a checkpoint.
"""

from __future__ import annotations

import re

from gputop.diagnosis.causes import Finding, Judge, advice, percent
from gputop.diagnosis.facts.facts import Mover
from gputop.diagnosis.facts.feeders import programs_wait
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.graph import owners, shell
from gputop.diagnosis.graph.edges import Leaf
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.owners import waiting_part
from gputop.diagnosis.graph.waitgraph import Walk
from gputop.findings import policy
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import Culprit, Evidence, Fix
from gputop.model.frame import ReadLimit

NAMED = 3  # movers that are named
_DEVICE = re.compile(r"(\d+):(\d+)", re.ASCII)  # as the kernel names a block device: MAJOR:MINOR


def _part(walk: Walk, leaf: Leaf) -> float:
    """Part of the leaf that is this cause. A trainer's wait for a disk counts only if it reads, or waits between its steps."""
    trainer, job = walk.trainer, walk.job
    if leaf.holder != "main":
        return 1.0
    reads = (trainer.read_bytes_per_s or 0.0) > (trainer.write_bytes_per_s or 0.0) or "disk" in programs_wait(job, walk.facts)
    return float(reads or all(gpu.idle_s * 1e9 < policy.BREAK_NS for gpu in job.gpus))


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    procs, pid, who, share = waiting_part(job, facts, "disk", _share)
    writes = job.trainer in procs and _writes(job, facts)
    rate = sum(proc.read_bytes_per_s or 0.0 for proc in procs) or None  # None: programs read for them
    (device, busy), limit = facts.host.disk_busy or ("", 0.0), job.limits.read_limit
    movers = movers_of(job, facts, rate or 0.0)
    moving = joined(", ", (filled("{} ({}) moves {}", one.name, one.pid, _per_s(one.bytes_per_s)) for one in movers))
    told = [filled("{} waited for the disk {:.0f}% of the time", who, 100 * share)]
    if rate is not None:
        told[0] += filled(
            ", reading {}{}", _per_s(rate), filled(" from {} ({:.0f}% busy)", device, 100 * busy) if busy > policy.TENTH else ""
        )
    if limit is not None:
        told.append(filled("cgroup {} may read {} from device {}", limit.path, _allowed(limit), limit.device))
    evidence = (
        percent("disk_pct", share, filled("of the time of {} in I/O wait", who)),
        percent("lock_pct", _locked(job), "of their time they waited for the one that reads"),
        Evidence("read_bytes_per_s", None if rate is None else round(rate), "B/s", "they fetched from storage"),
        Evidence("write_bytes_per_s", round(job.trainer.write_bytes_per_s or 0.0) or None if writes else None, "B/s", "it sent to storage"),
        percent("psi_io_pct", facts.host.psi_io, "PSI io some"),
    )
    others = _write_less(pid) if writes else _read_faster(job, facts, procs, pid)
    fixes = (*after_others(movers), *lifting(limit, job.limits.cgroup_version), *others)
    culprits = tuple(Culprit(one.pid, one.name, None) for one in movers)
    return Finding(joined("; ", [*told, moving] if moving else told), evidence, fixes, culprits)


def _share(proc: ProcFacts) -> float:
    return proc.state.fractions.get("disk", 0.0)


def _locked(job: WalkedJob) -> float | None:
    locked = sum(worker.kinds.get("lock", 0.0) for worker in job.workers)
    return locked / len(job.workers) if locked and owners.reads_at_limit(job) else None


def movers_of(job: WalkedJob, facts: WalkedFacts, rate: float) -> list[Mover]:
    """Processes that keep the disk busy or use up the limit of the job's cgroup, each moving at least half as much as the job reads."""
    busiest, limit = facts.host.disk_busy, job.limits.read_limit
    if limit is not None and (limit.bytes_per_s is None or rate >= policy.HALF * limit.bytes_per_s):
        return []
    if limit is None and busiest is not None and busiest[1] < policy.HALF:
        return []
    own = {one.pid for one in job.members}
    return [one for one in facts.movers if one.bytes_per_s >= policy.HALF * rate and one.pid not in own][:NAMED]


def _writes(job: WalkedJob, facts: WalkedFacts) -> bool:
    """True if the trainer waits for its writes, as far as known; with workers it seldom reads itself."""
    read, written = job.trainer.read_bytes_per_s or 0.0, job.trainer.write_bytes_per_s or 0.0
    return "disk" not in programs_wait(job, facts) and (written > read or (bool(job.workers) and written == read))


def after_others(movers: list[Mover]) -> list[Fix]:
    """The fix that lets others wait for the disk."""
    names = joined(", ", (filled("{} ({})", one.name, one.pid) for one in movers))
    text = filled("Let {} have the disk only when no other process wants it (bfq and mq-deadline heed this)", names)
    return [Fix(text, filled("ionice -c 3 -p {:pids}", [one.pid for one in movers]))] if movers else []


def lifting(limit: ReadLimit | None, version: int) -> list[Fix]:
    """The fix that lifts the limit of a control group on reads. ``version``: of control groups."""
    if limit is None:
        return []
    text, device = filled("Lift the limit of cgroup {}", limit.path), _DEVICE.fullmatch(limit.device)
    if device is None:
        return [Fix(text)]
    numbers, in_bytes = map(int, device.groups()), limit.bytes_per_s is not None
    if version == 1:
        name = "blkio.throttle.read_bps_device" if in_bytes else "blkio.throttle.read_iops_device"
        return [Fix(text, filled("echo '{:d}:{:d} 0' > {:file}", *numbers, shell.cgroup_file(1, "blkio", limit.path, name)))]
    file = shell.cgroup_file(version, "blkio", limit.path, "io.max")
    return [Fix(text, filled("echo '{:d}:{:d} r{:own}=max' > {:file}", *numbers, "bps" if in_bytes else "iops", file))]


def _write_less(pid: int) -> list[Fix]:
    text = "Write logs, samples and databases from a background thread, without an fsync or a commit after every step"
    return [Fix("See which files it writes", filled("ls -l /proc/{:pid}/fd", pid), look=True), Fix(text)]


def _read_faster(job: WalkedJob, facts: WalkedFacts, procs: list[ProcFacts], pid: int) -> list[Fix]:
    """Fixes for slow reads. Under a limit more reads at once are no faster, and a trainer with workers reads one piece after another."""
    fixes = [
        Fix("See which files they read", filled("ls -l /proc/{:pid}/fd", pid), look=True),
        *advice.fixes(advice.loading(job, facts).stored),
    ]
    alone = bool(job.workers) and job.trainer in procs
    return fixes if alone or job.limits.read_limit is not None else [*fixes, *advice.in_flight(job, facts)]


def _allowed(limit: ReadLimit) -> str:
    return _per_s(limit.bytes_per_s) if limit.bytes_per_s is not None else f"{limit.ios_per_s} times a second"


def _per_s(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:.1f} MB/s"


JUDGE = Judge("disk-io", "input-bound", _tell, rows=(("disk", "main"), ("disk", "worker")), part=_part)
