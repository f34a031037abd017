"""Finds every process that changes reach, with its user, its CPU time and the reason: the user is asked about each in a line.

A change of a process reaches its descendants with the same rights, a change of a session's weight all processes in the session, a change of
a control group's file all members of the group and of the groups below it, of any user.
"""

from __future__ import annotations

import os
import pwd
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from gputop.prove.change import DEVICE, FILE, RUNNING, Change, Reached, TargetProcess, autogroup_of
from gputop.prove.groups import ReachUnknown, members
from gputop.prove.permission import is_own, stage, touchable, why_off_stage
from gputop.prove.processes import CLOCK_TICK_HZ, GONE, Proc, Table, cpu_ticks_of, read_process, uids_of
from gputop.system.text import clean, counted

LOOK_S = 0.3  # s over which the CPU time of reached processes is measured (guess)
_REASONS = {"policy": "idle priority", "io-priority": "idle I/O priority", "autogroup": "the least weight for its session"}


def touched(changes: Iterable[Change], table: Table) -> dict[int, tuple[Proc, str]]:
    """Pid -> (process, why). Raises Unseen if not all can be named."""
    found: dict[int, tuple[Proc, list[str]]] = {}
    for change in changes:
        for proc in _of(change, table):
            reasons = found.setdefault(proc.pid, (proc, []))[1]
            if (why := _reason(change)) not in reasons:
                reasons.append(why)
    return {pid: (proc, ", ".join(reasons)) for pid, (proc, reasons) in found.items()}


def _of(change: Change, table: Table) -> Iterable[Proc]:
    if change.target is None:
        return [proc for pid in sorted(members(os.path.dirname(change.path))) if (proc := _member(pid, table)) is not None]
    root = table.get(change.target.pid)
    if root is None or root.start_ticks != change.target.start_ticks:
        return []
    return _session(root, table) if change.setting == "autogroup" else touchable(table, root)


def _member(pid: int, table: Table) -> Proc | None:
    """A process of a group; None if it has ended. Raises Unseen if it is hidden (/proc with hidepid)."""
    try:
        proc = table.get(pid) or read_process(pid)
    except ProcessLookupError:
        if is_hidden(pid):
            raise ReachUnknown(f"process {pid} cannot be seen by this user: run gputop prove as root (sudo)") from None
        return None
    return None if proc.ended else proc


def is_hidden(pid: int) -> bool:
    """True if the process exists but is another user's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return False  # it has just begun, or ends


def _session(root: Proc, table: Table) -> list[Proc]:
    """Processes that share the weight of a process's session."""
    try:
        name = autogroup_of(root.pid)[0]
    except GONE:
        return []
    found = []
    for proc in table.values():
        with suppress(*GONE):
            if not proc.ended and not proc.kthread and autogroup_of(proc.pid)[0] == name:
                found.append(proc)
    return found


def _reason(change: Change) -> str:
    if change.setting in (FILE, DEVICE):
        folder, name = os.path.split(change.path)
        return f"{name} of its cgroup {clean(folder)} to {change.new}"
    if change.setting == "cpu-mask":
        return f"CPU {change.new} alone" if change.new.isdecimal() else f"CPUs {change.new}"
    if change.setting == "state":
        return "goes on" if change.new == RUNNING else "stopped, for a second at a time"
    return _REASONS.get(change.setting, f"{change.setting} {change.new}")


def reached(changes: Iterable[Change], table: Table, job: Collection[int]) -> tuple[Reached, ...]:
    """Processes that `touched` finds, each with the CPUs that it uses: other users' first, then the busiest. Takes `LOOK_S`. Raises
    Unseen."""
    found = touched(changes, table)
    before, began = {pid: _ticks(proc) for pid, (proc, _why) in found.items()}, time.monotonic()
    time.sleep(LOOK_S if found else 0.0)
    ticks = CLOCK_TICK_HZ * (time.monotonic() - began)
    names: dict[int, str] = {}
    made = []
    for pid, (proc, why) in found.items():
        try:
            uids, is_other = uids_of(pid), not is_own(proc)
        except ProcessLookupError:
            continue
        first, last = before[pid], _ticks(proc)
        cpu = None if first is None or last is None else max(0, last - first) / ticks
        user = "/".join(_user(uid, names) for uid in sorted(uids))
        made.append(Reached(TargetProcess(pid, proc.start_ticks, clean(proc.comm, 64)), user, why, is_other, pid in job, cpu))
    return tuple(sorted(made, key=lambda one: (not one.is_other, one.is_job, -(one.cpu or 0.0), one.target.pid)))


def _ticks(proc: Proc) -> int | None:
    """CPU time of a process and of the children that it has waited for; None if it has ended."""
    try:
        return cpu_ticks_of(proc.pid, proc.start_ticks)
    except ProcessLookupError:
        return None


def _user(uid: int, names: dict[int, str]) -> str:
    if uid not in names:
        try:
            names[uid] = clean(pwd.getpwuid(uid).pw_name, 32)
        except KeyError:
            names[uid] = str(uid)
    return names[uid]


def strangers(changes: Iterable[Change], table: Table, agreed: Mapping[int, int]) -> list[TargetProcess]:
    """Processes that the changes reach though the user has not agreed to them: other users', and in a demo all but the demo's own.

    ``agreed``: pid -> start time. Raises Unseen.
    """
    found, own = [], stage(table)
    for proc, _why in touched(changes, table).values():
        with suppress(ProcessLookupError):
            is_ours = agreed.get(proc.pid) == proc.start_ticks or is_own(proc)
            if not is_ours or why_off_stage(proc.pid, own):
                found.append(TargetProcess(proc.pid, proc.start_ticks, clean(proc.comm, 64)))
    return found


def summed(found: Collection[Reached]) -> str:
    """``5 processes change: 2 of the job, 3 of bob``."""
    counts = Counter("the job" if one.is_job and not one.is_other else one.user for one in found)
    parts = ", ".join(f"{number} of {whose}" for whose, number in counts.most_common())
    return f"{counted(len(found), 'process')} {'changes' if len(found) == 1 else 'change'}: {parts}" if found else ""


def line(one: Reached) -> str:
    """``bob  make (4242)  135 % CPU  idle priority``."""
    cpu = "CPU not measured" if one.cpu is None else f"{100 * one.cpu:.0f} % CPU"
    return f"{one.user}  {one.target}  {cpu}  {one.reason}{'  (the job)' if one.is_job else ''}"
