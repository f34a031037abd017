"""The machine and its cgroups, from /proc and /sys."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated
from zlib import crc32

import msgspec

from gputop.model.stream import BOUNDED


class CpuSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One logical CPU's cumulative times (/proc/stat)."""

    cpu: int
    user_ns: int
    system_ns: int
    idle_ns: int
    iowait_ns: int
    irq_ns: int
    steal_ns: int


class DiskSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One block device, cumulative (/proc/diskstats)."""

    name: str
    reads: int
    read_bytes: int
    read_ms: int
    writes: int
    write_bytes: int
    write_ms: int
    io_ms: int


class NetSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One network interface, cumulative (/proc/net/dev; /sys/class/net/NAME)."""

    name: str
    rx_bytes: int
    tx_bytes: int
    rx_drops: int
    tx_drops: int
    rx_errors: int | None = None
    tx_errors: int | None = None
    flaps: int | None = None  # times that its link was lost (carrier_down_count); None for one without hardware, as a bridge


class RdmaPort(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One port of an RDMA device (/sys/class/infiniband/DEVICE/ports/PORT). What it carries stands in no file of its network interface.

    Counters are cumulative. Which file of which driver each is read from stands in `gputop.sources.nics.COUNTERS`.
    """

    name: str  # device and port: ``mlx5_0/1``
    driver: str = ""  # ``mlx5_core``, ``bnxt_en``, ``hns3``
    link: str = ""  # ``InfiniBand``, or ``Ethernet`` (RoCE, iWARP)
    state: str = ""  # ``ACTIVE``, ``DOWN``, ``INIT`` …
    interface: str = ""  # the network interface on the same port (gid_attrs/ndevs)
    rate_mbit: int | None = None  # of the link
    rx_bytes: int | None = None
    tx_bytes: int | None = None
    rx_packets: int | None = None
    tx_packets: int | None = None
    tx_wait_ticks: int | None = None  # ticks, of the device's own length, in which data waited for room at the other end
    ecn_marked: int | None = None  # packets received that a switch marked as congested
    cnp_sent: int | None = None  # congestion notifications sent to senders
    cnp_received: int | None = None  # congestion notifications received, upon which it sends more slowly
    retrans: int | None = None  # times that it sent again: after a NAK for a gap, or without an acknowledgement in time
    errors: int | None = None  # packets received with an error
    discards: int | None = None  # packets dropped, received or to be sent
    flaps: int | None = None  # times that the link was lost
    recoveries: int | None = None  # times that the link was lost and came back by itself (InfiniBand)
    missing: dict[str, str] = {}  # field -> why it has no value

    @property
    def is_up(self) -> bool:
        """True if it can carry data."""
        return self.state == "ACTIVE"


def nic_subject(name: str) -> int:
    """Subject of the series of a network interface or RDMA port: a number made of its name."""
    return crc32(name.encode("utf-8", "surrogateescape"))


class Psi(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Pressure stall totals, cumulative ns (/proc/pressure/{cpu,io,memory}, or a cgroup's ``*.pressure``)."""

    cpu_some_ns: int | None = None
    io_some_ns: int | None = None
    io_full_ns: int | None = None
    memory_some_ns: int | None = None
    memory_full_ns: int | None = None


class ReadLimit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A cgroup's limit for reading from one device (io.max, or v1's blkio.throttle); None: no limit."""

    path: str
    device: str  # ``major:minor``
    bytes_per_s: int | None = None
    ios_per_s: int | None = None


class CgroupSample(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One cgroup that holds a trainer, a worker or the collector; v1 and v2 in the same fields.

    A limit is the tightest one on the path to the root.
    """

    path: str
    version: int
    quota_cpus: float | None = None  # cpu.max, or cfs_quota/cfs_period, in CPUs; None: no limit
    nr_periods: int | None = None
    nr_throttled: int | None = None
    throttled_ns: int | None = None
    cpuset: str | None = None
    mem_bytes: int | None = None
    mem_limit_bytes: int | None = None
    mem_file_bytes: int | None = None
    refaults: int | None = None
    psi: Psi | None = None
    quota_path: str | None = None  # the ancestor that sets the quota; None if the cgroup itself does
    mem_limit_path: str | None = None
    """The ancestor that sets the memory limit, or v1's path in the memory hierarchy if it differs; None otherwise."""
    read_limit: ReadLimit | None = None


class Nic(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One network interface (SIOCETHTOOL, SIOCGIFFLAGS)."""

    name: str
    is_up: bool = False
    speed_mbit: int | None = None  # speed of the link; None if the driver reports none, as in virtual machines
    mtu: int | None = None


class FileSystem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One mounted file system (/proc/self/mounts, statvfs)."""

    path: str  # mount point
    device: str  # ``/dev/nvme0n1p2``, ``filer:/export``
    kind: str  # ``ext4``, ``nfs4``
    is_remote: bool = False
    total_bytes: int | None = None  # none for a remote one: statvfs could hang
    free_bytes: int | None = None  # free to ordinary users
    files: int | None = None  # inodes in use; none of a remote one, or of one without a table of them, as btrfs


class Hardware(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Slow facts of the host, which change within minutes at most (/proc, /sys)."""

    cores: int | None = None
    threads: int | None = None  # logical CPUs that are online
    cpu_mhz: float | None = None  # mean of all CPUs
    cpu_max_mhz: float | None = None
    cpu_temp_c: float | None = None  # the hottest sensor of the CPU
    cpu_temp_limit_c: float | None = None
    nics: Annotated[list[Nic], BOUNDED] | None = None
    file_systems: Annotated[list[FileSystem], BOUNDED] | None = None
    missing: dict[str, str] = {}  # field -> why it has no value


class Host(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The machine. Cheap parts are read each tick, the rest about once a second; None: not read in this sample."""

    t_ns: int
    cpus: Annotated[list[CpuSample], BOUNDED] | None = None
    ctxt: int | None = None
    procs_running: int | None = None
    load1: float | None = None
    mem_total_bytes: int | None = None
    mem_available_bytes: int | None = None
    mem_cached_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    pswpin: int | None = None
    pswpout: int | None = None
    pgmajfault: int | None = None
    allocstall: int | None = None
    pgscan_direct: int | None = None
    refaults: int | None = None
    psi: Psi | None = None
    disks: Annotated[list[DiskSample], BOUNDED] | None = None
    nets: Annotated[list[NetSample], BOUNDED] | None = None
    tcp_retrans: int | None = None
    cgroups: Annotated[list[CgroupSample], BOUNDED] | None = None
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    pgscan: int | None = None  # pages scanned for reclaim, by a cgroup at its limit too, which `pgscan_direct` leaves out
    hardware: Hardware | None = None
    rdma: Annotated[list[RdmaPort], BOUNDED] | None = None  # empty on a machine without RDMA devices


MOST_LISTED_CPUS = 8192  # NR_CPUS of a kernel at most (arch/x86/Kconfig)
_MOST_LIST = 6 * MOST_LISTED_CPUS  # characters of a list of CPUs


@lru_cache(maxsize=256)
def parse_cpus(text: str) -> frozenset[int]:
    """CPUs of a list such as ``0-3,8``, in ascending order as the kernel writes it; empty for any other text."""
    found: set[int] = set()
    following = 0
    for part in text.split(",") if len(text) <= _MOST_LIST else ():
        first, _dash, last = part.strip().partition("-")
        if first.isdecimal() and (not last or last.isdecimal()) and int(first) >= following:
            following = min(int(last or first), MOST_LISTED_CPUS - 1) + 1
            found.update(range(int(first), following))
    return frozenset(found)
