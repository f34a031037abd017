"""The host's slow facts, read by psutil: cores, CPU frequency and temperature, network interfaces, file systems.

A thread reads them when the stream begins and twice a minute, never the beat: a sensor on a slow bus takes tens of milliseconds, and a
file system may hang.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from gputop.model.frame import SECOND_NS, FileSystem, Frame, Hardware, Host, Nic, SourceState
from gputop.sources import Beat, Settings, Unavailable

EVERY_NS = 30 * SECOND_NS  # between two readings: temperatures and free space change within minutes; a choice
AFTER_NS = SECOND_NS  # before the first: importing psutil takes 15 ms of CPU time, which the first frames need themselves
LOOK_S = 1.0  # s that a single look (--once) waits in its last tick, where it must: on a busy host importing psutil alone takes 0.3 s
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
        self._thread: threading.Thread | None = None
        self._found: Hardware | None = None
        self._sent: Hardware | None = None
        self._reason = ""

    def open(self) -> SourceState:
        """Raises Unavailable without psutil."""
        import importlib.util

        if importlib.util.find_spec("psutil") is None:
            raise Unavailable("psutil is not installed", "install gputop again with its dependencies")
        return SourceState(self.name, "ok")

    def close(self) -> None:
        """Nothing is held; a thread that hangs ends with the program."""

    def read(self, beat: Beat, frame: Frame) -> None:
        """Start a reading that is due, and pass on what the last one found."""
        if not self._due_ns:
            self._due_ns = beat.t_ns + (0 if self._is_look else AFTER_NS)
        if beat.t_ns >= self._due_ns and (self._thread is None or not self._thread.is_alive()):
            self._due_ns = beat.t_ns + EVERY_NS
            self._start()
        elif self._is_look and self._thread is not None:
            self._thread.join(LOOK_S)
        if self._found is not None and (beat.key or self._found != self._sent):
            self._sent = self._found
            frame.host = replace(frame.host or Host(beat.t_ns), hardware=self._found)

    def _start(self) -> None:
        thread = threading.Thread(target=self._read, daemon=True, name="hardware")
        with suppress(RuntimeError):  # no more threads are allowed now: it is tried again
            thread.start()
            self._thread = thread

    def _read(self) -> None:
        for found in read_hardware():
            self._found = found


def read_hardware() -> Iterator[Hardware]:
    """What psutil tells; then the same with the sizes of local file systems, which can hang."""
    try:
        import psutil
    except ImportError as error:
        yield Hardware(missing=dict.fromkeys(FACTS, f"psutil cannot be loaded: {error}"))
        return
    missing: dict[str, str] = {}
    cores = psutil.cpu_count(logical=False)
    if not cores:
        missing["cores"] = "the kernel does not tell which CPUs share a core"
    mhz, most_mhz = _frequency(psutil, missing)
    temp_c, limit_c = _temperature(psutil, missing)
    found = Hardware(
        cores=cores, threads=psutil.cpu_count(), cpu_mhz=mhz, cpu_max_mhz=most_mhz, cpu_temp_c=temp_c, cpu_temp_limit_c=limit_c,
        nics=_nics(psutil, missing), file_systems=_file_systems(psutil, missing), missing=missing,
    )  # fmt: skip
    yield found
    if found.file_systems:
        yield replace(found, file_systems=[_with_sizes(one) for one in found.file_systems])


def _frequency(psutil: Any, missing: dict[str, str]) -> tuple[float | None, float | None]:
    """(now, at most) in MHz, the mean over all CPUs (/sys/devices/system/cpu/cpufreq, else /proc/cpuinfo)."""
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError, ValueError):
        frequency = None
    if frequency is None or not frequency.current:
        missing["cpu_mhz"] = missing["cpu_max_mhz"] = "the kernel tells no CPU frequency, as in most virtual machines"
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
        missing["cpu_temp_limit_c"] = "the sensor tells no limit"
    return float(hottest.current), float(hottest.critical) if hottest.critical else None


def _nics(psutil: Any, missing: dict[str, str]) -> list[Nic] | None:
    """The interfaces but lo (SIOCETHTOOL); those that are up and have a speed first."""
    try:
        stats = psutil.net_if_stats()
    except OSError as error:
        missing["nics"] = (error.strerror or str(error)).lower()
        return None
    found = [Nic(name, bool(stat.isup), stat.speed or None, stat.mtu) for name, stat in stats.items() if name != "lo"]
    if any(nic.speed_mbit is None for nic in found):
        missing["nics.speed_mbit"] = "the interface is down, or its driver tells none, as in most virtual machines"
    return sorted(found, key=lambda nic: (not nic.is_up, -(nic.speed_mbit or 0), nic.name))[:MOST_NICS]


def _file_systems(psutil: Any, missing: dict[str, str]) -> list[FileSystem] | None:
    """Those with a disk here, the root, and those of the network (/proc/self/mounts), each device once, at its shortest path."""
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
    if any(one.is_remote for one in found.values()):
        reason = "not asked of a remote file system: where the server does not answer, that would hang"
        missing["file_systems.total_bytes"] = missing["file_systems.free_bytes"] = reason
    return list(found.values())[:MOST_FILE_SYSTEMS]


def _with_sizes(one: FileSystem) -> FileSystem:
    if one.is_remote:
        return one
    try:
        sizes = os.statvfs(one.path)
    except OSError:
        return one
    return replace(one, total_bytes=sizes.f_blocks * sizes.f_frsize, free_bytes=sizes.f_bavail * sizes.f_frsize)
