"""Change: culprits that fill a control group of their own are held to 1 MB/s of each disk that the group has used (disk-io): v1
blkio.throttle, v2 io.max, which every scheduler heeds; io.weight needs bfq or a cost model.

May be kept: no, a weight or the I/O class idle is for that.
Right needed: to write the group's file, so root, or a group that was delegated to this user.
Undo: each disk gets its old line.
"""

from __future__ import annotations

import os

from gputop.prove.change import DEVICE, Case, Change, Plan, Refusal, TargetProcess
from gputop.prove.groups import content, path_of
from gputop.prove.interventions import Intervention
from gputop.prove.scene import Scene

NAME = "io-throttle"
RATE = 1 << 20  # bytes/s that are left to them: a disk-bound training needs a hundred times that (guess)


def _make(case: Case, scene: Scene) -> Plan | Refusal | None:
    del case
    changes: list[Change] = []
    says = []
    for target in scene.culprits:
        made = _of(scene, target)
        if isinstance(made, Refusal):
            return made
        if not made:
            return None
        changes += made
        says.append(f"{target} to 1 MB/s of the disk")
    return scene.planned(Plan(NAME, ", ".join(says), tuple(dict.fromkeys(changes)), may_keep=False)) if changes else None


def _of(scene: Scene, target: TargetProcess) -> list[Change] | Refusal:
    one, job = scene.groups.place(target.pid, "blkio"), scene.groups.place(scene.case.trainer.pid, "blkio")
    between = scene.groups.between(scene.pids_of(scene.culprits), one, job) if one is not None and job is not None else None
    if one is None or between is None:
        return []
    changes = []
    for disk in sorted(_used(between.folder)):
        if os.path.exists(f"{between.folder}/io.max"):
            changes.append(Change(DEVICE, f"{disk} rbps={RATE} wbps={RATE}", path=f"{between.folder}/io.max"))
        else:
            files = (f"{between.folder}/blkio.throttle.{way}_bps_device" for way in ("read", "write"))
            changes += [Change(DEVICE, f"{disk} {RATE}", path=path) for path in files]
    if changes and (told := scene.refuse_file(changes[0].path)):
        return Refusal(f"{target} (cgroup {path_of(one, between.folder)}): {told.reason}")
    return changes


def _used(folder: str) -> set[str]:
    """``MAJOR:MINOR`` of the disks that a group has read from or written to."""
    lines = content(folder, "io.stat") or content(folder, "blkio.throttle.io_service_bytes_recursive")
    lines = lines or content(folder, "blkio.throttle.io_service_bytes")
    return {word for line in lines.splitlines() if ":" in (word := line.split(" ")[0])}


INTERVENTION = Intervention(NAME, ("disk-io",), _make)
