"""What it changes: culprits, with their threads and descendants, get SCHED_IDLE: they run where nobody else wants the CPU (cpu-contention,
straggler-rank). Where autogroup gives their session CPU time of its own it gets the least weight: policies count only inside of it.

Whether it may be kept: yes.
What right it needs: to give it, the same user; to take SCHED_IDLE back, CAP_SYS_NICE or RLIMIT_NICE, so it is not begun without.
How it is undone: policy, priority and SCHED_RESET_ON_FORK of each thread are put back, and the session's weight; who began meanwhile gets
what its parent had.
"""

from __future__ import annotations

import os

from gputop.experiments.change import DEADLINE, IDLE, Case, Change, Plan, Target, Told, autogroup_of, named
from gputop.experiments.interventions import Intervention
from gputop.experiments.interventions.cpu_weight import yielding
from gputop.experiments.scene import Scene, may_raise
from gputop.sources.files import read_text

NAME = "idle-priority"
LEAST = "19"  # niceness of an autogroup (sched(7))
REAL_TIME = (os.SCHED_FIFO, os.SCHED_RR)


def _make(case: Case, scene: Scene) -> Plan | Told | None:
    if not scene.culprits:
        return scene.told(f"{case.cause}: nobody can be put aside")
    changes: list[Change] = []
    idle: list[Target] = []
    says: list[str] = []
    for target in scene.culprits:
        made = yielding(scene, target) or _of_process(scene, target)
        if isinstance(made, Told):
            return made
        if isinstance(made, tuple):
            changes.append(made[0])
            says.append(made[1])
        else:
            changes += made
            idle.append(target)
    if idle:
        says.insert(0, f"{named(idle)} to idle priority")
    keeps = not any(change.path.endswith(("cpu.max", "cpu.cfs_quota_us")) for change in changes)
    return scene.planned(Plan(NAME, ", ".join(says), tuple(dict.fromkeys(changes)), keeps))


def _of_process(scene: Scene, target: Target) -> list[Change] | Told:
    try:
        policy = os.sched_getscheduler(target.pid) & ~os.SCHED_RESET_ON_FORK
        apart = session_apart(scene, target)
        niceness = os.getpriority(os.PRIO_PROCESS, target.pid)
    except OSError:
        return Told(f"{target} has ended")
    if policy == DEADLINE:
        return Told(f"{target} runs with SCHED_DEADLINE, whose parameters are not gputop's to set")
    changes = [] if apart and policy not in REAL_TIME else [Change("policy", IDLE, target)]
    if changes and not may_raise(target.pid, -20 if policy in REAL_TIME else niceness):
        return Told(f"{target}: you may give it idle priority, but only root can take that back: run gputop prove as root (sudo)")
    if apart:
        name, old = autogroup_of(target.pid)
        if name == autogroup_of(os.getpid())[0]:
            return Told(f"{target} shares its terminal's CPU time with gputop (autogroup): run gputop in another terminal")
        if old < 0 and not may_raise(target.pid, old):
            return Told(f"{target}: only root can give its session back the weight that it has: run gputop prove as root (sudo)")
        changes.append(Change("autogroup", LEAST, target))
    return changes


def session_apart(scene: Scene, target: Target) -> bool:
    """Whether its session shares CPU time with the job as one group with another: autogroup, which counts in the root group alone."""
    if read_text("/", "proc/sys/kernel/sched_autogroup_enabled").strip() != "1" or not _in_root(scene, target.pid):
        return False
    trainer = scene.case.trainer.pid
    return not _in_root(scene, trainer) or autogroup_of(target.pid)[0] != autogroup_of(trainer)[0]


def _in_root(scene: Scene, pid: int) -> bool:
    place = scene.groups.place(pid, "cpu")
    return place is None or place.mount.path(place.folders[0]) == "/"


INTERVENTION = Intervention(NAME, ("cpu-contention", "straggler-rank"), _make)
