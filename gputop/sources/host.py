"""The machine from /proc: CPUs five times a second, the rest about once a second."""

from __future__ import annotations

import os

import msgspec
from msgspec.structs import replace

from gputop.model.frame import CpuSample, DiskSample, Frame, Host, NetSample, Psi, SourceState
from gputop.sources import Beat, Settings, Unavailable
from gputop.sources.files import DescriptorBudget, KeptFile, KeptList, mounted
from gputop.sources.nics import flaps_of
from gputop.sources.parse import NS_PER_CLOCK_TICK

CPU_EVERY_NS = 200_000_000  # ns between two readings of the CPUs
REST_EVERY_NS = 1_000_000_000  # ns between two readings of the rest
MOST_CARRIERS = 256  # names of interfaces that are known; those that come later are not asked for their link
SECTOR_BYTES = 512  # of /proc/diskstats
_OPTIONAL = {
    "pressure/cpu": ("no pressure stall information", "boot with psi=1, where the kernel has CONFIG_PSI"),
    "diskstats": ("no disks", ""),
    "net/dev": ("no network interfaces", ""),
}  # file of /proc -> what is missing without it, and the remedy
_CPU_LISTS = "/sys/devices/system/cpu"
_US = 1000  # ns


class HostSource:
    """/proc/stat, loadavg, meminfo, vmstat, pressure, diskstats, net/dev, net/snmp and the size of /dev/shm.

    ``read`` sets ``frame.host`` in the ticks in which a reading is due.
    """

    name = "host"

    def __init__(self, settings: Settings) -> None:
        root = self._root = settings.root.rstrip("/") + "/"
        pool = DescriptorBudget()
        sizes = {"stat": 1 << 20, "net/snmp": 1 << 13, "meminfo": 1 << 13}
        lists = {"vmstat": 1 << 14, "diskstats": 1 << 18, "net/dev": 1 << 18}
        names = (*sizes, "loadavg", *(f"pressure/{kind}" for kind in ("cpu", "io", "memory")))
        self._files = {name: KeptFile(f"{root}proc/", name, sizes.get(name, 512), pool) for name in names}
        self._files |= {name: KeptList(f"{root}proc/", name, size, pool) for name, size in lists.items()}
        self._whole: dict[str, bool] = {}
        self._carriers: dict[str, bool] = {}
        self._early_ns = CPU_EVERY_NS if settings.everyone else settings.interval_ns // 2
        self._cpu_due_ns = self._rest_due_ns = 0

    def open(self) -> SourceState:
        """Raises Unavailable without /proc/stat."""
        if not self._text("stat"):
            raise Unavailable(f"{self._root}proc/stat: {self._files['stat'].reason or 'empty'}", "mount -t proc proc /proc")
        missing = [name for name in _OPTIONAL if not self._text(name)]
        reasons = [f"{_OPTIONAL[name][0]}: {self._files[name].reason or 'empty'}" for name in missing]
        remedies = [_OPTIONAL[name][1] for name in missing]
        over = mounted_over(f"{self._root}proc/self/mountinfo")
        if over:
            reasons.append(f"no numbers of single CPUs: {over}")
            remedies.append("run gputop on the host")
        detail = {"cpus": over} if over else {}
        return SourceState(self.name, "partial" if reasons else "ok", "; ".join(reasons), next(iter(remedies), ""), detail)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def read(self, beat: Beat, frame: Frame) -> None:
        """Set ``frame.host`` if a reading is due."""
        host: dict[str, object] = {}
        if beat.key or beat.t_ns + self._early_ns >= self._cpu_due_ns:
            self._cpu_due_ns = beat.t_ns + CPU_EVERY_NS
            host.update(cpu_fields(self._text("stat")))
        if beat.key or beat.t_ns + self._early_ns >= self._rest_due_ns:
            self._rest_due_ns = beat.t_ns + REST_EVERY_NS
            host.update(self._rest())
        if host:
            frame.host = msgspec.structs.replace(Host(beat.t_ns), **host)

    def _rest(self) -> dict[str, object]:
        text = self._text
        return {
            **load_fields(text("loadavg")),
            **memory_fields(text("meminfo")),
            **vm_fields(text("vmstat")),
            "psi": psi(text("pressure/cpu"), text("pressure/io"), text("pressure/memory")),
            "disks": self._disks(text("diskstats")),
            "nets": self._nets(text("net/dev")),
            "tcp_retrans": tcp_retrans(text("net/snmp")),
            **self._shm(),
        }

    def _text(self, name: str) -> bytes:
        try:
            return self._files[name].read()
        except OSError:
            return b""

    def _disks(self, diskstats: bytes) -> list[DiskSample] | None:
        found = disks(diskstats)
        return found and [disk for disk in found if self._is_whole(disk.name)]

    def _nets(self, dev: bytes) -> list[NetSample] | None:
        found = nets(dev)
        return found and [replace(net, flaps=flaps_of(self._root, net.name)) if self._has_carrier(net.name) else net for net in found]

    def _has_carrier(self, name: str) -> bool:
        """True if the interface is hardware, at whose link something can happen: not a bridge, nor one of a container."""
        known = self._carriers.get(name)
        if known is None:
            known = self._carriers[name] = (
                len(self._carriers) < MOST_CARRIERS and "/" not in name and os.path.exists(f"{self._root}sys/class/net/{name}/device")
            )  # fmt: skip
        return known

    def _is_whole(self, name: str) -> bool:
        """True if the name means a whole disk: not a partition, nor a loop or RAM device (its backing disk counts that I/O)."""
        whole = self._whole.get(name)
        if whole is None:
            below = name.startswith(("loop", "ram"))
            whole = self._whole[name] = not below and os.path.exists(f"{self._root}sys/block/{name.replace('/', '!')}")
        return whole

    def _shm(self) -> dict[str, object]:
        """Size of /dev/shm, where DataLoader workers put their batches."""
        try:
            shm = os.statvfs(self._root + "dev/shm")
        except OSError:
            return {}
        return {"shm_total_bytes": shm.f_blocks * shm.f_frsize, "shm_free_bytes": shm.f_bfree * shm.f_frsize}


def mounted_over(mountinfo: str) -> str:
    """The file system mounted over /proc/stat or the list of CPUs; empty without one. ``mountinfo``: path of the file.

    lxcfs (LXC, Proxmox) numbers a container's CPUs from 0, while Cpus_allowed and /proc/PID/stat use the kernel's numbers.
    """
    for one in mounted(mountinfo):
        if one.point == "/proc/stat" or (one.kind == "fuse.lxcfs" and one.point.startswith(_CPU_LISTS)):
            return f"{one.point} is mounted over ({one.kind}), so its CPUs need not have the kernel's numbers"
    return ""


def cpu_fields(stat: bytes) -> dict[str, object]:
    """/proc/stat: ``cpus``, ``ctxt``, ``procs_running``. User time includes guests and nice."""
    cpus: list[CpuSample] = []
    found: dict[str, object] = {}
    for line in stat.split(b"\n")[:-1]:  # the last line is empty or cut
        if line.startswith(b"cpu") and line[3:4].isdigit():
            cpus.append(_cpu(line.split()))
        elif line.startswith((b"ctxt ", b"procs_running ")):
            name, _, value = line.partition(b" ")
            found[name.decode()] = int(value)
    return {**found, "cpus": cpus} if cpus else found


def _cpu(words: list[bytes]) -> CpuSample:
    user, nice, system, idle, iowait, irq, softirq, steal = (int(word) * NS_PER_CLOCK_TICK for word in words[1:9])
    return CpuSample(
        cpu=int(words[0][3:]), user_ns=user + nice, system_ns=system, idle_ns=idle, iowait_ns=iowait, irq_ns=irq + softirq, steal_ns=steal
    )


def load_fields(loadavg: bytes) -> dict[str, object]:
    """/proc/loadavg: ``load1``."""
    return {"load1": float(loadavg.split()[0])} if loadavg else {}


_MEMINFO = {
    b"MemTotal": "mem_total_bytes", b"MemAvailable": "mem_available_bytes", b"Cached": "mem_cached_bytes",
    b"SwapTotal": "swap_total_bytes", b"SwapFree": "swap_free_bytes",
}  # fmt: skip


def memory_fields(meminfo: bytes) -> dict[str, object]:
    """/proc/meminfo in bytes."""
    found: dict[str, object] = {}
    for line in meminfo.split(b"\n"):
        name, _, value = line.partition(b":")
        if name in _MEMINFO:
            found[_MEMINFO[name]] = int(value.split()[0]) * 1024
    return found


_VMSTAT = (b"pswpin", b"pswpout", b"pgmajfault", b"pgscan_direct")


def vm_fields(vmstat: bytes) -> dict[str, object]:
    """/proc/vmstat. ``allocstall`` is summed over zones; ``refaults`` and ``pgscan`` over kinds of pages since 5.9 and 5.8."""
    found: dict[str, int] = {}
    for line in vmstat.split(b"\n"):
        name, _, value = line.partition(b" ")
        if name in _VMSTAT:
            found[name.decode()] = int(value)
        elif name.startswith(b"allocstall"):
            found["allocstall"] = found.get("allocstall", 0) + int(value)
        elif name in (b"workingset_refault", b"workingset_refault_anon", b"workingset_refault_file"):
            found["refaults"] = found.get("refaults", 0) + int(value)
        elif name in (b"pgscan_anon", b"pgscan_file"):
            found["pgscan"] = found.get("pgscan", 0) + int(value)
    return dict(found)


def psi(cpu: bytes, io: bytes, memory: bytes) -> Psi | None:
    """Totals of the three pressure files; None if the kernel lacks them."""
    if not (cpu or io or memory):
        return None
    (cpu_some, _), (io_some, io_full), (memory_some, memory_full) = _pressure(cpu), _pressure(io), _pressure(memory)
    return Psi(cpu_some, io_some, io_full, memory_some, memory_full)


def _pressure(text: bytes) -> tuple[int | None, int | None]:
    """(some, full) in ns."""
    totals: dict[bytes, int] = {}
    for line in text.split(b"\n"):
        kind, _, total = line.partition(b" ")
        if kind:
            totals[kind] = int(total.rpartition(b"total=")[2]) * _US
    return totals.get(b"some"), totals.get(b"full")


def disks(diskstats: bytes) -> list[DiskSample] | None:
    """Every line of /proc/diskstats, partitions too; None if it is empty, as in some containers."""
    if not diskstats:
        return None
    found = []
    for line in diskstats.split(b"\n"):
        f = line.split()
        if len(f) >= 14:
            reads, read_sectors, read_ms, writes, write_sectors, write_ms = (int(f[i]) for i in (3, 5, 6, 7, 9, 10))
            found.append(DiskSample(
                name=f[2].decode("utf-8", "replace"), reads=reads, read_bytes=read_sectors * SECTOR_BYTES, read_ms=read_ms,
                writes=writes, write_bytes=write_sectors * SECTOR_BYTES, write_ms=write_ms, io_ms=int(f[12]),
            ))  # fmt: skip
    return found


def nets(dev: bytes) -> list[NetSample] | None:
    """/proc/net/dev without lo; None if it could not be read."""
    if not dev:
        return None
    found = []
    for line in dev.split(b"\n")[2:]:
        name, colon, counters = line.rpartition(b":")
        f = counters.split()
        if colon and len(f) >= 16 and name.strip() != b"lo":
            rx, tx = [int(number) for number in f[:8]], [int(number) for number in f[8:16]]
            found.append(NetSample(name.strip().decode("utf-8", "replace"), rx[0], tx[0], rx[3], tx[3], rx[2], tx[2]))
    return found


def tcp_retrans(snmp: bytes) -> int | None:
    """RetransSegs of /proc/net/snmp."""
    lines = [line.split() for line in snmp.split(b"\n") if line.startswith(b"Tcp:")]
    if len(lines) != 2 or b"RetransSegs" not in lines[0]:
        return None
    return int(lines[1][lines[0].index(b"RetransSegs")])
