"""The host's slow facts, read by psutil: cores, CPU frequency and temperature, network interfaces, file systems.

A thread reads them when the stream begins and twice a minute, never the beat: a sensor on a slow bus takes tens of milliseconds, and
statvfs hangs if a file system does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import Thread
from typing import Any

from msgspec.structs import replace

from gputop.model.frame import SECOND_NS, FileSystem, Frame, Hardware, Host, Nic, SourceState
from gputop.sources import Beat, Settings, Unavailable
from gputop.system.errors import NO_MORE_THREADS, start_thread

EVERY_NS = 30 * SECOND_NS  # between two readings: temperatures and free space change within minutes; a choice
AFTER_NS = SECOND_NS  # before the first: importing psutil takes 15 ms of CPU time, which the first frames need themselves
LOOK_S = 1.0  # s that a single look (--once) waits in its last tick, where it must: on a busy host importing psutil alone takes 0.3 s
ANSWER_S = 0.3  # s within which all local file systems must report their sizes: they take microseconds unless one hangs
MOST_NICS, MOST_FILE_SYSTEMS = 256, 64  # in a reading; a Kubernetes node has one interface a pod, and hundreds of bind mounts
FACTS = tuple(name for name in Hardware.__struct_fields__ if name != "missing")
CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal", "acpitz")  # hwmon chips that measure the CPU, best first
NETWORK_FILE_SYSTEMS = frozenset((
    "nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "ceph", "gpfs", "glusterfs", "fuse.glusterfs", "fuse.juicefs", "fuse.s3fs",
    "fuse.gcsfuse", "fuse.sshfs", "fuse.mountpoint-s3", "9p", "virtiofs", "wekafs", "orangefs", "afs", "pvfs2",
))  # fmt: skip
"""File systems that data sets lie on and that have no disk here."""


class HardwareSource:
    """`Frame.host.hardware`, in key frames and when it changes."""

    name = "hardware"

    def __init__(self, settings: Settings) -> None:
        self._is_look = settings.everyone
        self._due_ns = 0
        self._thread: Thread | None = None
        self._found: Hardware | None = None
        self._sent: Hardware | None = None
        self._hung: Hung = {}

    def open(self) -> SourceState:
        """Raises Unavailable without psutil."""
        import importlib.util

        if importlib.util.find_spec("psutil") is None:
            raise Unavailable("psutil is not installed", "install gputop again with its dependencies")
        return SourceState(self.name, "ok")

    def close(self) -> None:
        """Do nothing: no resource is held, and a thread that hangs ends with the program."""

    def read(self, beat: Beat, frame: Frame) -> None:
        """Start a reading that is due, and pass on what the last one found."""
        if not self._due_ns:
            self._due_ns = beat.t_ns + (0 if self._is_look else AFTER_NS)
        if beat.t_ns >= self._due_ns and (self._thread is None or not self._thread.is_alive()):
            self._due_ns = beat.t_ns + EVERY_NS
            self._thread = start_thread(self._read, "hardware") or self._thread
        elif self._is_look and self._thread is not None:
            self._thread.join(LOOK_S)
        if self._found is not None and (beat.key or self._found != self._sent):
            self._sent = self._found
            frame.host = replace(frame.host or Host(beat.t_ns), hardware=self._found)

    def _read(self) -> None:
        self._found = read_hardware(self._hung)


Hung = dict[str, Thread]  # mount point -> the thread that waits for its statvfs


def read_hardware(hung: Hung | None = None) -> Hardware:
    """Hardware as psutil and statvfs report it. ``hung``: the file systems that did not answer in earlier calls, which are left out until
    they do."""
    try:
        import psutil
    except ImportError as error:
        return Hardware(missing=dict.fromkeys(FACTS, f"psutil cannot be loaded: {error}"))
    missing: dict[str, str] = {}
    cores = psutil.cpu_count(logical=False)
    if not cores:
        missing["cores"] = "the kernel does not report which CPUs share a core"
    mhz, most_mhz = _frequency(psutil, missing)
    temp_c, limit_c = _temperature(psutil, missing)
    return Hardware(
        cores=cores, threads=psutil.cpu_count(), cpu_mhz=mhz, cpu_max_mhz=most_mhz, cpu_temp_c=temp_c, cpu_temp_limit_c=limit_c,
        nics=_nics(psutil, missing), file_systems=_file_systems(psutil, missing, {} if hung is None else hung), missing=missing,
    )  # fmt: skip


def _frequency(psutil: Any, missing: dict[str, str]) -> tuple[float | None, float | None]:
    """(now, at most) in MHz, the mean over all CPUs (/sys/devices/system/cpu/cpufreq, else /proc/cpuinfo)."""
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError, ValueError):
        frequency = None
    if frequency is None or not frequency.current:
        missing["cpu_mhz"] = missing["cpu_max_mhz"] = "the kernel reports no CPU frequency, as in most virtual machines"
        return None, None
    if not frequency.max:
        missing["cpu_max_mhz"] = "the kernel does not scale the CPU frequency here"
    return float(frequency.current), float(frequency.max) or None


def _temperature(psutil: Any, missing: dict[str, str]) -> tuple[float | None, float | None]:
    """(now, critical) in °C of the hottest sensor of the CPU (/sys/class/hwmon)."""
    try:
        chips = psutil.sensors_temperatures()
    except (OSError, ValueError):
        chips = {}
    sensors = next((chips[chip] for chip in CPU_CHIPS if chips.get(chip)), None)
    if not sensors:
        missing["cpu_temp_c"] = missing["cpu_temp_limit_c"] = "no sensor of the CPU in /sys/class/hwmon, as in most virtual machines"
        return None, None
    hottest = max(sensors, key=lambda sensor: sensor.current)
    if not hottest.critical:
        missing["cpu_temp_limit_c"] = "the sensor reports no limit"
    return float(hottest.current), float(hottest.critical) if hottest.critical else None


def _nics(psutil: Any, missing: dict[str, str]) -> list[Nic] | None:
    """Network interfaces except lo (SIOCETHTOOL); interfaces that are up and have a speed first."""
    try:
        stats = psutil.net_if_stats()
    except OSError as error:
        missing["nics"] = (error.strerror or str(error)).lower()
        return None
    found = [Nic(name, bool(stat.isup), stat.speed or None, stat.mtu) for name, stat in stats.items() if name != "lo"]
    if any(nic.speed_mbit is None for nic in found):
        missing["nics.speed_mbit"] = "the interface is down, or its driver reports none, as in most virtual machines"
    return sorted(found, key=lambda nic: (not nic.is_up, -(nic.speed_mbit or 0), nic.name))[:MOST_NICS]


def _file_systems(psutil: Any, missing: dict[str, str], hung: Hung) -> list[FileSystem] | None:
    """File systems of /proc/self/mounts: those on a disk here, the root, and network ones; each device once, at its shortest path. None if
    they cannot be listed; the reason is then in ``missing``."""
    try:
        local = {part.mountpoint for part in psutil.disk_partitions(all=False)} | {"/"}
        mounted = psutil.disk_partitions(all=True)
    except OSError as error:
        missing["file_systems"] = (error.strerror or str(error)).lower()
        return None
    found: dict[str, FileSystem] = {}
    for part in sorted(mounted, key=lambda part: len(part.mountpoint)):
        is_remote = part.fstype in NETWORK_FILE_SYSTEMS
        if (is_remote or part.mountpoint in local) and part.fstype != "squashfs":
            found.setdefault(part.device, FileSystem(part.mountpoint, part.device, part.fstype, is_remote))
    listed = list(found.values())[:MOST_FILE_SYSTEMS]
    sizes, reasons = _sizes([one.path for one in listed if not one.is_remote], hung)
    if any(one.is_remote for one in listed):
        reasons.append("not asked of a remote file system: where the server does not answer, that would hang")
    if reasons:
        missing["file_systems.total_bytes"] = missing["file_systems.free_bytes"] = "; ".join(reasons)
    return [replace(one, **sizes[one.path]) if one.path in sizes else one for one in listed]


def _sizes(paths: Sequence[str], hung: Hung) -> tuple[dict[str, dict[str, int | None]], list[str]]:
    """Path -> fields of sizes of local file systems by statvfs, and the reasons for those without.

    Threads ask. One that does not return within `ANSWER_S` is left with its file system, in ``hung``, and another asks the rest.
    """
    for path in [path for path, thread in hung.items() if not thread.is_alive()]:
        del hung[path]
    sizes: dict[str, dict[str, int | None]] = {}
    reasons: dict[str, str] = {}

    def ask(asked: list[str]) -> None:
        for path in asked:
            try:
                told = os.statvfs(path)
            except OSError as error:
                reasons[path] = f"{path}: {(error.strerror or str(error)).lower()}"
            else:
                files = told.f_files - told.f_ffree if told.f_files else None
                sizes[path] = {"total_bytes": told.f_blocks * told.f_frsize, "free_bytes": told.f_bavail * told.f_frsize, "files": files}
            if path in hung:  # it answers at last; the next reading asks it again
                break

    while left := [path for path in paths if path not in {*sizes, *reasons, *hung}]:
        if (thread := start_thread(ask, "statvfs", left)) is None:
            return sizes, [NO_MORE_THREADS]
        thread.join(ANSWER_S)
        if thread.is_alive() and (silent := next((path for path in left if path not in {*sizes, *reasons}), None)):
            hung[silent] = thread
    return sizes, [*reasons.values(), *(f"statvfs of {path} does not return" for path in hung)]
