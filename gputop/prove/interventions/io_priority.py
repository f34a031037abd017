"""Change: culprits, with their threads and descendants, get the I/O class idle: the disk serves them when no other task wants it (disk-io).

May be kept: yes.
Right needed: the same user, and root to give the class realtime back. Only the schedulers bfq and mq-deadline heed it.
Undo: each thread gets its old class and level; one that began since gets its parent's.
"""

from __future__ import annotations

import glob
import os
import stat
from contextlib import suppress

from gputop.prove.change import SETTINGS, Case, Change, Plan, Refusal, named
from gputop.prove.interventions import Intervention
from gputop.prove.scene import Scene
from gputop.sources.files import read_text

NAME = "io-priority"
IDLE = "3 0"  # class and level (ioprio_set(2))
_HEED = ("[bfq]", "[mq-deadline]")  # in /sys/block/DISK/queue/scheduler, the one in use in brackets


def _make(case: Case, scene: Scene) -> Plan | Refusal | None:
    del case
    if not scene.culprits:
        return scene.told("no other process keeps the disk busy: copy the data set to a faster disk or to memory")
    schedulers = _schedulers(_disks_of(scene))
    if not any(word in text for text in schedulers for word in _HEED):
        return Refusal(
            "the disk's scheduler heeds no I/O priorities (`cat /sys/block/*/queue/scheduler`: bfq and mq-deadline do): try --stop"
        )
    for one in scene.culprits:
        with suppress(OSError):
            if os.geteuid() != 0 and SETTINGS["io-priority"].read(one.pid).startswith("1 "):
                return Refusal(f"{one}: only root can give its I/O class, realtime, back: run gputop prove as root (sudo)")
    says = f"{named(scene.culprits)} to idle I/O priority"
    return scene.planned(Plan(NAME, says, tuple(Change("io-priority", IDLE, one) for one in scene.culprits), may_keep=True))


def _disks_of(scene: Scene) -> set[str]:
    """``MAJOR:MINOR`` of the file systems on which culprits have files open."""
    found = set()
    for pid in scene.pids_of(scene.culprits):
        for link in glob.iglob(f"/proc/{pid}/fd/*"):
            with suppress(OSError):
                about = os.stat(link)
                if stat.S_ISREG(about.st_mode):
                    found.add(f"{os.major(about.st_dev)}:{os.minor(about.st_dev)}")
    return found


def _schedulers(disks: set[str]) -> set[str]:
    """Schedulers of these disks (queue/scheduler); of all disks, if one is no disk itself (overlay, btrfs, LVM, RAID)."""
    found = set()
    for disk in disks:
        folder = os.path.realpath(f"/sys/dev/block/{disk}")
        folder = folder if os.path.isdir(f"{folder}/queue") else os.path.dirname(folder)  # of a partition
        text = read_text("/", f"{folder}/queue/scheduler")
        if not text or (os.path.isdir(f"{folder}/slaves") and os.listdir(f"{folder}/slaves")):
            return {read_text("/", path) for path in glob.iglob("/sys/block/*/queue/scheduler")}
        found.add(text)
    return found


INTERVENTION = Intervention(NAME, ("disk-io",), _make)
