"""Commands of fixes, made of observed facts: signals, CPU lists, files of control groups, and lower priority for other processes.

`gputop.findings.sentence` defines what a command may contain, and how a foreign text becomes one word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gputop.diagnosis.facts.facts import Taker
from gputop.diagnosis.facts.takers import names_of
from gputop.findings import policy
from gputop.findings.sentence import Sentence, filled, joined
from gputop.findings.verdict import Fix
from gputop.model.frame import ProcInfo


def kill(pids: Iterable[int]) -> str:
    """``kill 12 13``; empty without a process: for kill, numbers below 1 mean groups and all processes."""
    named = [pid for pid in pids if pid > 1]
    return filled("kill {:targets}", named) if named else ""


def wake(pids: Iterable[int]) -> str:
    """``kill -CONT 12 13``, for stopped processes; empty without a process."""
    named = [pid for pid in pids if pid > 1]
    return filled("kill -CONT {:targets}", named) if named else ""


def spell_cpus(cpus: frozenset[int]) -> str:
    """CPU list of a set of CPUs, with ranges: ``0-3,8``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def divided(wanted: Sequence[float], cpus: int) -> list[int]:
    """Number of CPUs for each of those that want so many, at least one each: nobody gets more than it wants while another lacks some, and
    those that lack some get equally many. What is left over goes to all in turn."""
    given = [1] * len(wanted)
    for _ in range(cpus - len(wanted)):
        lacking = [i for i, want in enumerate(wanted) if given[i] < want]
        given[min(lacking or range(len(wanted)), key=lambda i: given[i])] += 1
    return given


def widening(cpus: str, pids: Sequence[int]) -> str:
    """Command that lets all threads of the processes run on the CPUs of a list."""
    return filled("for p in {:pids}; do taskset -apc {:cpus} $p; done", pids, cpus)


def holds_group(group: str, path: str) -> bool:
    """True if ``path`` is ``group`` or below it; every path is below the root."""
    return path == group or path.startswith(group.rstrip("/") + "/")


def cgroup_file(version: int, controller: str, group: str, name: str) -> Sentence:
    """Path of a control group's file, for a hole ``{:file}``: v1 has a hierarchy for each controller, v2 one for all."""
    if version == 1:
        return filled("/sys/fs/cgroup/{:own}{:group}/{:own}", controller, group, name)
    return filled("/sys/fs/cgroup{:group}/{:own}", group, name)


def as_root(command: str) -> str:
    """The command under sudo, for users without the right to change other users' processes."""
    return filled("sudo sh -c {:quoted}", command)


QUOTA_PCT = 20  # of one CPU, for a cgroup whose weight does not count beside the job's (a choice)
REAL_TIME = (1, 2, 6)  # scheduling policies that precede all others, whatever the groups' weights
_UNITS = (".service", ".scope", ".slice")  # ends of the names of cgroups that are systemd's units


def fixes(takers: Sequence[Taker], job: ProcInfo, version: int, autogroup: bool) -> list[Fix]:
    """Fixes for takers, one for all that yield in the same way: their cgroup, their sessions, or the processes by themselves. What comes
    back is foretold for all of them: one that goes on takes what another leaves. Who took less than half of what the first one did, and has
    another name, has a fix of its own. Those that took most together come first. ``version``: of the job's cgroup hierarchy."""
    most = max((taker.cores for taker in takers), default=0.0)
    first = {taker.name for taker in takers if taker.cores >= policy.HALF * most}
    found: dict[tuple[bool, bool, bool, str], list[Taker]] = {}
    for taker in takers:
        group, is_real_time = _own_group(taker.info, job), taker.info is not None and taker.info.policy in REAL_TIME
        has_session = autogroup and not group and _has_own_session(taker.info, job)
        found.setdefault((taker.name in first, is_real_time, has_session, group), []).append(taker)
    told = [
        _group_yields(alike, group, job, version) if group else _processes_yield(alike, job, autogroup, is_real_time, has_session)
        for (_, is_real_time, has_session, group), alike in sorted(found.items(), key=lambda item: -sum(taker.cores for taker in item[1]))
    ]
    return told + _more_for(_group_of(job), {group for *_, group in found}, version)


def _more_for(job: str, groups: set[str], version: int) -> list[Fix]:
    """Fix that raises the weight of the job's own cgroup instead, if it is a neighbour of ``groups``: weights count between neighbours."""
    parent, _, unit = job.rpartition("/")
    if not unit or not any(group.rpartition("/")[0] == parent for group in groups if group):
        return []
    value, file = (10240, "cpu.shares") if version == 1 else (1000, "cpu.weight")
    by_unit = filled("systemctl set-property --runtime {:operand} CPUWeight=1000", unit)
    command = by_unit if unit.endswith(_UNITS) else filled("echo {:d} > {:file}", value, cgroup_file(version, "cpu", job, file))
    return [Fix(filled("Or give the job's own cgroup {} ten times the usual weight", job), command)]


def _own_group(info: ProcInfo | None, job: ProcInfo) -> str:
    """The process's own cgroup, as seen from the job; empty if it is the job's, one above that, or none."""
    if info is None or not info.cgroup or not job.cgroup or info.policy in REAL_TIME:
        return ""
    return "" if holds_group(_group_of(info), _group_of(job)) else _group_of(info)


def _group_of(info: ProcInfo) -> str:
    """The process's cgroup in the cpu controller's hierarchy."""
    return info.cpu_cgroup or info.cgroup


def _are_siblings(group: str, job: str) -> bool:
    """True if the weight of ``group`` itself divides CPU time between it and the job."""
    return holds_group(group.rpartition("/")[0] or "/", job)


def _group_yields(takers: Sequence[Taker], group: str, job: ProcInfo, version: int) -> Fix:
    names, unit = joined(", ", names_of(list(takers))), group.rpartition("/")[2]
    by_weight = _are_siblings(group, _group_of(job))
    text = filled("Give {} the least weight: cgroup {} has CPU time of its own, whatever its processes' priority", names, group)
    if not by_weight:
        text = filled(
            "Hold {} to {}% of a CPU: cgroup {} has CPU time of its own, whatever its processes' priority", names, QUOTA_PCT, group
        )
    if unit.endswith(_UNITS):
        by_quota = filled("systemctl set-property --runtime {:operand} CPUQuota={:d}%", unit, QUOTA_PCT)
        return Fix(text, filled("systemctl set-property --runtime {:operand} CPUWeight=1", unit) if by_weight else by_quota)
    if by_weight:
        value, file = (2, "cpu.shares") if version == 1 else (1, "cpu.weight")
        return Fix(text, filled("echo {:d} > {:file}", value, cgroup_file(version, "cpu", group, file)))
    if version == 1:
        return Fix(text, filled("echo {:d} > {:file}", QUOTA_PCT * 1000, cgroup_file(1, "cpu", group, "cpu.cfs_quota_us")))
    return Fix(text, filled("echo {:d} 100000 > {:file}", QUOTA_PCT * 1000, cgroup_file(version, "cpu", group, "cpu.max")))


def _processes_yield(takers: Sequence[Taker], job: ProcInfo, autogroup: bool, is_real_time: bool, has_session: bool) -> Fix:
    names = joined(", ", names_of(list(takers)))
    text, weighs = filled("Let {} run only when no other process wants the CPU", names), False
    if is_real_time:
        weighs = autogroup and all(_is_in_session_apart(taker.info, job) for taker in takers)
        text = filled("End the real-time priority of {}, which comes before all others (or give it a CPU of its own)", names)
    sessions = _first_of_each_session(takers) if has_session else []
    if len(sessions) > 1:
        text += ": their sessions have CPU time of their own, whatever their priority"
        command: str = filled("for pid in {:targets}; do echo 19 > /proc/$pid/autogroup; done", sessions)
    elif sessions:
        text += ": its session has CPU time of its own, whatever its priority"
        command = filled("echo 19 > /proc/{:targets}/autogroup", sessions)
    else:
        command = _idling([taker.pid for taker in takers], weighs)
    others = any(taker.info is not None and taker.info.uid not in (None, job.uid) for taker in takers)
    return Fix(text, as_root(command) if others and job.uid else command)


def _first_of_each_session(takers: Sequence[Taker]) -> list[int]:
    first: dict[int, int] = {}
    for taker in takers:
        if taker.info is not None:
            first.setdefault(taker.info.session, taker.pid)
    return [*first.values()]


def _idling(pids: list[int], weighs: bool) -> str:
    """Command that lets the processes run only on idle CPUs. ``weighs``: also lower the weight of their session, which counts from then
    on."""
    if len(pids) > 1:
        each = "chrt --idle --all-tasks --pid 0 $pid" + (" && echo 19 > /proc/$pid/autogroup" if weighs else "")
        return filled("for pid in {:targets}; do {:command}; done", pids, each)
    if weighs:
        return filled("chrt --idle --all-tasks --pid 0 {:targets} && echo 19 > /proc/{:targets}/autogroup", pids, pids)
    return filled("chrt --idle --all-tasks --pid 0 {:targets}", pids)


def _has_own_session(info: ProcInfo | None, job: ProcInfo) -> bool:
    """True if the process shares CPU time with the job as a session of its own (not under a real-time policy)."""
    return info is not None and info.policy not in REAL_TIME and _is_in_session_apart(info, job)


def _is_in_session_apart(info: ProcInfo | None, job: ProcInfo) -> bool:
    """True if the process would share CPU time with the job as a session of its own, whatever its policy."""
    if info is None or not info.session or _group_of(info) not in ("", "/"):
        return False
    return _group_of(job) not in ("", "/") or (job.session != 0 and info.session != job.session)
