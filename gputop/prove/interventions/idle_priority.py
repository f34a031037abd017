"""Change: culprits, with their threads and descendants, get SCHED_IDLE: they run where no other task wants the CPU (cpu-contention,
straggler-rank). Where autogroup gives their session CPU time of its own the session gets the least weight: policies count only inside it.
All processes in the session are named then. If some of several culprits cannot give way like that, they are held to one CPU, see `one_cpu`.

May be kept: yes.
Right needed: to give it, the same user; to take SCHED_IDLE back, CAP_SYS_NICE or RLIMIT_NICE, so it is not begun without.
Undo: policy, priority and SCHED_RESET_ON_FORK of each thread are put back, and the session's weight; a thread that began since gets what
its parent had.
"""

from __future__ import annotations

import os
from contextlib import suppress

from gputop.prove.change import DEADLINE, IDLE, Case, Change, Plan, Refusal, TargetProcess, autogroup_of, named
from gputop.prove.interventions import Intervention
from gputop.prove.interventions.cpu_weight import yielding
from gputop.prove.interventions.one_cpu import narrowed
from gputop.prove.processes import read_threads
from gputop.prove.scene import Scene, may_raise
from gputop.sources.files import read_text

NAME = "idle-priority"
LEAST = "19"  # niceness of an autogroup (sched(7))
REAL_TIME = (os.SCHED_FIFO, os.SCHED_RR)


def _make(case: Case, scene: Scene) -> Plan | Refusal | None:
    if not scene.culprits:
        return scene.told(f"{case.cause}: no process can be put aside")
    changes: list[Change] = []
    idle: list[TargetProcess] = []
    says: list[str] = []
    session: list[TargetProcess] = []
    left: list[tuple[TargetProcess, Refusal]] = []
    for target in scene.culprits:
        by_group = yielding(scene, target)
        if isinstance(by_group, tuple):
            changes.append(by_group[0])
            says.append(by_group[1])
            continue
        made = by_group or _of_process(scene, target)
        if isinstance(made, Refusal):
            left.append((target, made))
        else:
            changes += made[0]
            session += made[1]
            idle.append(target)
    if not changes:
        return left[0][1]
    for target, _why in left:
        if narrow := narrowed(scene, target):
            changes.append(narrow)
            says.append(f"{target} to CPU {narrow.new} alone")
    if idle:
        whose = "its session" if len(idle) == 1 else "their sessions"
        beside = f", with the rest of {whose}: {named(tuple(dict.fromkeys(session)))}" if session else ""
        says.insert(0, f"{named(idle)} to idle priority{beside}")
    keeps = not any(change.path.endswith(("cpu.max", "cpu.cfs_quota_us")) for change in changes)
    return scene.planned(Plan(NAME, ", ".join(says), tuple(dict.fromkeys(changes)), keeps))


def _of_process(scene: Scene, target: TargetProcess) -> tuple[list[Change], list[TargetProcess]] | Refusal:
    """(changes of a process, other processes of its session if the session's weight changes)."""
    try:
        policy = os.sched_getscheduler(target.pid) & ~os.SCHED_RESET_ON_FORK
        apart = session_apart(scene, target)
    except OSError:
        return Refusal(f"{target} has ended")
    if policy == DEADLINE:
        return Refusal(f"{target} runs with SCHED_DEADLINE, whose parameters are not gputop's to set")
    changes = [] if apart and policy not in REAL_TIME else [Change("policy", IDLE, target)]
    if changes and not may_raise(target.pid, first_nice(scene, target)):
        return Refusal(f"{target}: you may give it idle priority, but only root can take that back: run gputop prove as root (sudo)")
    session: list[TargetProcess] = []
    if apart:
        name, old = autogroup_of(target.pid)
        if name == autogroup_of(os.getpid())[0]:
            return Refusal(f"{target} shares its terminal's CPU time with gputop (autogroup): run gputop in another terminal")
        rest = scene.rest_of_session(target)
        if isinstance(rest, Refusal):
            return rest
        session = rest
        if old < 0 and not may_raise(target.pid, old):
            return Refusal(f"{target}: only root can give its session back the weight that it has: run gputop prove as root (sudo)")
        changes.append(Change("autogroup", LEAST, target))
    return changes, session


def first_nice(scene: Scene, target: TargetProcess) -> int:
    """The lowest niceness of its threads and descendants; -20 if one has a real-time policy."""
    lowest = 19
    for pid in scene.pids_of([target]):
        for thread in read_threads(pid):
            with suppress(OSError):
                is_first = os.sched_getscheduler(thread.pid) & ~os.SCHED_RESET_ON_FORK in REAL_TIME
                lowest = min(lowest, -20 if is_first else os.getpriority(os.PRIO_PROCESS, thread.pid))
    return lowest


def session_apart(scene: Scene, target: TargetProcess) -> bool:
    """True if autogroup, which counts in the root group alone, gives the process's session CPU time as one group."""
    if read_text("/", "proc/sys/kernel/sched_autogroup_enabled").strip() != "1" or not _in_root(scene, target.pid):
        return False
    name, trainer = autogroup_of(target.pid)[0], scene.case.trainer.pid
    return name != "" and (not _in_root(scene, trainer) or name != autogroup_of(trainer)[0])


def _in_root(scene: Scene, pid: int) -> bool:
    place = scene.groups.place(pid, "cpu")
    return place is None or place.mount.path(place.folders[0]) == "/"


INTERVENTION = Intervention(NAME, ("cpu-contention", "straggler-rank"), _make)
