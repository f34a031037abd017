"""Commands that a fix names, made of observed facts: quoted words, CPU lists, files of control groups, and how a process gives way.

The name of a process, a control group, a unit or a device is one word to the shell that a command is pasted into, and no option of
the program that gets it. Numbers stand in a command as they are; every text goes through here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shlex import quote

from gputop.diagnosis.measure.facts import Taker
from gputop.diagnosis.measure.takers import names_of
from gputop.diagnosis.model import Fix
from gputop.model.frame import ProcInfo


def word(text: str) -> str:
    """``text`` as one word."""
    return quote(text)


def operand(text: str) -> str:
    """The same behind a program's options, though it begin like one."""
    return f"-- {quote(text)}" if text.startswith("-") else quote(text)


def kill(pids: Iterable[int], signal: str = "") -> str:
    """``kill -CONT 12 13``; empty where no process is named: to kill, numbers below 1 mean groups and everybody."""
    named = " ".join(str(pid) for pid in pids if pid > 1)
    return f"kill {f'-{signal} ' if signal else ''}{named}" if named else ""


def spell_cpus(cpus: frozenset[int]) -> str:
    """The list of a set of CPUs, runs joined."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def widening(cpus: str, pids: Iterable[int]) -> str:
    """The command that lets all threads of these processes run on a list of CPUs."""
    return f"for p in {' '.join(map(str, pids))}; do taskset -apc {cpus} $p; done"


def holds_group(group: str, path: str) -> bool:
    """Whether ``path`` is ``group`` or below it; all are below the root."""
    return path == group or path.startswith(group.rstrip("/") + "/")


def cgroup_file(version: int, controller: str, group: str, name: str) -> str:
    """The path of a control group's file, quoted for a shell: v1 has a hierarchy for each controller, v2 one for all."""
    return word(f"/sys/fs/cgroup/{controller}{group}/{name}" if version == 1 else f"/sys/fs/cgroup{group}/{name}")


def as_root(command: str) -> str:
    """The command for a user who may not touch other users' processes."""
    return f"sudo sh -c {quote(command)}"


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
    command = by_unit if unit.endswith(_UNITS) else f"echo {value} > {cgroup_file(version, 'cpu', job, file)}"
    return [Fix(f"Or give the job's own cgroup {job} ten times the usual weight", command)]


def _own_group(info: ProcInfo | None, job: ProcInfo) -> str:
    """The cgroup that it has for itself, seen from the job; empty where it is in the job's, in one above that, or in none."""
    if info is None or not info.cgroup or not job.cgroup or info.policy in REAL_TIME:
        return ""
    return "" if holds_group(_group_of(info), _group_of(job)) else _group_of(info)


def _group_of(info: ProcInfo) -> str:
    """In the cpu controller's hierarchy."""
    return info.cpu_cgroup or info.cgroup


def _are_siblings(group: str, job: str) -> bool:
    """What divides CPU time between the two is the weight of ``group`` itself."""
    return holds_group(group.rpartition("/")[0] or "/", job)


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
    return Fix(text, f"echo {value} > {cgroup_file(version, 'cpu', group, file)}")


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
        command = command.format(pids[0])
    else:
        command = f"for pid in {' '.join(pids)}; do {command.format('$pid')}; done"
    others = any(taker.info is not None and taker.info.uid not in (None, job.uid) for taker in takers)
    return Fix(text, as_root(command) if others and job.uid else command)


def _has_own_session(info: ProcInfo | None, job: ProcInfo) -> bool:
    """It shares CPU time with the job as one session with another, or with a cgroup."""
    return info is not None and info.policy not in REAL_TIME and _is_in_session_apart(info, job)


def _is_in_session_apart(info: ProcInfo | None, job: ProcInfo) -> bool:
    """The same, or it would but for its policy."""
    if info is None or not info.session or _group_of(info) not in ("", "/"):
        return False
    return _group_of(job) not in ("", "/") or (job.session != 0 and info.session != job.session)
