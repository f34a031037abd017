"""Change: culprits that fill a control group of their own get its least weight (v1 cpu.shares, v2 cpu.weight), for priorities
count only inside of a group; where the group is no neighbour of the job's, a quota of 1 % of a CPU (cpu-contention, straggler-rank).

May be kept: the weight may, the quota may not.
Right needed: to write the group's file, so root, or a group that was delegated to this user.
Undo: the file gets its old text.
"""

from __future__ import annotations

from gputop.prove.change import FILE, Case, Change, Plan, Refusal, TargetProcess
from gputop.prove.groups import is_apart, path_of
from gputop.prove.interventions import Intervention
from gputop.prove.scene import Scene

NAME = "cpu-weight"
WEIGHTS = {1: ("cpu.shares", "2"), 2: ("cpu.weight", "1")}  # version -> file, and its least value (kernel/sched/core.c)
QUOTAS = {1: ("cpu.cfs_quota_us", "1000"), 2: ("cpu.max", "1000 100000")}  # version -> file, and its least value: 1 ms of a period


def yielding(scene: Scene, target: TargetProcess) -> tuple[Change, str] | Refusal | None:
    """The change that makes a culprit's group give way, and that in words; None if it is in no group apart from the job's."""
    one, job = scene.groups.place(target.pid, "cpu"), scene.groups.place(scene.case.trainer.pid, "cpu")
    if one is None or job is None or not is_apart(one, job):
        return None
    between = scene.groups.between(scene.pids_of(scene.culprits), one, job)
    if between is None:
        return Refusal(
            f"{target} shares cgroup {path_of(one, one.folders[0])} with others, and its priority counts only inside: try --stop"
        )
    name, value = (WEIGHTS if between.is_neighbour else QUOTAS)[one.mount.version]
    path, group = f"{between.folder}/{name}", path_of(one, between.folder)
    says = f"{target} to the least weight (cgroup {group})" if between.is_neighbour else f"{target} to 1 % of a CPU (cgroup {group})"
    return scene.refuse_file(path) or (Change(FILE, value, path=path), says)


def _make(case: Case, scene: Scene) -> Plan | Refusal | None:
    """Plan only if all culprits are in such groups; else `idle_priority` has both."""
    del case
    found = [yielding(scene, one) for one in scene.culprits]
    made = {one[0]: one[1] for one in found if isinstance(one, tuple)}
    if not found or None in found or not made:
        return next((one for one in found if isinstance(one, Refusal)), None)
    keeps = all(change.path.endswith(("cpu.shares", "cpu.weight")) for change in made)
    return scene.planned(Plan(NAME, ", ".join(made.values()), tuple(made), keeps))


INTERVENTION = Intervention(NAME, ("cpu-contention", "straggler-rank"), _make)
