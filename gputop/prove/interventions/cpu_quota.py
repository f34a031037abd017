"""Change: the CPU quota of the job's control group, and of lower quotas above it, is raised to all CPUs
(cgroup-throttle): v1 cpu.cfs_quota_us, v2 cpu.max.

May be kept: yes.
Right needed: to write the groups' files, so root, or groups that were delegated to this user.
Undo: each file gets its old text, the lowest group first: in v1 a group may not have more than the one above it.
"""

from __future__ import annotations

import errno
import os

from gputop.prove.change import FILE, Case, Change, Plan, Refusal, TargetProcess
from gputop.prove.groups import content, path_of
from gputop.prove.interventions import Intervention
from gputop.prove.scene import Scene
from gputop.sources.cgroup import quota

NAME = "cpu-quota"


def _make(case: Case, scene: Scene) -> Plan | Refusal | None:
    job = scene.job()
    if isinstance(job, Refusal):
        return job
    cpus = float(os.cpu_count() or 1)
    changes: dict[str, Change] = {}
    groups: list[str] = []
    for target in (case.trainer, *case.family, *scene.culprits):
        for folder, name in _tight(scene, target, cpus):
            changes.setdefault(folder, _raised(folder, cpus))
            if name not in groups:
                groups.append(name)
    if not changes:
        return Refusal("no quota is visible from here: run gputop prove on the host, outside of the container")
    above_first = sorted(changes.values(), key=lambda change: change.path.count("/"))
    refused = next((told for change in above_first if (told := scene.refuse_file(change.path))), None)
    return refused or scene.planned(Plan(NAME, f"quota of {', '.join(groups)} to {cpus:g} CPUs", tuple(above_first), may_keep=True))


def _tight(scene: Scene, target: TargetProcess, cpus: float) -> list[tuple[str, str]]:
    """(folder, path) of the groups of a process that have a quota of less than all CPUs."""
    place = scene.groups.place(target.pid, "cpu") if scene.living(target) else None
    if place is None:
        return []
    has = [(folder, quota(folder, place.mount.version)) for folder in place.folders]
    return [(folder, path_of(place, folder)) for folder, found in has if found is not None and found[0] < cpus]


def _raised(folder: str, cpus: float) -> Change:
    """Raises FileNotFoundError if the group was removed."""
    if period := content(folder, "cpu.cfs_period_us"):
        return Change(FILE, str(int(cpus * int(period))), path=f"{folder}/cpu.cfs_quota_us")
    period = content(folder, "cpu.max").partition(" ")[2]
    if not period:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return Change(FILE, f"{int(cpus * int(period))} {period}", path=f"{folder}/cpu.max")


INTERVENTION = Intervention(NAME, ("cgroup-throttle",), _make)
