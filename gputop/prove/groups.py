"""Control groups as an experiment needs them: the group of a process, its other members, and the group that divides CPU time between two
processes."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from functools import cached_property

from msgspec import Struct

from gputop.model.machine import parse_cpus
from gputop.sources.cgroup import ControllerPath, Mount, mounts
from gputop.sources.files import read_list, read_once, read_text
from gputop.sources.parse import cgroups
from gputop.system.privilege import in_initial_pid_namespace
from gputop.system.text import clean

CPUSETS = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")  # of v2, v1, old v1
MOST_MEMBERS = 4096  # processes of a group, and groups below it, that are looked at: a larger one is shared by many
_LIST_BYTES = 1 << 17  # of cgroup.procs: more than `MOST_MEMBERS`
_TGID = b"Tgid:"  # line of /proc/TID/status: the process of a thread


class ReachUnknown(OSError):
    """Raised if not all processes that a change reaches can be named: the change is not made."""


class Between(Struct, frozen=True):
    """The group that divides CPU time between a job and another process, which is in the group without the job."""

    folder: str  # the highest group that only these processes are in
    is_neighbour: bool  # of the job's group, or of one above that: its weight decides; else only a quota of its own does


class Groups:
    """The hierarchies mounted under ``root``."""

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/") + "/"

    @cached_property
    def _mounts(self) -> dict[str, Mount]:
        return mounts(f"{self._root}proc/self/mountinfo", self._root)

    def place(self, pid: int, controller: str) -> ControllerPath | None:
        """The group of a process in the hierarchy of a controller, and those above it; None if that is not visible from here."""
        paths = cgroups(read_once(f"{self._root}proc/{pid}/cgroup", 8192) or b"")
        name = controller if controller in paths and controller in self._mounts else ""
        mount = self._mounts.get(name)
        folder = mount.folder(paths[name]) if mount is not None and name in paths else None
        return ControllerPath(mount, mount.up(folder)) if mount is not None and folder is not None else None

    def cpus(self, pid: int) -> frozenset[int]:
        """The CPUs that a process's cpuset gives it, as far as they are online."""
        place = self.place(pid, "cpuset")
        folder = place.folders[0] if place is not None else ""
        found = next((text for name in CPUSETS if folder and (text := content(folder, name))), "")
        return parse_cpus(found) if found else self.online

    @cached_property
    def online(self) -> frozenset[int]:
        """The CPUs of this machine."""
        return parse_cpus(read_text(self._root, "sys/devices/system/cpu/online").strip())

    def between(self, pids: Collection[int], one: ControllerPath, job: ControllerPath) -> Between | None:
        """The group of ``one`` that no others than ``pids`` are in; None if others are, or it is above the job's own."""
        shared = set(job.folders)
        apart = [folder for folder in one.folders if folder not in shared]  # from below
        for folder in reversed(apart):
            with suppress(ReachUnknown):
                inside = members(folder)
                if inside and inside <= set(pids):
                    return Between(folder, folder == apart[-1])
        return None


def is_apart(one: ControllerPath | None, job: ControllerPath | None) -> bool:
    """True if a process is in a group that the job is not below: its own priority counts only inside that."""
    return one is not None and job is not None and one.folders[0] not in job.folders


def members(folder: str) -> set[int]:
    """Pids in a group and in those below it. Raises Unseen if there are too many, or some cannot be seen from here."""
    if os.path.isdir(folder) and not os.path.exists(f"{folder}/cgroup.controllers") and not in_initial_pid_namespace():
        raise ReachUnknown(
            f"cgroup {clean(folder)} may have processes that cgroup v1 does not show in a container: run gputop prove on the host"
        )
    found: set[int] = set()
    for count, (path, _folders, _files) in enumerate(os.walk(folder, onerror=_refuse)):
        found |= _members_of(path)
        if count + len(found) > MOST_MEMBERS:
            raise ReachUnknown(f"cgroup {clean(folder)} has more than {MOST_MEMBERS} processes and groups")
        if 0 in found:  # so the kernel writes a process of another pid namespace
            raise ReachUnknown(f"cgroup {clean(folder)} has processes that cannot be seen from here: run gputop prove on the host")
    return found


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # removed since
        raise ReachUnknown(f"cgroup {clean(str(error.filename))} cannot be looked at: {error.strerror}")


def _members_of(path: str) -> set[int]:
    """Pids in this group alone, without its subgroups. A threaded group (cgroup.type) lists threads only: each counts as its process."""
    data = read_list(f"{path}/cgroup.procs", _LIST_BYTES)
    if data is not None:
        return set(map(int, data.split()))
    data = read_list(f"{path}/cgroup.threads", _LIST_BYTES)
    if data is not None:
        return {pid for tid in map(int, data.split()) if (pid := _process_of(tid)) is not None}
    if os.path.isdir(path):
        raise ReachUnknown(f"the processes of cgroup {clean(path)} cannot be read")
    return set()


def _process_of(tid: int) -> int | None:
    if tid == 0:
        return 0
    lines = (read_once(f"/proc/{tid}/status", 4096) or b"").splitlines()
    return next((int(line[len(_TGID) :]) for line in lines if line.startswith(_TGID)), None)


def path_of(place: ControllerPath, folder: str) -> str:
    """The path of a folder as /proc/PID/cgroup writes it, cleaned: whoever makes a group names it."""
    return clean(place.mount.path(folder))


def content(folder: str, name: str) -> str:
    """Content of a group's file; empty if it has none."""
    return (read_once(f"{folder}/{name}", 4096) or b"").decode("ascii", "replace").strip()


def may_write(path: str) -> bool:
    """True if this process has the right to write a group's file."""
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
