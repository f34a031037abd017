"""What it changes: culprits, with their threads and descendants, get the I/O class idle: the disk serves them when nobody else wants it
(disk-io).

Whether it may be kept: yes.
What right it needs: the same user, and root to give the class realtime back. Only the schedulers bfq and mq-deadline heed it.
How it is undone: each thread gets its old class and level; who began meanwhile gets those of its parent.
"""

from __future__ import annotations

import glob
import os
from contextlib import suppress

from gputop.experiments.change import SETTINGS, Case, Change, Plan, Told, named
from gputop.experiments.interventions import Intervention
from gputop.experiments.scene import Scene
from gputop.sources.files import read_text

NAME = "io-priority"
IDLE = "3 0"  # class and level (ioprio_set(2))
_HEED = ("[bfq]", "[mq-deadline]")  # in /sys/block/DISK/queue/scheduler, the one in use in brackets


def _make(case: Case, scene: Scene) -> Plan | Told | None:
    del case
    if not scene.culprits:
        return scene.told("no other process keeps the disk busy: copy the data set to a faster disk or to memory")
    disks = _disks_of(scene)
    schedulers = {read_text("/", f"sys/dev/block/{disk}/queue/scheduler").strip() for disk in disks}
    schedulers |= {read_text("/", f"sys/dev/block/{disk}/../queue/scheduler").strip() for disk in disks}  # of a partition
    if not any(word in text for text in schedulers for word in _HEED):
        return Told("the disk's scheduler heeds no I/O priorities (`cat /sys/block/*/queue/scheduler`: bfq and mq-deadline do): try --stop")
    for one in scene.culprits:
        with suppress(OSError):
            if os.geteuid() != 0 and SETTINGS["io-priority"].read(one.pid).startswith("1 "):
                return Told(f"{one}: only root can give its I/O class, realtime, back: run gputop prove as root (sudo)")
    says = f"{named(scene.culprits)} to idle I/O priority"
    return scene.planned(Plan(NAME, says, tuple(Change("io-priority", IDLE, one) for one in scene.culprits), may_keep=True))


def _disks_of(scene: Scene) -> set[str]:
    """``MAJOR:MINOR`` of the file systems on which culprits have files open."""
    found = set()
    for pid in scene.pids_of(scene.culprits):
        for link in glob.iglob(f"/proc/{pid}/fd/*"):
            with suppress(OSError):
                number = os.stat(link).st_dev
                found.add(f"{os.major(number)}:{os.minor(number)}")
    return found


INTERVENTION = Intervention(NAME, ("disk-io",), _make)
