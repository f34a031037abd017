"""Change: the read limits of the job's control group, and of the groups above it, are lifted (disk-io): v1
blkio.throttle.read_bps_device and read_iops_device, v2 io.max.

May be kept: yes.
Right needed: to write the groups' files, so root, or groups that were delegated to this user.
Undo: each disk gets its old line.
"""

from __future__ import annotations

import os

from gputop.prove.change import DEVICE, Case, Change, Plan, Refusal
from gputop.prove.groups import path_of
from gputop.prove.interventions import Intervention
from gputop.prove.scene import Scene
from gputop.sources.cgroup import read_limits

NAME = "io-limit"


def _make(case: Case, scene: Scene) -> Plan | Refusal | None:
    job = scene.job()
    if isinstance(job, Refusal):
        return job
    changes: dict[Change, str] = {}
    for target in (case.trainer, *case.family):
        place = scene.groups.place(target.pid, "blkio") if scene.living(target) else None
        for folder in place.folders if place is not None else ():
            for limit in read_limits(folder, place.mount):  # type: ignore[union-attr]
                for file, value in _lifted(folder, limit.device, limit.bytes_per_s is not None, limit.ios_per_s is not None):
                    changes.setdefault(Change(DEVICE, value, path=file), path_of(place, folder))  # type: ignore[arg-type]
    if not changes:
        return None
    refused = next((told for change in changes if (told := scene.refuse_file(change.path))), None)
    says = f"read limit of {', '.join(dict.fromkeys(changes.values()))} lifted"
    return refused or scene.planned(Plan(NAME, says, tuple(changes), may_keep=True))


def _lifted(folder: str, device: str, by_bytes: bool, by_count: bool) -> list[tuple[str, str]]:
    """(file, its new line for the disk)."""
    if os.path.exists(f"{folder}/io.max"):
        return [(f"{folder}/io.max", f"{device} rbps=max riops=max")]
    limited = (("bps", by_bytes), ("iops", by_count))
    return [(f"{folder}/blkio.throttle.read_{unit}_device", f"{device} 0") for unit, has in limited if has]


INTERVENTION = Intervention(NAME, ("disk-io",), _make)
