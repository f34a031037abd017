"""GPUs, as NVML reports them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from gputop.model.stream import BOUNDED

SILENT = "the driver has not answered for "  # prefix of a reason in `Gpu.missing` while a call hangs; a duration follows
MOST_DEVICES = 64  # MIG devices per GPU that have series of their own; the driver allows seven
PART = "procs."  # prefix of a name in `Gpu.missing`: a field of the processes (``sm_pct``, ``mem_bytes``) or a list (``mps``, ``graphics``)
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,3})?", re.ASCII)
_LANE_BYTES_PER_S = (0.25e9, 0.5e9, 0.985e9, 1.97e9, 3.94e9, 7.56e9)  # PCIe 1 to 6, per lane, one way, without the line code


def silent_s(reason: str) -> float | None:
    """Seconds without an answer of the driver, from a reason of `Gpu.missing`; None for another reason."""
    number, _, unit = reason.removeprefix(SILENT).partition(" ")
    return float(number) if reason.startswith(SILENT) and unit == "s" and _SECONDS.fullmatch(number) else None


def link_bytes_per_s(generation: int, lanes: int) -> float | None:
    """Bytes per second that a PCIe link carries one way; None for an unknown generation or no lanes."""
    return _LANE_BYTES_PER_S[generation - 1] * lanes if 0 < generation <= len(_LANE_BYTES_PER_S) and lanes else None


class GpuProc(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One process on one GPU (NVML's process lists; utilization: nvmlDeviceGetProcessUtilization)."""

    pid: int
    kind: str = "C"  # ``C`` compute, ``G`` graphics, ``M`` a client of MPS; several with ``+``
    mem_bytes: int | None = None
    sm_pct: float | None = None
    mem_pct: float | None = None
    enc_pct: float | None = None
    dec_pct: float | None = None
    gpu_instance: int | None = None  # MIG GPU instance; None without MIG


def forget_parts(missing: dict[str, str]) -> None:
    """Drop the reasons for parts of the process list: a new list brings its own."""
    for name in [name for name in missing if name.startswith(PART)]:
        del missing[name]


def compute_pids(procs: Iterable[GpuProc]) -> frozenset[int]:
    """Pids with a compute context; a process that only draws is left out."""
    return frozenset(proc.pid for proc in procs if "C" in proc.kind)


def sizes_of_contexts(procs: Mapping[int, Iterable[GpuProc]]) -> dict[int, dict[int, int]]:
    """pid -> GPU index -> size class of its context: the bit length of its bytes, so that a few megabytes more change nothing.

    ``procs``: GPU index -> its processes.
    """
    found: dict[int, dict[int, int]] = {}
    for index, listed in procs.items():
        for proc in listed:
            if "C" in proc.kind and proc.mem_bytes is not None:
                found.setdefault(proc.pid, {})[index] = proc.mem_bytes.bit_length()
    return found


class MigInstance(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One MIG device (nvmlDeviceGetMigDeviceHandleByIndex)."""

    index: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
    uuid: str = ""
    profile: str = ""
    mem_used_bytes: int | None = None
    mem_total_bytes: int | None = None
    sm_count: int | None = None
    sm_active_pct: float | None = None
    missing: dict[str, str] = {}  # field name -> why it has no value in this sample
    util_pct: float | None = None  # share of time in which any kernel ran in its GPU instance (GPM): NVML has no utilization of MIG devices


class NvLinkCounts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one NVLink has counted since the driver was loaded; None where the driver has no such counter."""

    link: int
    replays: int | None = None  # packets sent again
    recoveries: int | None = None  # times that it was trained again
    failed_recoveries: int | None = None
    crc_errors: int | None = None
    symbol_errors: int | None = None
    bit_error_rate: float | None = None  # wrong bits per bit; effective, that is after correction, where there is such a counter


def instance_subject(gpu: int, instance: int) -> int:
    """Subject of a MIG device's series: one number of the GPU's index and its own."""
    return MOST_DEVICES * gpu + instance


class Gpu(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The readings of one GPU at ``t_ns``. A frame may hold several samples of a GPU, one per group of calls of equal cost.

    ``None`` means "not read in this sample". ``missing`` is why a field has no value from now on; `gputop.model.board` then drops the
    older value.
    """

    index: int
    t_ns: int
    # identity, in key frames and when it changes
    name: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    architecture: str | None = None
    numa_node: int | None = None  # that its slot is attached to (/sys/bus/pci/devices/ID/numa_node)
    near_cpus: str | None = None  # list of that node's CPUs, as ``0-31,64-95`` (local_cpulist, beside it)
    # every tick, clocks of the memory each second, energy every 5 s
    util_pct: float | None = None
    util_t_ns: int | None = None  # when the driver measured ``util_pct`` (nvmlDeviceGetSamples); None if unknown
    mem_util_pct: float | None = None
    mem_used_bytes: int | None = None
    mem_total_bytes: int | None = None
    mem_reserved_bytes: int | None = None
    mem_shared: bool | None = None
    """True: it has no memory of its own (GB10, Jetson); used and total are the host's (/proc/meminfo). None: they are its own."""
    power_w: float | None = None
    power_instant: bool | None = None
    """True: NVML_FI_DEV_POWER_INSTANT; False: nvmlDeviceGetPowerUsage, on most GPUs since Ampere a 1 s average."""
    energy_mj: int | None = None  # cumulative millijoules since the driver loaded (nvmlDeviceGetTotalEnergyConsumption)
    sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None
    throttle_mask: int | None = None  # nvmlDeviceGetCurrentClocksEventReasons, raw bits; `gputop.model.fields.throttle_words` names them
    # Hopper and later: GPM, over the interval since the previous sample
    gr_active_pct: float | None = None
    """Share of time in which any kernel ran (GRAPHICS_UTIL). NVML's utilization also counts copies, and is a mean of about 0.2 s."""
    sm_active_pct: float | None = None
    sm_occupancy_pct: float | None = None
    tensor_active_pct: float | None = None
    dram_active_pct: float | None = None
    # every second to every ten
    temp_c: float | None = None
    mem_temp_c: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    power_limit_max_w: float | None = None
    sm_clock_max_mhz: int | None = None
    mem_clock_max_mhz: int | None = None
    pstate: int | None = None
    fan_pct: float | None = None
    pcie_tx_bytes: int | None = None  # cumulative since gputop started (GPM, or NVML field 197); without either, the rate below is read
    pcie_rx_bytes: int | None = None
    pcie_tx_bytes_per_s: float | None = None  # nvmlDeviceGetPcieThroughput, a mean of 20 ms
    pcie_rx_bytes_per_s: float | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlink_tx_bytes: int | None = None  # cumulative, sum of all links
    nvlink_rx_bytes: int | None = None
    nvlink_links: int | None = None
    enc_pct: float | None = None
    dec_pct: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None  # since the driver was loaded or the GPU was reset ("volatile"), as ``ecc_corrected``
    retired_pages: int | None = None
    remapped_rows: int | None = None
    remap_pending: bool | None = None  # memory rows wait for a reset to be replaced (nvmlDeviceGetRemappedRows)
    remap_failed: bool | None = None  # a memory row could not be replaced
    xid: int | None = None
    """Number of the latest Xid error since the collector started, of `gputop.model.xids.ENDING_XIDS` before any other; None: no error. By
    the driver's events, else by the kernel's log; by that also the one for which a GPU was lost before."""
    needs_reset: bool | None = None  # true once one of `ENDING_XIDS` has come since the GPU answered, false while none has
    compute_mode: str | None = None
    mig_mode: bool | None = None
    mig: Annotated[list[MigInstance], BOUNDED] | None = None
    procs: Annotated[list[GpuProc], BOUNDED] | None = None
    lost: bool | None = None  # true while NVML reports the GPU as lost, false while it answers for it; see ``missing`` while neither is so
    # cost of reading
    nvml_ns: int | None = None  # cumulative wall time in NVML calls for this GPU
    nvml_calls: int | None = None
    missing: dict[str, str] = {}
    """Field name -> why it has no value. A name that begins with `PART` is a part of ``procs``; its reason stands until the next list."""
    held_by: Annotated[list[int], BOUNDED] | None = None
    """Pids of its last list with compute contexts, while ``procs`` cannot be read (the GPU hangs or is lost); otherwise empty."""
    # every 10 s: `gputop.sources.nvml.counters.ROWS` has where each comes from
    pcie_replays: int | None = None  # packets that the PCIe link sent again, since the driver was loaded
    pcie_recoveries: int | None = None  # times that the PCIe link was trained again
    pcie_corrected_errors: int | None = None
    slowed_power_ns: int | None = None  # time for which the power limit has held clocks down, since the driver was loaded; next ones alike
    slowed_sync_boost_ns: int | None = None
    slowed_heat_ns: int | None = None
    slowed_hw_heat_ns: int | None = None  # the hardware's own slowdown
    slowed_brake_ns: int | None = None  # the server's power brake
    power_smoothing: bool | None = None  # true: power ramps are smoothed on purpose, so that clocks and power are no sign of a fault
    recovery_action: int | None = None
    """What the driver asks for (nvmlDeviceGpuRecoveryAction): 0 nothing, 1 a reset, 2 a reboot, 3 to drain it, 4 to drain and reset it."""
    c2c_links: int | None = None  # links to a Grace CPU, over which copies go there instead of PCIe
    nvlink_replays: int | None = None  # sums over the links
    nvlink_recoveries: int | None = None
    nvlink_crc_errors: int | None = None
    nvlinks: Annotated[list[NvLinkCounts], BOUNDED] | None = None
    c2c_tx_bytes: int | None = None  # over the links to a Grace CPU, cumulative since gputop started (GPM)
    c2c_rx_bytes: int | None = None
    c2c_link_bytes_per_s: float | None = None  # what each of ``c2c_links`` carries one way
    fabric_state: str | None = None  # of joining the NVLink fabric (nvmlDeviceGetGpuFabricInfoV), each 10 s: ``completed``
    fabric_health: str | None = None  # ``healthy``, or what is wrong with the fabric


class GpuReading(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The fields of a `Gpu` that change from tick to tick and that the diagnosis looks at."""

    index: int
    t_ns: int
    util_pct: float | None = None
    power_w: float | None = None
    power_instant: bool | None = None
    gr_active_pct: float | None = None
