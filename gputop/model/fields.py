"""The registry of series, `SERIES`: id -> title, unit, range, precision, thresholds, refresh interval, source.

Also a GPU's limits, and the host's slow facts, in words.

The screen, the help and the charts read the registry; SQL and exports have columns of their own (`gputop.tables.schema`). What puts a
series into the history stands in `gputop.stream.observers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from gputop.model.board import GpuBoard
from gputop.model.frame import SECOND_NS, FileSystem, Hardware, Nic, RdmaPort
from gputop.system.text import clean, counted

MS, SECOND = 1_000_000, SECOND_NS


class Field(Struct, frozen=True):
    """One series that can be drawn and exported."""

    id: str
    title: str
    unit: str
    low: float = 0.0
    high: float | None = 100.0  # top of the chart; None: the subject's own limit (of power, of a link), else the largest value, rounded up
    digits: int = 0
    warn: float | None = None
    crit: float | None = None
    refresh_ns: int = 0  # ns between two measurements of the source; 0: each tick
    slowest_ns: int = 0  # ns between two measurements of the slowest GPU; 0: all GPUs are alike
    spans_ns: int = 0  # ns before it that a reading is of, where that may be more than a tick: there it is drawn too
    mean_ns: int = 0
    """ns over which the number next to a lane is a mean, because its parts are read in different ticks, or a table has the rate over that
    time; 0: it is the last reading."""
    source: str = ""
    help: str = ""
    lane_rank: int | None = None
    """Priority of the lane of a host's series (subject 0) when the screen has no room for all: 9 first, 0 last. Lanes stand in the order of
    `SERIES`. None: the series has no lane, or `gputop.tui.draw.lanes` decides."""


JOBS_MEMORY = "jobs.memory_gib"
STEPS = "steps.per_s"
RDMA = "rdma.rx_mb_per_s"
NIC = "nic.rx_mb_per_s"
TOKENS, RUNNING, WAITING = "serving.tokens_per_s", "serving.running", "serving.waiting"
KV_USED, FIRST_TOKEN = "serving.kv_used_pct", "serving.first_token_p99_ms"
OF_SERVERS = (TOKENS, WAITING, FIRST_TOKEN, KV_USED, RUNNING)  # in the order of their lanes
_SERVER = "; subject: the engine's topmost process"
SERIES = (
    Field(STEPS, "steps", "/s", high=None, digits=1, refresh_ns=SECOND, slowest_ns=3 * SECOND, source="CUDA calls, or the GPU's rhythm",
          help="training steps that a trainer makes a second, as its diagnosis finds them"),
    Field(TOKENS, "tokens", "/s", high=None, refresh_ns=SECOND, slowest_ns=2 * SECOND, source="the server's metrics",
          help="tokens that an inference server generates a second, over 5 s" + _SERVER),
    Field(WAITING, "queue", "req", high=None, refresh_ns=SECOND, slowest_ns=2 * SECOND, source="the server's metrics",
          help="requests in an inference server's queue" + _SERVER),
    Field(FIRST_TOKEN, "TTFT p99", "ms", high=None, refresh_ns=SECOND, slowest_ns=2 * SECOND, source="the server's metrics",
          help="99th percentile of the time to the first token, of the last 5 s" + _SERVER),
    Field(KV_USED, "KV used", "%", warn=90, crit=97, refresh_ns=SECOND, slowest_ns=2 * SECOND, source="the server's metrics",
          help="share of the memory for keys and values" + _SERVER),
    Field(RUNNING, "running", "req", high=None, refresh_ns=SECOND, slowest_ns=2 * SECOND, source="the server's metrics",
          help="requests that an inference server works on" + _SERVER),
    Field("gpu.util_pct", "util", "%", refresh_ns=167 * MS, slowest_ns=SECOND, source="NVML utilization",
          help="share of time in which a kernel ran or data was copied; not how much of the GPU was used"),
    Field("gpu.gr_active_pct", "GR active", "%", refresh_ns=100 * MS, slowest_ns=200 * MS, source="NVML GPM",
          help="share of time in which any kernel ran, in each tick; copies, which util counts, are left out"),
    Field("gpu.power_w", "power", "W", high=None, source="NVML power",
          help="board power; instantaneous if the GPU supports it, else the driver's average"),
    Field("gpu.sm_active_pct", "SM active", "%", refresh_ns=100 * MS, slowest_ns=200 * MS, source="NVML GPM",
          help="share of SMs with a warp on them"),
    Field("gpu.sm_occupancy_pct", "SM occupancy", "%", refresh_ns=100 * MS, slowest_ns=200 * MS, source="NVML GPM"),
    Field("gpu.tensor_active_pct", "tensor", "%", refresh_ns=100 * MS, slowest_ns=200 * MS, source="NVML GPM"),
    Field("gpu.dram_active_pct", "DRAM", "%", refresh_ns=100 * MS, slowest_ns=200 * MS, source="NVML GPM"),
    Field("gpu.mem_util_pct", "mem util", "%", refresh_ns=167 * MS, slowest_ns=SECOND, source="NVML utilization"),
    Field("gpu.mem_used_pct", "memory", "%", warn=90, crit=97, refresh_ns=200 * MS, source="NVML memory info"),
    Field("gpu.temp_c", "temp", "°C", high=100, warn=80, crit=88, refresh_ns=SECOND, source="NVML temperature"),
    Field("gpu.sm_clock_mhz", "SM clock", "MHz", high=None, refresh_ns=200 * MS, source="NVML clocks"),
    Field("gpu.pcie_rx_mb_per_s", "PCIe rx", "MB/s", high=None, digits=1, refresh_ns=SECOND, mean_ns=SECOND, source="NVML PCIe",
          help="host to GPU"),
    Field("gpu.pcie_tx_mb_per_s", "PCIe tx", "MB/s", high=None, digits=1, refresh_ns=SECOND, mean_ns=SECOND, source="NVML PCIe",
          help="GPU to host"),
    Field("gpu.c2c_rx_mb_per_s", "C2C rx", "MB/s", high=None, digits=1, refresh_ns=SECOND, source="NVML GPM",
          help="Grace CPU to GPU"),
    Field("gpu.c2c_tx_mb_per_s", "C2C tx", "MB/s", high=None, digits=1, refresh_ns=SECOND, source="NVML GPM",
          help="GPU to Grace CPU"),
    Field("gpu.nvlink_mb_per_s", "NVLink", "MB/s", high=None, refresh_ns=SECOND, source="NVML NVLink",
          help="both ways, all links together"),
    Field("mig.util_pct", "MIG util", "%", refresh_ns=SECOND, source="NVML GPM",
          help="share of time in which any kernel ran in a MIG device's GPU instance; subject: 64 × the GPU's index + the device's"),
    Field("sync.p99_ms", "sync p99", "ms", high=None, digits=1, spans_ns=400 * MS, source="uprobes on libcuda",
          help="99th percentile of the trainers' CUDA synchronize calls"),
    Field("runq.p99_ms", "run-queue p99", "ms", high=None, digits=1, warn=5, crit=20, spans_ns=200 * MS, source="sched probe",
          help="99th percentile of the trainers' and workers' waits for a CPU"),
    Field("runq.pct", "run-queue", "%", warn=10, crit=30, source="schedstat",
          help="mean share of time in which main threads of trainers and workers wanted a CPU and had none"),
    Field("offcpu.pct", "off-CPU", "%", source="schedstat",
          help="mean share of time in which main threads of trainers and workers were not on a CPU"),
    Field("switches.per_s", "ctx-switch", "/s", high=None, mean_ns=SECOND, source="status",
          help="context switches of the main threads of trainers and workers"),
    Field("cpu.busy_pct", "host CPU", "%", warn=90, crit=98, spans_ns=200 * MS, source="/proc/stat", help="all CPUs together",
          lane_rank=5),
    Field("psi.cpu_pct", "PSI cpu", "%", warn=20, crit=60, refresh_ns=SECOND, source="/proc/pressure/cpu"),
    Field("psi.io_pct", "PSI io", "%", warn=20, crit=60, refresh_ns=SECOND, source="/proc/pressure/io", lane_rank=8),
    Field("psi.memory_pct", "PSI memory", "%", warn=5, crit=20, refresh_ns=SECOND, source="/proc/pressure/memory", lane_rank=9),
    Field("disk.read_mb_per_s", "disk read", "MB/s", high=None, digits=1, refresh_ns=SECOND, source="/proc/diskstats", lane_rank=9),
    Field(JOBS_MEMORY, "job memory", "GiB", high=None, digits=1, refresh_ns=2 * SECOND, source="/proc/PID/status",
          help="anonymous memory of trainers and workers, less what workers are known to share; drawn where it grows"),
    Field("net.rx_mb_per_s", "net rx", "MB/s", high=None, digits=1, refresh_ns=SECOND, source="/proc/net/dev", lane_rank=9),
    Field(NIC, "NIC rx", "MB/s", high=None, digits=1, refresh_ns=SECOND, source="/proc/net/dev, /sys/class/infiniband",
          help="received by a card over which ranks of a training exchange data, RDMA included"),
    Field(RDMA, "RDMA rx", "MB/s", high=None, digits=1, refresh_ns=SECOND, source="/sys/class/infiniband",
          help="received by all ports of InfiniBand, RoCE and EFA, of which net rx has nothing; drawn on machines that have some"),
)  # fmt: skip

FIELDS: dict[str, Field] = {field.id: field for field in SERIES}

CLOCKS_IDLE = 0x1  # bit of nvmlClocksEventReasons (nvml.h) that is no limit
_THROTTLE = (
    (0x40, "thermal (HW)"), (0x80, "power brake"), (0x8, "HW slowdown"), (0x20, "thermal (SW)"), (0x4, "power cap"),
    (0x10, "sync boost"), (0x2, "app clocks"), (0x100, "display clocks"), (0x200, "board limit"), (0x400, "reliability"),
)  # fmt: skip
"""(bit of nvmlClocksEventReasons, the words people search for), worst first."""
_REMAPS = (("remap_failed", "row remap failed"), ("remap_pending", "row remap pending"))


def throttle_words(mask: int | None) -> list[str]:
    """The names of the bits set in NVML's clocks-event mask, worst first."""
    if mask is None:
        return []
    unnamed = mask & ~(CLOCKS_IDLE | sum(bit for bit, _ in _THROTTLE))
    return [word for bit, word in _THROTTLE if mask & bit] + ([f"reason {unnamed:#x}"] if unnamed else [])


def limits(gpu: GpuBoard) -> list[str] | None:
    """Limits of a GPU, worst first: its `errors`, then why its clocks are held down; None if the driver reports neither."""
    found, mask = errors(gpu), gpu.number("throttle_mask")
    return None if mask is None and not found else found + throttle_words(None if mask is None else int(mask))


def errors(gpu: GpuBoard) -> list[str]:
    """The latest Xid, uncorrected ECC errors since the driver loaded, memory rows that wait for a reset or cannot be replaced, and what is
    wrong with the NVLink fabric."""
    xid, ecc = gpu.number("xid"), gpu.number("ecc_uncorrected")
    found = [f"Xid {xid:.0f}"] if xid is not None else []
    if ecc:
        found.append(f"{ecc:.0f} ECC error{'s' if ecc > 1 else ''}")
    fabric = gpu.text("fabric_health")
    sick = [f"fabric: {clean(fabric, MOST_FABRIC)}"] if fabric not in ("", "healthy") else []
    return found + [word for field, word in _REMAPS if gpu.values.get(field)] + sick


MOST_FABRIC = 80  # characters of what is wrong with the fabric
MOST_SHOWN = 4  # interfaces, and file systems, per line (guess)


def cpu_words(hardware: Hardware) -> str:
    """``16 cores, 32 threads, 2.4 of 3.7 GHz, 71 °C of 100 °C``, without unknown parts."""
    cores = "" if hardware.cores is None else counted(hardware.cores, "core")
    threads = "" if hardware.threads is None else counted(hardware.threads, "thread")
    most = "" if hardware.cpu_max_mhz is None else f" of {hardware.cpu_max_mhz / 1000:.1f}"
    clock = "" if hardware.cpu_mhz is None else f"{hardware.cpu_mhz / 1000:.1f}{most} GHz"
    limit = "" if hardware.cpu_temp_limit_c is None else f" of {hardware.cpu_temp_limit_c:.0f} °C"
    heat = "" if hardware.cpu_temp_c is None else f"{hardware.cpu_temp_c:.0f} °C{limit}"
    return ", ".join(filter(None, (cores, threads, clock, heat)))


def nic_words(hardware: Hardware) -> str:
    """``eth0 25 Gbit/s, ib0 400 Gbit/s, 2 are down``; the name alone if the speed is unknown."""
    nics = hardware.nics or []
    up = [nic for nic in nics if nic.is_up]
    down = len(nics) - len(up)
    more = [f"{len(up) - MOST_SHOWN} more are up"] * (len(up) > MOST_SHOWN) + [f"{down} {'is' if down == 1 else 'are'} down"] * bool(down)
    return ", ".join([*map(_nic, up[:MOST_SHOWN]), *more])


def _nic(nic: Nic) -> str:
    return nic.name if nic.speed_mbit is None else f"{nic.name} {speed_words(nic.speed_mbit)}"


def speed_words(mbit: int) -> str:
    """``25 Gbit/s``, ``100 Mbit/s``."""
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit} Mbit/s"


def rdma_words(ports: Sequence[RdmaPort]) -> str:
    """``mlx5_0/1 400 Gbit/s InfiniBand, bnxt_re0/1 100 Gbit/s Ethernet (eth2), 1 is down``."""
    up = [port for port in ports if port.is_up]
    down = len(ports) - len(up)
    more = [f"{len(up) - MOST_SHOWN} more are up"] * (len(up) > MOST_SHOWN) + [f"{down} {'is' if down == 1 else 'are'} down"] * bool(down)
    return ", ".join([*map(_port, up[:MOST_SHOWN]), *more])


def _port(port: RdmaPort) -> str:
    rate = "" if port.rate_mbit is None else speed_words(port.rate_mbit)
    return " ".join(filter(None, (port.name, rate, port.link, f"({port.interface})" if port.interface else "")))


def file_system_words(hardware: Hardware) -> str:
    """``/ ext4 on /dev/sda2, 83 of 270 GB free; /data nfs4 on filer:/export``."""
    listed = hardware.file_systems or []
    more = [f"{len(listed) - MOST_SHOWN} more"] * (len(listed) > MOST_SHOWN)
    return "; ".join([*map(_file_system, listed[:MOST_SHOWN]), *more])


def _file_system(one: FileSystem) -> str:
    where = f"{one.path} {one.kind} on {one.device}"
    if one.free_bytes is None or one.total_bytes is None:
        return where
    return f"{where}, {one.free_bytes / 1e9:.0f} of {one.total_bytes / 1e9:.0f} GB free"


_LANES = {"cpu.busy_pct": cpu_words, "disk.read_mb_per_s": file_system_words, "net.rx_mb_per_s": nic_words}


def words_of_lane(series: str, host: Mapping[str, object]) -> str:
    """The facts shown next to a series of the host; empty if it has none, or they are not known. ``host``: as on a board."""
    hardware, ports = host.get("hardware"), host.get("rdma")
    if series == RDMA:
        return rdma_words(ports) if isinstance(ports, list) else ""
    return _LANES[series](hardware) if series in _LANES and isinstance(hardware, Hardware) else ""
