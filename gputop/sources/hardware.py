"""The host's slow facts from /proc and /sys: cores, CPU frequency and temperature, network interfaces, file systems.

A thread reads them when the stream begins and twice a minute, never the beat: a sensor on a slow bus takes tens of milliseconds, and
statvfs hangs if a file system does. psutil has these facts, too, from the same files, and would take a tenth of the collector's memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from math import fsum
from threading import Thread

from msgspec.structs import replace

from gputop.model.frame import SECOND_NS, FileSystem, Frame, Hardware, Host, Nic, SourceState
from gputop.sources import Beat, Settings
from gputop.sources.files import Mounted, mounted, read_text
from gputop.system.errors import NO_MORE_THREADS, start_thread
from gputop.system.text import clean

EVERY_NS = 30 * SECOND_NS  # between two readings: temperatures and free space change within minutes; a choice
AFTER_NS = SECOND_NS  # before the first: the first frames need the CPU themselves
LOOK_S = 1.0  # s that a single look (--once) waits in its last tick, where it must: on a busy host, or for a slow sensor
ANSWER_S = 0.3  # s within which all local file systems must report their sizes: they take microseconds unless one hangs
MOST_NICS, MOST_FILE_SYSTEMS = 256, 64  # in a reading; a Kubernetes node has one interface a pod, and hundreds of bind mounts
CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal", "acpitz")  # hwmon chips that measure the CPU, best first
NETWORK_FILE_SYSTEMS = frozenset((
    "nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "ceph", "gpfs", "glusterfs", "fuse.glusterfs", "fuse.juicefs", "fuse.s3fs",
    "fuse.gcsfuse", "fuse.sshfs", "fuse.mountpoint-s3", "9p", "virtiofs", "wekafs", "orangefs", "afs", "pvfs2",
))  # fmt: skip
"""File systems that data sets lie on and that have no disk here."""
_CPUS, _HWMON, _NET = "sys/devices/system/cpu", "sys/class/hwmon", "sys/class/net"
_IS_UP, _CARRIES = 0x1, ("up", "unknown")  # IFF_UP; states of an interface that carries packets, or whose driver reports none
_OF_THE_ROOT = ("/dev/root", "rootfs")  # names that the kernel gives the root's device before /dev is there
_CPU, _POLICY, _SENSOR = re.compile(r"cpu\d+"), re.compile(r"policy\d+"), re.compile(r"temp\d+_input")
_MHZ = re.compile(r"^cpu MHz\s*: *([\d.]+)", re.MULTILINE)
_PACKAGE = re.compile(r"^physical id\s*: *(\d+)\n(?:.+\n)*?cpu cores\s*: *(\d+)", re.MULTILINE)


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
        """Everything may be missing, each with its reason."""
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
        self._found = read_hardware(hung=self._hung)


Hung = dict[str, Thread]  # mount point -> the thread that waits for its statvfs


def read_hardware(root: str = "/", hung: Hung | None = None) -> Hardware:
    """Hardware as the kernel reports it below ``root``. ``hung``: the file systems that did not answer in earlier calls, which are left out
    until they do."""
    missing: dict[str, str] = {}
    cpuinfo = read_text(root, "proc/cpuinfo")
    cores = _cores(root, cpuinfo)
    if not cores:
        missing["cores"] = "the kernel does not report which CPUs share a core"
    mhz, most_mhz = _frequency(root, cpuinfo, missing)
    temp_c, limit_c = _temperature(root, missing)
    return Hardware(
        cores=cores, threads=os.cpu_count(), cpu_mhz=mhz, cpu_max_mhz=most_mhz, cpu_temp_c=temp_c, cpu_temp_limit_c=limit_c,
        nics=_nics(root, missing), file_systems=_file_systems(root, missing, {} if hung is None else hung), missing=missing,
    )  # fmt: skip


def _cores(root: str, cpuinfo: str) -> int | None:
    """Number of sets of CPUs that share a core; without /sys, the cores of all packages."""
    cpus = [name for name in _listed(root, _CPUS) if _CPU.fullmatch(name)]
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second is the first one's name of old
        if shared := {text for cpu in cpus if (text := read_text(root, f"{_CPUS}/{cpu}/topology/{name}"))}:
            return len(shared)
    return sum(map(int, dict(_PACKAGE.findall(cpuinfo)).values())) or None


def _frequency(root: str, cpuinfo: str, missing: dict[str, str]) -> tuple[float | None, float | None]:
    """(now, at most) in MHz, the mean over all CPUs. What /proc/cpuinfo has is measured; cpufreq may have what was asked for."""
    policies = [f"{_CPUS}/cpufreq/{name}" for name in _listed(root, f"{_CPUS}/cpufreq") if _POLICY.fullmatch(name)]
    now = [float(mhz) for mhz in _MHZ.findall(cpuinfo)]
    if policies and len(now) != len(policies):
        khz = (_number(root, f"{path}/scaling_cur_freq") or _number(root, f"{path}/cpuinfo_cur_freq") for path in policies)
        now = [one / 1000 for one in khz if one]
    if not now:
        missing["cpu_mhz"] = missing["cpu_max_mhz"] = "the kernel reports no CPU frequency, as in most virtual machines"
        return None, None
    most = [one / 1000 for path in policies if (one := _number(root, f"{path}/scaling_max_freq"))]
    if not most:
        missing["cpu_max_mhz"] = "the kernel does not scale the CPU frequency here"
    return fsum(now) / len(now), fsum(most) / len(most) if most else None


def _temperature(root: str, missing: dict[str, str]) -> tuple[float | None, float | None]:
    """(now, critical) in °C of the hottest sensor of the CPU."""
    sensors: dict[str, list[tuple[float, str]]] = {}  # chip -> (degrees, path of the sensor without its last word)
    for folder in (f"{_HWMON}/{name}{below}" for name in _listed(root, _HWMON) for below in ("", "/device")):
        chip = read_text(root, f"{folder}/name").strip()
        for name in _listed(root, folder) if chip in CPU_CHIPS else ():
            if _SENSOR.fullmatch(name) and (found := _number(root, f"{folder}/{name}")) is not None:
                sensors.setdefault(chip, []).append((found / 1000, f"{folder}/{name.removesuffix('input')}"))
    hottest = next((max(sensors[chip]) for chip in CPU_CHIPS if chip in sensors), None)
    if hottest is None:
        missing["cpu_temp_c"] = missing["cpu_temp_limit_c"] = "no sensor of the CPU in /sys/class/hwmon, as in most virtual machines"
        return None, None
    critical = _number(root, f"{hottest[1]}crit")
    if not critical:
        missing["cpu_temp_limit_c"] = "the sensor reports no limit"
    return hottest[0], critical / 1000 if critical else None


def _nics(root: str, missing: dict[str, str]) -> list[Nic] | None:
    """Network interfaces except lo; interfaces that are up and have a speed first."""
    try:
        names = os.listdir(f"{root}{_NET}")
    except OSError as error:
        missing["nics"] = (error.strerror or str(error)).lower()
        return None
    found = [one for name in names if name != "lo" and (one := _nic(root, name)) is not None]
    if any(nic.speed_mbit is None for nic in found):
        missing["nics.speed_mbit"] = "the interface is down, or its driver reports none, as in most virtual machines"
    return sorted(found, key=lambda nic: (not nic.is_up, -(nic.speed_mbit or 0), nic.name))[:MOST_NICS]


def _nic(root: str, name: str) -> Nic | None:
    """The interface; None for another file, or if it has just gone."""
    folder = f"{_NET}/{name}"
    mtu = _number(root, f"{folder}/mtu")
    if mtu is None:
        return None
    flags, state = read_text(root, f"{folder}/flags").strip(), read_text(root, f"{folder}/operstate").strip()
    is_up = bool(int(flags, 16) & _IS_UP) and state in _CARRIES if flags else False
    speed = _number(root, f"{folder}/speed") or 0
    return Nic(clean(name), is_up, speed if speed > 0 else None, mtu)


def _file_systems(root: str, missing: dict[str, str], hung: Hung) -> list[FileSystem] | None:
    """File systems of /proc/self/mountinfo: those on a disk here, the root, and network ones; each device once, at its shortest path. None
    if they cannot be listed; the reason is then in ``missing``."""
    on_disks = {line.split()[-1] for line in read_text(root, "proc/filesystems").splitlines() if not line.startswith("nodev")} | {"zfs"}
    mounts = mounted(f"{root}proc/self/mountinfo")
    if not mounts:
        missing["file_systems"] = "/proc/self/mountinfo cannot be read"
        return None
    found: dict[str, FileSystem] = {}
    for one in sorted(mounts, key=lambda one: len(one.point)):
        is_remote, device = one.kind in NETWORK_FILE_SYSTEMS, _device(root, one)
        if (is_remote or one.point == "/" or (one.kind in on_disks and device)) and one.kind != "squashfs":
            found.setdefault(device, FileSystem(one.point, device, one.kind, is_remote))
    listed = list(found.values())[:MOST_FILE_SYSTEMS]
    sizes, reasons = _sizes([one.path for one in listed if not one.is_remote], hung)
    if any(one.is_remote for one in listed):
        reasons.append("not asked of a remote file system: where the server does not answer, that would hang")
    if reasons:
        missing["file_systems.total_bytes"] = missing["file_systems.free_bytes"] = "; ".join(reasons)
    return [replace(one, **sizes[one.path]) if one.path in sizes else one for one in listed]


def _device(root: str, one: Mounted) -> str:
    """The device or export that is mounted; empty where the file system has none."""
    if one.source in _OF_THE_ROOT:
        try:
            return f"/dev/{os.path.basename(os.readlink(f'{root}sys/dev/block/{one.device}'))}"
        except OSError:
            return one.source
    return "" if one.source == "none" else one.source


def _listed(root: str, folder: str) -> list[str]:
    """The names in a folder, in order; none without it."""
    try:
        return sorted(os.listdir(f"{root}{folder}"))
    except OSError:
        return []


def _number(root: str, path: str) -> int | None:
    """The number in a file; None if it cannot be read, as a sensor that does not answer."""
    try:
        return int(read_text(root, path))
    except ValueError:
        return None


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
