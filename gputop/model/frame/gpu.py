"""GPUs as NVML gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from gputop.model.frame.bounds import BOUNDED

SILENT = "the driver has not answered for "
"""How the reason in `Gpu.missing` begins while a call hangs; a length of time follows."""
PART = "procs."
"""How a name in `Gpu.missing` begins that is of a part of ``procs``: what each process uses (``sm_pct``, ``mem_bytes``), or those that
are not listed (``mps``, ``graphics``)."""


_LANE_BYTES_PER_S = (0.25e9, 0.5e9, 0.985e9, 1.97e9, 3.94e9, 7.56e9)
"""Of PCIe 1 to 6, one way, less what their line codes take."""


def link_bytes_per_s(generation: int, lanes: int) -> float | None:
    """What a PCIe link carries one way; None where that is not told."""
    return _LANE_BYTES_PER_S[generation - 1] * lanes if 0 < generation <= len(_LANE_BYTES_PER_S) and lanes else None


class GpuProc(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One process on one GPU (NVML's process lists; utilization from nvmlDeviceGetProcessUtilization)."""

    pid: int
    kind: str = "C"
    """``C`` compute, ``G`` graphics, ``C+G`` both."""
    mem_bytes: int | None = None
    sm_pct: float | None = None
    mem_pct: float | None = None
    enc_pct: float | None = None
    dec_pct: float | None = None
    gpu_instance: int | None = None
    """MIG GPU instance, None outside MIG."""


def forget_parts(missing: dict[str, str]) -> None:
    """Drop the reasons that concern parts of a list of processes, since another list has come; its own come with it."""
    for name in [name for name in missing if name.startswith(PART)]:
        del missing[name]


def compute_pids(procs: Iterable[GpuProc]) -> frozenset[int]:
    """Those with a compute context: whoever only draws trains nothing."""
    return frozenset(proc.pid for proc in procs if "C" in proc.kind)


def sizes_of_contexts(procs: Mapping[int, Iterable[GpuProc]]) -> dict[int, dict[int, int]]:
    """Pid -> GPU -> size of its context there, as the power of two (bits) of its bytes; ``procs`` are those on each GPU. Who changes by a
    few megabytes stands as before."""
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
    missing: dict[str, str] = {}
    """Field name -> why it has no value in this sample."""
    util_pct: float | None = None
    """Share of the time in which any kernel ran in its GPU instance, by GPM: NVML's own utilization is none of MIG devices."""


class Gpu(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What was read of one GPU at ``t_ns``. Several may stand in one frame, one per tier of cost.

    ``None`` means "not read in this sample". ``missing`` says, per field, why there is no value from now on;
    `gputop.model.board` then drops the value it had.
    """

    index: int
    t_ns: int
    # identity, in key frames and when it changes
    name: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    architecture: str | None = None
    # every tick
    util_pct: float | None = None
    util_t_ns: int | None = None
    """When the driver took ``util_pct`` (nvmlDeviceGetSamples); None where it does not say."""
    mem_util_pct: float | None = None
    mem_used_bytes: int | None = None
    mem_total_bytes: int | None = None
    mem_reserved_bytes: int | None = None
    power_w: float | None = None
    power_instant: bool | None = None
    """True: NVML_FI_DEV_POWER_INSTANT; False: nvmlDeviceGetPowerUsage, on most GPUs since Ampere a 1 s average."""
    energy_mj: int | None = None
    """Cumulative millijoules since the driver loaded (nvmlDeviceGetTotalEnergyConsumption)."""
    sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None
    throttle_mask: int | None = None
    """nvmlDeviceGetCurrentClocksEventReasons, raw bits; `gputop.model.fields.throttle_words` names them."""
    # Hopper and later: GPM, over the interval since the previous sample
    gr_active_pct: float | None = None
    """Share of the time in which any kernel ran (GRAPHICS_UTIL). NVML's utilization counts copies, too, and is of a fifth of a second."""
    sm_active_pct: float | None = None
    sm_occupancy_pct: float | None = None
    tensor_active_pct: float | None = None
    dram_active_pct: float | None = None
    # about once a second
    temp_c: float | None = None
    mem_temp_c: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    power_limit_max_w: float | None = None
    sm_clock_max_mhz: int | None = None
    mem_clock_max_mhz: int | None = None
    pstate: int | None = None
    fan_pct: float | None = None
    pcie_tx_bytes: int | None = None
    """Cumulative since gputop began (GPM, or field 197); where neither is supported the rate below is read instead."""
    pcie_rx_bytes: int | None = None
    pcie_tx_bytes_per_s: float | None = None
    """nvmlDeviceGetPcieThroughput, which counts for 20 ms."""
    pcie_rx_bytes_per_s: float | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlink_tx_bytes: int | None = None
    """Cumulative, summed over links."""
    nvlink_rx_bytes: int | None = None
    nvlink_links: int | None = None
    enc_pct: float | None = None
    dec_pct: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    """Volatile, as the corrected ones: since the driver loaded or the GPU was reset."""
    retired_pages: int | None = None
    remapped_rows: int | None = None
    remap_pending: bool | None = None
    """Rows of its memory wait for a reset to be replaced (nvmlDeviceGetRemappedRows)."""
    remap_failed: bool | None = None
    """One could not be replaced."""
    xid: int | None = None
    """The latest Xid error's number since the collector began; None while there was none."""
    compute_mode: str | None = None
    mig_mode: bool | None = None
    mig: Annotated[list[MigInstance], BOUNDED] | None = None
    procs: Annotated[list[GpuProc], BOUNDED] | None = None
    lost: bool | None = None
    """True while NVML says the GPU is lost."""
    # own cost
    nvml_ns: int | None = None
    """Cumulative wall time spent in NVML calls for this GPU."""
    nvml_calls: int | None = None
    missing: dict[str, str] = {}
    """Field name -> why it has no value. What begins with `PART` concerns a part of ``procs``, and stands until these are read again."""
    held_by: Annotated[list[int], BOUNDED] | None = None
    """While ``procs`` cannot be read, as of a GPU that hangs or is lost: the pids that computed on it when they could be; else empty."""


class GpuReading(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of a `Gpu`, what changes from tick to tick and the diagnosis looks at."""

    index: int
    t_ns: int
    util_pct: float | None
    power_w: float | None
    power_instant: bool | None
    gr_active_pct: float | None = None
