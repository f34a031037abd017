"""disk-io: workers wait for block I/O, or the trainer itself does between its steps.

What is uninterruptible sleep by the probe or by samples of /proc, unless memory pressure makes it reclaim. A trainer that writes while
its GPU has had nothing to do for `STEPS_S` saves a checkpoint, which is no fault.
"""

from __future__ import annotations

import re

from gputop.diagnosis import shell
from gputop.diagnosis.causes import Finding, Judge
from gputop.diagnosis.facts import Facts, JobFacts, Mover
from gputop.diagnosis.feeders import more_in_flight, programs_wait, who_waits
from gputop.diagnosis.model import Culprit, Evidence, Fix
from gputop.diagnosis.proc import ProcFacts
from gputop.diagnosis.shell import word
from gputop.model.frame import ReadLimit

STEPS_S = 0.5
BUSY, SHARED, NAMED = 0.5, 0.6, 3
"""Share of the window in which the busiest disk works, from which somebody is in the way there; part of its cgroup's limit up to which
somebody else uses the rest; and how many are named."""
AT_LIMIT = 0.8
_DEVICE = re.compile(r"\d+:\d+", re.ASCII)  # as the kernel names a block device: MAJOR:MINOR


def reads_at_limit(job: JobFacts) -> bool:
    """Its workers read all that their cgroup may: who of them waits for a lock in the meantime waits for the one who reads."""
    limit = job.read_limit.bytes_per_s if job.read_limit is not None else None
    return limit is not None and sum(worker.read_bytes_per_s or 0.0 for worker in job.workers) >= AT_LIMIT * limit


def _tell(job: JobFacts, facts: Facts) -> Finding:
    procs, who, share = who_waits(job, facts, "disk", _share)
    writes = job.trainer in procs and _writes(job, facts)
    known = [rate for rate in (proc.read_bytes_per_s for proc in procs) if rate is not None]
    rate = sum(known) or None  # programs read for them, where they do not themselves
    busiest = facts.host.disk_busy
    device = f" from {busiest[0]} ({100 * busiest[1]:.0f}% busy)" if busiest is not None and busiest[1] > 0.1 else ""
    read = "" if rate is None else f", reading {_per_s(rate)}{device}"
    limit = job.read_limit
    if limit is not None:
        read += f"; cgroup {limit.path} may read {_allowed(limit)} from device {limit.device}"
    movers = _movers(job, facts, rate or 0.0)
    if movers:
        read += f"; {', '.join(f'{one.name} ({one.pid}) moves {_per_s(one.bytes_per_s)}' for one in movers)}"
    evidence = (
        Evidence("disk_pct", round(100 * share, 1), "%", f"of the time of {who} in I/O wait"),
        Evidence("lock_pct", _locked_pct(job), "%", "of their time they waited for the one of them who reads"),
        Evidence("read_bytes_per_s", None if rate is None else round(rate), "B/s", "they fetched from storage"),
        Evidence("write_bytes_per_s", round(job.trainer.write_bytes_per_s or 0.0) or None if writes else None, "B/s", "it sent to storage"),
        Evidence("psi_io_pct", None if facts.host.psi_io is None else round(100 * facts.host.psi_io, 1), "%", "PSI io some"),
    )
    pid = max(procs, key=_share).pid
    fixes = (
        *_after(movers),
        *([_lifting(limit, job.cgroup_version)] if limit is not None else []),
        *(_write_less(pid) if writes else _read_faster(job, procs, pid)),
    )
    culprits = tuple(Culprit(one.pid, one.name, None) for one in movers)
    return Finding(f"{who} waited for the disk {100 * share:.0f}% of the time{read}", evidence, fixes, culprits)


def _movers(job: JobFacts, facts: Facts, rate: float) -> list[Mover]:
    """Who else keeps the disk busy, or uses up the limit of the job's cgroup: whoever moves half as much as the job reads."""
    busiest, limit = facts.host.disk_busy, job.read_limit
    if limit is not None and (limit.bytes_per_s is None or rate >= SHARED * limit.bytes_per_s):
        return []
    if limit is None and busiest is not None and busiest[1] < BUSY:
        return []
    return [one for one in facts.movers if one.bytes_per_s >= 0.5 * rate][:NAMED]


def _after(movers: list[Mover]) -> list[Fix]:
    if not movers:
        return []
    names, pids = ", ".join(f"{one.name} ({one.pid})" for one in movers), " ".join(str(one.pid) for one in movers)
    return [Fix(f"Let {names} have the disk only when nobody else wants it (bfq and mq-deadline heed this)", f"ionice -c 3 -p {pids}")]


def _writes(job: JobFacts, facts: Facts) -> bool:
    """The trainer waits for what it writes rather than for what it reads, as far as is known; beside workers it seldom reads itself."""
    read, written = job.trainer.read_bytes_per_s or 0.0, job.trainer.write_bytes_per_s or 0.0
    return "disk" not in programs_wait(job, facts) and (written > read or (bool(job.workers) and written == read))


def _write_less(pid: int) -> list[Fix]:
    text = "Write logs, samples and databases from a thread beside the training, without an fsync or a commit after every step"
    return [Fix("See which files it writes", f"ls -l /proc/{pid}/fd"), Fix(text)]


def _read_faster(job: JobFacts, procs: list[ProcFacts], pid: int) -> list[Fix]:
    """Under a limit more reads at once are no faster, and a trainer beside workers makes one after another."""
    fixes = [
        Fix("See which files they read", f"ls -l /proc/{pid}/fd"),
        Fix("Copy the data set to a faster disk or to memory, or pack many small files into few large ones (WebDataset, tar, LMDB)"),
    ]
    alone = bool(job.workers) and job.trainer in procs
    return fixes if alone or job.read_limit is not None else [*fixes, Fix("Have more reads in flight", more_in_flight(job))]


def _allowed(limit: ReadLimit) -> str:
    return _per_s(limit.bytes_per_s) if limit.bytes_per_s is not None else f"{limit.ios_per_s} times a second"


def _per_s(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:.1f} MB/s"


def _lifting(limit: ReadLimit, version: int) -> Fix:
    rate = "bps" if limit.bytes_per_s is not None else "iops"
    value, name = f"{limit.device} r{rate}=max", "io.max"
    if version == 1:
        value, name = f"{limit.device} 0", f"blkio.throttle.read_{rate}_device"
    command = f"echo {word(value)} > {shell.cgroup_file(version, 'blkio', limit.path, name)}" if _DEVICE.fullmatch(limit.device) else ""
    return Fix(f"Lift the limit of cgroup {limit.path}", command)


def _locked_pct(job: JobFacts) -> float | None:
    locked = sum(worker.kinds.get("lock", 0.0) for worker in job.workers)
    return round(100 * locked / len(job.workers), 1) if locked and reads_at_limit(job) else None


def _share(proc: ProcFacts) -> float:
    return proc.state.fractions.get("disk", 0.0)


JUDGE = Judge(
    "disk-io", "input-bound", _tell, rows=(("disk", "main"), ("disk", "worker"),),
    needs="state of the process; /proc/PID/io for the rates",
)  # fmt: skip
