"""How to make a process take no CPU time from a job: which of the kernel's weights counts between the two.

The scheduler first divides CPU time between task groups, each process's policy and niceness only within its group (sched(7), "The
autogroup feature"; cgroup-v2.rst, "CPU"). Groups are the cgroups of the cpu controller and, of processes in its root, the sessions.
"""

from __future__ import annotations

from collections.abc import Sequence

from gputop.diagnosis import cgroups
from gputop.diagnosis.facts import Taker
from gputop.diagnosis.model import Fix
from gputop.diagnosis.shell import operand
from gputop.diagnosis.takers import names_of
from gputop.model.frame import ProcInfo

QUOTA_PCT = 20
REAL_TIME = (1, 2, 6)  # policies that come before all others, whatever the groups' weights
_UNITS = (".service", ".scope", ".slice")


def fixes(takers: Sequence[Taker], job: ProcInfo, version: int, autogroup: bool) -> list[Fix]:
    """One for all that yield together: those of a session, and those of one name. ``version`` is that of the job's cgroup hierarchy."""
    found: dict[tuple[str | int, str], list[Taker]] = {}
    for taker in takers:
        group, session = _own_group(taker.info, job), taker.info.session if taker.info is not None else 0
        together = session if autogroup and not group and _has_own_session(taker.info, job) else taker.name
        found.setdefault((together, group), []).append(taker)
    told = [
        _group_yields(alike, group, job, version) if group else _processes_yield(alike, job, autogroup)
        for (_together, group), alike in found.items()
    ]
    return told + _more_for(_group_of(job), {group for _together, group in found}, version)


def _more_for(job: str, groups: set[str], version: int) -> list[Fix]:
    """Weights count between neighbours: instead of theirs that of the job's own group may be changed."""
    parent, _, unit = job.rpartition("/")
    if not unit or not any(group.rpartition("/")[0] == parent for group in groups if group):
        return []
    value, file = ("10240", "cpu.shares") if version == 1 else ("1000", "cpu.weight")
    by_unit = f"systemctl set-property --runtime {operand(unit)} CPUWeight=1000"
    command = by_unit if unit.endswith(_UNITS) else f"echo {value} > {cgroups.file(version, 'cpu', job, file)}"
    return [Fix(f"Or give the job's own cgroup {job} ten times the usual weight", command)]


def _own_group(info: ProcInfo | None, job: ProcInfo) -> str:
    """The cgroup that it has for itself, seen from the job; empty where it is in the job's, in one above that, or in none."""
    if info is None or not info.cgroup or not job.cgroup or info.policy in REAL_TIME:
        return ""
    return "" if cgroups.holds(_group_of(info), _group_of(job)) else _group_of(info)


def _group_of(info: ProcInfo) -> str:
    """In the cpu controller's hierarchy."""
    return info.cpu_cgroup or info.cgroup


def _are_siblings(group: str, job: str) -> bool:
    """What divides CPU time between the two is the weight of ``group`` itself."""
    return cgroups.holds(group.rpartition("/")[0] or "/", job)


def _group_yields(takers: Sequence[Taker], group: str, job: ProcInfo, version: int) -> Fix:
    names, unit = ", ".join(names_of(list(takers))), group.rpartition("/")[2]
    by_weight = _are_siblings(group, _group_of(job))
    text = f"Give {names} the least weight: cgroup {group} has CPU time of its own, whatever its processes' priority"
    if not by_weight:
        text = f"Hold {names} to {QUOTA_PCT}% of a CPU: cgroup {group} has CPU time of its own, whatever its processes' priority"
    if unit.endswith(_UNITS):
        return Fix(text, f"systemctl set-property --runtime {operand(unit)} {'CPUWeight=1' if by_weight else f'CPUQuota={QUOTA_PCT}%'}")
    weight = ("2", "cpu.shares") if version == 1 else ("1", "cpu.weight")
    quota = (str(QUOTA_PCT * 1000), "cpu.cfs_quota_us") if version == 1 else (f"{QUOTA_PCT * 1000} 100000", "cpu.max")
    value, file = weight if by_weight else quota
    return Fix(text, f"echo {value} > {cgroups.file(version, 'cpu', group, file)}")


def _processes_yield(takers: Sequence[Taker], job: ProcInfo, autogroup: bool) -> Fix:
    names = ", ".join(names_of(list(takers)))
    own_session = autogroup and all(_has_own_session(taker.info, job) for taker in takers)
    command = "echo 19 > /proc/{0}/autogroup" if own_session else "chrt --idle --all-tasks --pid 0 {0}"
    text = f"Let {names} run only when nobody else wants the CPU"
    if any(taker.info is not None and taker.info.policy in REAL_TIME for taker in takers):
        if autogroup and all(_is_in_session_apart(taker.info, job) for taker in takers):
            command += " && echo 19 > /proc/{0}/autogroup"  # its session's weight, which counts from then on
        text = f"End the real-time priority of {names}, which comes before all others (or give it a CPU of its own)"
    elif own_session:
        text += ": its session has CPU time of its own, whatever its priority"
    pids = [str(taker.pid) for taker in takers]
    if len(pids) == 1 or own_session:
        return Fix(text, command.format(pids[0]))
    return Fix(text, f"for pid in {' '.join(pids)}; do {command.format('$pid')}; done")


def _has_own_session(info: ProcInfo | None, job: ProcInfo) -> bool:
    """It shares CPU time with the job as one session with another, or with a cgroup."""
    return info is not None and info.policy not in REAL_TIME and _is_in_session_apart(info, job)


def _is_in_session_apart(info: ProcInfo | None, job: ProcInfo) -> bool:
    """The same, or it would but for its policy."""
    if info is None or not info.session or _group_of(info) not in ("", "/"):
        return False
    return _group_of(job) not in ("", "/") or (job.session != 0 and info.session != job.session)
