"""CPU quota and throttling, cpuset, memory and pressure of the cgroups of trainers, workers, their feeders and gputop itself.

v1, v2 and hosts that mount both: each controller is read in the hierarchy that has it. In a container the cgroup of another process may
lie outside of what is mounted; it is left out, and the source's state shows it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from gputop.model.frame import CgroupSample, Frame, Host, Psi, ReadLimit, SourceState
from gputop.sources import FEW, Beat, Settings, Unavailable
from gputop.sources.files import DescriptorBudget, ReturningFile, mounted, read_once
from gputop.sources.host import psi
from gputop.sources.parse import cgroups, main_cgroup, text

CPU_EVERY_NS = 200_000_000  # ns between two readings of throttling
REST_EVERY_NS = 1_000_000_000  # ns between two readings of memory, cpuset, quota and pressure
ASK_EVERY_NS, CROWD_EVERY_NS = 2_000_000_000, 4_000_000_000  # ns between two readings of a process's cgroup; with more than `FEW` of them
CGROUPS = 64  # most cgroups read
ASKED = 512  # processes per second that have their cgroup read, longest waiting first; 8 us each (measured)
LEVELS = 32  # levels of a cgroup's path, from below, where limits are read; container runtimes nest five deep (guess)
KEPT = 128  # most files of cgroups that stay open, half of what is left to the rest of the program (`files.RESERVE`)
_MOST_BYTES = 1 << 15  # most bytes of a file
_NO_LIMIT = 1 << 62  # v1 writes "no limit" as the largest multiple of the page size
_REMEDY = "run gputop on the host, or start the container with --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup:ro"


ReadFile = Callable[[str, str], bytes]
"""Reads a file of a cgroup, by its folder and name; empty if it cannot be read."""


class KeptFiles:
    """Files of cgroups, of which the first `KEPT` stay open: to open one takes longer than to read it."""

    def __init__(self) -> None:
        self._kept: dict[str, ReturningFile] = {}
        self._pool = DescriptorBudget(KEPT)

    def read(self, folder: str, name: str) -> bytes:
        """See `ReadFile`."""
        path = f"{folder}/{name}"
        if (kept := self._kept.get(path)) is not None:
            return kept.read()
        file = ReturningFile("", path, _MOST_BYTES, self._pool)
        data = file.read()
        if file.is_kept:
            self._kept[path] = file
        return data

    def close(self) -> None:
        """Close all."""
        while self._kept:
            self._kept.popitem()[1].close()


class Mount(Struct, frozen=True):
    """Mount of a hierarchy, and the top cgroup that it shows."""

    version: int
    point: str
    root: str

    def folder(self, path: str) -> str | None:
        """The folder of the cgroup that /proc/PID/cgroup calls ``path``; None if this mount does not show it."""
        if self.root != "/":
            if path != self.root and not path.startswith(self.root + "/"):
                return None
            path = path[len(self.root) :]
        if ".." in path.split("/"):
            return None
        folder = self.point + path.rstrip("/")
        return folder if os.path.isdir(folder) else None

    def path(self, folder: str) -> str:
        """The path of a cgroup's folder, as /proc/PID/cgroup writes it."""
        return (self.root.rstrip("/") + folder[len(self.point) :]) or "/"

    def up(self, folder: str) -> list[str]:
        """The folder and those above it up to the mount, at most `LEVELS`."""
        folders = [folder]
        while len(folder) > len(self.point) and len(folders) < LEVELS:
            folder = folder.rpartition("/")[0]
            folders.append(folder)
        return folders


def mounts(mountinfo: str, root: str) -> dict[str, Mount]:
    """v1 controller -> its mount; the unified hierarchy has the empty name. ``mountinfo``: path of /proc/self/mountinfo."""
    found: dict[str, Mount] = {}
    for one in mounted(mountinfo):
        if one.kind in ("cgroup", "cgroup2"):
            mount = Mount(2 if one.kind == "cgroup2" else 1, root.rstrip("/") + one.point, one.root)
            for name in [""] if mount.version == 2 else one.options.split(","):
                found.setdefault(name, mount)
    return found


class ControllerPath(Struct, frozen=True):
    """A cgroup in the hierarchy of one controller: its folder, then those above it up to the mount."""

    mount: Mount
    folders: list[str]


class Cgroup(Struct):
    """One cgroup. A controller without a place is not visible from here."""

    path: str
    cpu: ControllerPath
    memory: ControllerPath | None
    cpuset: ControllerPath | None
    io: ControllerPath | None
    read: ReadFile
    quota: tuple[float, str] | None = None  # (CPUs, folder that has the quota) of the tightest quota on the path
    slow: CgroupSample | None = None  # the last reading of what is read once a second

    def sample(self, slowly: bool) -> CgroupSample:
        """Throttling counters are read from the cgroup that has the quota: only there they move."""
        if slowly or self.slow is None:
            self.slow = self._read_slow()
        folder = self.quota[1] if self.quota else self.cpu.folders[0]
        return msgspec.structs.replace(self.slow, **throttling(self.read(folder, "cpu.stat"), self.cpu.mount.version))

    def _read_slow(self) -> CgroupSample:
        mount, own = self.cpu.mount, self.cpu.folders[0]
        self.quota = min((found for folder in self.cpu.folders if (found := quota(folder, mount.version, self.read))), default=None)
        cpus, folder = self.quota or (None, own)
        limits = [limit for folder in self.io.folders for limit in read_limits(folder, self.io.mount, self.read)] if self.io else []
        return CgroupSample(
            self.path, mount.version, quota_cpus=cpus, quota_path=mount.path(folder) if folder != own else None,
            cpuset=_cpuset(self.cpuset.folders[0], self.cpuset.mount.version, self.read) if self.cpuset else None,
            psi=_pressure(own, self.read) if mount.version == 2 else None,
            read_limit=min(limits, key=_tightness, default=None), **self._read_memory(),
        )  # fmt: skip

    def _read_memory(self) -> dict[str, Any]:
        """The tightest limit on the path (memory.high counts: reclaim begins there), and memory, page cache and refaults of its cgroup.

        Without a limit: the values of the process's own cgroup.
        """
        if self.memory is None:
            return {}
        version, read = self.memory.mount.version, self.read
        limits = ((limit, folder) for folder in self.memory.folders if (limit := _memory_limit(folder, version, read)) is not None)
        limit, folder = min(limits, default=(None, self.memory.folders[0]))
        path = self.memory.mount.path(folder)
        where = {"mem_limit_bytes": limit, "mem_limit_path": path if path != self.path else None} if limit is not None else {}
        return _memory(folder, version, read) | where


class CgroupSource:
    """Fills ``frame.host.cgroups`` five times a second; memory, cpuset, quota and pressure are read once a second and restated in between.

    It reads the cgroups of ``beat.hot``, ``beat.wakers`` and ``beat.programs`` after the host source, and adds to that source's `Host`.
    """

    name = "cgroup"

    def __init__(self, settings: Settings) -> None:
        self._root = settings.root.rstrip("/") + "/"
        self._early_ns = CPU_EVERY_NS if settings.everyone else settings.interval_ns // 2
        self._files = KeptFiles()
        self._mounts: dict[str, Mount] = {}
        self._memberships: dict[str, tuple[int, bytes]] = {}  # pid, or "self" -> (when it is read again, content of /proc/PID/cgroup)
        self._groups: dict[bytes, Cgroup | None] = {}  # content of /proc/PID/cgroup -> its group; None if that is not visible
        self._members: frozenset[int] = frozenset()
        self._cpu_due_ns = self._rest_due_ns = 0
        self._state = SourceState(self.name, "ok")

    def open(self) -> SourceState:
        """Raises Unavailable if no hierarchy is mounted."""
        self._mounts = mounts(f"{self._root}proc/self/mountinfo", self._root)
        if not self._mounts:
            raise Unavailable("no cgroup hierarchy is mounted", "mount /sys/fs/cgroup, or run the container with it")
        self._state = SourceState(self.name, "ok", detail={"version": self._version()})
        return self._state

    def _version(self) -> str:
        versions = {mount.version for mount in self._mounts.values()}
        return "hybrid" if len(versions) > 1 else f"v{versions.pop()}"

    def close(self) -> None:
        self._groups.clear()
        self._files.close()

    def read(self, beat: Beat, frame: Frame) -> None:
        """Add the cgroups to ``frame.host`` if they are due."""
        members = beat.hot | beat.wakers | beat.programs
        if not beat.key and beat.t_ns + self._early_ns < self._cpu_due_ns and members == self._members:
            return
        self._cpu_due_ns = beat.t_ns + CPU_EVERY_NS
        slowly = beat.key or beat.t_ns + self._early_ns >= self._rest_due_ns
        if slowly:
            self._rest_due_ns = beat.t_ns + REST_EVERY_NS
        if slowly or members != self._members:
            self._members = members
            self._find(beat)
        samples = {group.path: group.sample(slowly) for group in self._groups.values() if group is not None}
        frame.host = msgspec.structs.replace(frame.host or Host(beat.t_ns), cgroups=list(samples.values()))

    def _find(self, beat: Beat) -> None:
        """Find each process's cgroup, and again later: a running job may be moved into a cgroup with a quota."""
        unread = (0, b"")
        members = sorted(map(str, sorted(self._members)), key=lambda pid: self._memberships.get(pid, unread)[0])
        read = {pid: self._membership(pid, beat.t_ns) for pid in ["self", *members[:ASKED]]}
        self._memberships = read | {pid: self._memberships[pid] for pid in members[ASKED:] if pid in self._memberships}
        wanted = list(dict.fromkeys(data for _, data in self._memberships.values() if data))
        before = self._groups
        self._groups = {data: before.get(data) or self._group(data) for data in wanted[:CGROUPS]}
        if before.keys() - self._groups.keys():  # files of cgroups that nobody is in any more
            self._files.close()
        self._report(beat, len(wanted) - len(self._groups))

    def _membership(self, pid: str, t_ns: int) -> tuple[int, bytes]:
        """The entry of a process in `_memberships`, read again if it is due."""
        due_ns, known = self._memberships.get(pid, (0, b""))
        if t_ns + self._early_ns < due_ns:
            return due_ns, known
        every_ns = ASK_EVERY_NS if len(self._members) <= FEW else CROWD_EVERY_NS
        return t_ns + every_ns, read_once(f"{self._root}proc/{pid}/cgroup", 8192) or known

    def _group(self, data: bytes) -> Cgroup | None:
        paths = cgroups(data)
        cpu, memory, cpuset, io = (self._place(paths, controller) for controller in ("cpu", "memory", "cpuset", "blkio"))
        return Cgroup(main_cgroup(paths), cpu, memory, cpuset, io, self._files.read) if cpu else None

    def _place(self, paths: dict[str, str], controller: str) -> ControllerPath | None:
        """Place of a path in the hierarchy that has the controller; None if that is not visible."""
        name = controller if controller in paths and controller in self._mounts else ""
        mount = self._mounts.get(name)
        folder = mount.folder(paths[name]) if mount is not None and name in paths else None
        return ControllerPath(mount, mount.up(folder)) if mount is not None and folder is not None else None

    def _report(self, beat: Beat, left_out: int) -> None:
        unseen = [main_cgroup(cgroups(data)) for data, group in self._groups.items() if group is None]
        if unseen:
            reason = f"not visible from here: {', '.join(unseen[:3])}{' …' if len(unseen) > 3 else ''}"
            state = SourceState(self.name, "partial", reason, _REMEDY, self._state.detail)
        elif left_out:
            reason = f"{left_out} cgroups are left out: at most {CGROUPS} are read"
            state = SourceState(self.name, "partial", reason, detail=self._state.detail)
        else:
            state = SourceState(self.name, "ok", detail=self._state.detail)
        if state != self._state:
            self._state = state
            beat.changed.append(state)


def _read(folder: str, name: str) -> bytes:
    """See `ReadFile`."""
    return read_once(f"{folder}/{name}", _MOST_BYTES) or b""


def quota(folder: str, version: int, read: ReadFile = _read) -> tuple[float, str] | None:
    """(CPUs, folder) of the cgroup's own quota, None if it has none."""
    if version == 2:
        words = read(folder, "cpu.max").split()
    else:
        words = read(folder, "cpu.cfs_quota_us").split() + read(folder, "cpu.cfs_period_us").split()
    if len(words) != 2 or words[0] in (b"max", b"-1") or int(words[1]) <= 0:
        return None
    return int(words[0]) / int(words[1]), folder


def throttling(stat: bytes, version: int) -> dict[str, int]:
    """cpu.stat: v1 counts throttled time in ns, v2 in us."""
    found = _pairs(stat)
    name, unit = (b"throttled_usec", 1000) if version == 2 else (b"throttled_time", 1)
    fields = {"nr_periods": found.get(b"nr_periods"), "nr_throttled": found.get(b"nr_throttled"), "throttled_ns": found.get(name)}
    return {field: value * (unit if field == "throttled_ns" else 1) for field, value in fields.items() if value is not None}


_MEMORY_USED = {1: "memory.usage_in_bytes", 2: "memory.current"}  # version -> file
_MEMORY_LIMITS = {1: ("memory.limit_in_bytes",), 2: ("memory.max", "memory.high")}
_CPUSETS = {1: ("cpuset.effective_cpus", "cpuset.cpus"), 2: ("cpuset.cpus.effective", "cpuset.cpus")}  # the best file first


def _memory(folder: str, version: int, read: ReadFile) -> dict[str, int]:
    stat = _pairs(read(folder, "memory.stat"))
    found = {
        "mem_bytes": _number(read(folder, _MEMORY_USED[version])),
        "mem_file_bytes": stat.get(b"file", stat.get(b"total_cache")),
        "refaults": refaults(stat),
    }
    return {name: value for name, value in found.items() if value is not None}


def _memory_limit(folder: str, version: int, read: ReadFile) -> int | None:
    """The cgroup's own limit in bytes."""
    limits = (_number(read(folder, name)) for name in _MEMORY_LIMITS[version])
    return min((limit for limit in limits if limit is not None and limit < _NO_LIMIT), default=None)


_READ_LIMITS = {
    1: (("blkio.throttle.read_bps_device", "rbps"), ("blkio.throttle.read_iops_device", "riops")),
    2: (("io.max", ""),),
}  # version -> its files, and the key of a number that has none


def read_limits(folder: str, mount: Mount, read: ReadFile = _read) -> list[ReadLimit]:
    """The cgroup's own read limits, one per device: lines such as ``8:0 rbps=104857 wbps=max riops=max``, in v1 ``8:0 104857``."""
    found: dict[str, dict[str, int]] = {}
    for name, known in _READ_LIMITS[mount.version]:
        for line in text(read(folder, name)).splitlines():
            device, *words = line.split()
            pairs = (word.split("=", 1) if "=" in word else (known, word) for word in words)
            found.setdefault(device, {}).update({key: int(value) for key, value in pairs if value.isdecimal()})
    path = mount.path(folder)
    limits = (ReadLimit(path, device, values.get("rbps"), values.get("riops")) for device, values in found.items())
    return [limit for limit in limits if limit.bytes_per_s is not None or limit.ios_per_s is not None]


def _tightness(limit: ReadLimit) -> tuple[float, float]:
    return limit.bytes_per_s or math.inf, limit.ios_per_s or math.inf


def refaults(stat: dict[bytes, int]) -> int | None:
    """Pages read again after they were evicted: the sum over anonymous and file pages, in v1 including child cgroups."""
    for prefix in (b"total_", b""):
        kinds = [value for name, value in stat.items() if name.startswith(prefix + b"workingset_refault")]
        if kinds:
            return sum(kinds)
    return None


def _cpuset(folder: str, version: int, read: ReadFile) -> str | None:
    for name in _CPUSETS[version]:
        if value := read(folder, name).strip():
            return text(value)
    return None


def _pressure(folder: str, read: ReadFile) -> Psi | None:
    return psi(*(read(folder, f"{kind}.pressure") for kind in ("cpu", "io", "memory")))


def _pairs(data: bytes) -> dict[bytes, int]:
    return {words[0]: int(words[1]) for line in data.splitlines() if len(words := line.split()) == 2}


def _number(data: bytes) -> int | None:
    value = data.strip()
    return int(value) if value.isdigit() else None
