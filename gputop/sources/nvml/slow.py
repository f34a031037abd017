"""The groups that are read once, and every 1 to 10 s: identity, processes, sensors that cost, limits and health."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from ctypes import byref, c_uint
from functools import partial

from gputop.model.frame import SECOND_NS
from gputop.model.machine import parse_cpus
from gputop.model.xids import ENDING_XIDS
from gputop.sources.nvml import binding as nvml
from gputop.sources.nvml import counters, numbers
from gputop.sources.nvml.driver import Device, field_number, library_function, why
from gputop.sources.nvml.fabric import FABRIC, fabric
from gputop.sources.nvml.groups import ONCE_NS, FieldGroup, Missing, Values, Way, made, single
from gputop.sources.nvml.mig import Mig
from gputop.sources.nvml.procs import Processes

PCIE_RATES = ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s")
PCI_DEVICES = "/sys/bus/pci/devices"
PLACE = ("numa_node", "near_cpus")
XID = ("xid", "needs_reset")
_NVLINK_COUNTERS = ("nvlink_tx_bytes", "nvlink_rx_bytes")
_NVLINK_FIELDS = (138, 0xFFFFFFFF), (139, 0xFFFFFFFF)  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX, in KiB, scope: all links
_MOST_LINKS = 36
_MEMORY_TEMP = 82  # NVML_FI_DEV_MEMORY_TEMP
_CLOCK_SM, _CLOCK_MEM = nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM
_TEMPERATURES = nvml.nvmlDeviceGetTemperature, nvml.nvmlDeviceGetTemperatureV
"""Functions that read a temperature. From R570 on the second replaces the first; older drivers lack it."""
_COMPUTE_MODES = ("Default", "Exclusive Thread", "Prohibited", "Exclusive Process")  # by nvmlComputeMode_t
_MOST_EVENTS = 64  # taken at once
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_MOST_BYTES = 1 << 16  # read of a file that states a GPU's place: a list of every second of 8,192 CPUs has 20 KB
_MOST_NODES = 1024  # MAX_NUMNODES of a kernel at most (CONFIG_NODES_SHIFT 10)
_ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper", 10: "Blackwell", 13: "Rubin",
}  # fmt: skip


def identity_groups(device: Device) -> list[FieldGroup]:
    """Field groups that are read once, when a GPU answers."""
    call = device.call
    asked: dict[str, Callable[[], object]] = {
        "name": lambda: call(nvml.nvmlDeviceGetName),
        "uuid": lambda: call(nvml.nvmlDeviceGetUUID),
        "pci_bus_id": lambda: call(nvml.nvmlDeviceGetPciInfo).busId.decode(),
        "architecture": lambda: _architecture(numbers.count(call(nvml.nvmlDeviceGetArchitecture))),
    }
    return [*(single(field, ONCE_NS, read) for field, read in asked.items()), FieldGroup(PLACE, ONCE_NS, _place(device))]


def _place(device: Device) -> Way:
    """The NUMA node of the GPU's slot, and that node's CPUs, as the kernel has them."""

    def way(values: Values, missing: Missing) -> None:
        bus_id = device.call(nvml.nvmlDeviceGetPciInfo).busId.decode()
        try:
            values["numa_node"], values["near_cpus"] = read_place(bus_id, PCI_DEVICES)
        except (OSError, ValueError) as error:
            missing.update(dict.fromkeys(PLACE, str(error)))

    return way


def read_place(bus_id: str, devices: str) -> tuple[int, str]:
    """(NUMA node, list of its CPUs) of a PCI device below the folder ``devices``. Raises OSError, or ValueError where the kernel knows no
    node, both with the reason. ``bus_id``: as NVML has it, with eight digits of the domain and capitals; the kernel has four at least."""
    domain, _, rest = bus_id.lower().partition(":")
    if not _BUS_ID.fullmatch(f"{domain}:{rest}"):
        raise ValueError("the driver gives no PCI address that the kernel knows")
    folder = os.path.join(devices, f"{int(domain, 16):04x}:{rest}")
    try:
        with open(os.path.join(folder, "numa_node"), "rb") as file:
            node = int(file.read(_MOST_BYTES))
        with open(os.path.join(folder, "local_cpulist"), encoding="ascii", errors="replace") as file:
            cpus = file.read(_MOST_BYTES).strip()
    except OSError as error:
        raise OSError(f"{folder} cannot be read: {(error.strerror or str(error)).lower()}") from error
    if not 0 <= node < _MOST_NODES:
        raise ValueError("the firmware does not state the NUMA node of its slot, as in most virtual machines")
    if not parse_cpus(cpus):
        raise ValueError(f"NUMA node {node}, that its slot is attached to, has no CPUs")
    return node, cpus


def _architecture(code: int) -> str:
    return _ARCHITECTURES.get(code, f"architecture {code}")


def slow_groups(device: Device, pcie_counters: FieldGroup) -> list[FieldGroup]:
    """Field groups that are read seldom, most wanted first. Energy takes a real driver 3 to 13 ms of CPU (measured on an H200).

    ``pcie_counters``: PCIe rates, which hold the driver for 20 ms each, are read only while these counters have no value.
    """
    call, second, seldom = device.call, SECOND_NS, 10 * SECOND_NS
    return [
        FieldGroup(("procs",), second, made(Processes, device)),
        single("temp_c", second, *(partial(_temperature, device, function) for function in _TEMPERATURES)),
        single("power_limit_w", second, lambda: numbers.watts_limit(call(nvml.nvmlDeviceGetEnforcedPowerLimit))),
        single("pstate", second, lambda: numbers.pstate(call(nvml.nvmlDeviceGetPerformanceState))),
        single("mem_temp_c", second, lambda: numbers.celsius(field_number(*device.fields(_MEMORY_TEMP)))),
        single("mem_clock_mhz", second, lambda: numbers.megahertz(call(nvml.nvmlDeviceGetClockInfo, _CLOCK_MEM))),
        single("energy_mj", 5 * second, lambda: numbers.count(call(nvml.nvmlDeviceGetTotalEnergyConsumption)), counts=True),
        FieldGroup(("mig_mode", "mig"), second, Mig(device)),
        FieldGroup(XID, second, made(XidEvents, device)),
        FieldGroup((*_NVLINK_COUNTERS, "nvlink_links"), second, NvLink(device), counts=True),
        single("pcie_gen", 2 * second, lambda: numbers.link(call(nvml.nvmlDeviceGetCurrPcieLinkGeneration))),
        single("pcie_width", 2 * second, lambda: numbers.link(call(nvml.nvmlDeviceGetCurrPcieLinkWidth))),
        single("enc_pct", 2 * second, lambda: numbers.percent(call(nvml.nvmlDeviceGetEncoderUtilization)[0])),
        single("dec_pct", 2 * second, lambda: numbers.percent(call(nvml.nvmlDeviceGetDecoderUtilization)[0])),
        single("fan_pct", 2 * second, lambda: numbers.fan_percent(call(nvml.nvmlDeviceGetFanSpeed))),
        single("sm_clock_max_mhz", seldom, lambda: numbers.megahertz_limit(call(nvml.nvmlDeviceGetMaxClockInfo, _CLOCK_SM))),
        single("mem_clock_max_mhz", seldom, lambda: numbers.megahertz_limit(call(nvml.nvmlDeviceGetMaxClockInfo, _CLOCK_MEM))),
        single("power_limit_default_w", seldom, lambda: numbers.watts_limit(call(nvml.nvmlDeviceGetPowerManagementDefaultLimit))),
        single("power_limit_max_w", seldom, lambda: numbers.watts_limit(call(nvml.nvmlDeviceGetPowerManagementLimitConstraints)[1])),
        single("pcie_gen_max", seldom, lambda: numbers.link(call(nvml.nvmlDeviceGetMaxPcieLinkGeneration))),
        single("pcie_width_max", seldom, lambda: numbers.link(call(nvml.nvmlDeviceGetMaxPcieLinkWidth))),
        single("compute_mode", seldom, lambda: _compute_mode(numbers.count(call(nvml.nvmlDeviceGetComputeMode)))),
        single("ecc_corrected", seldom, lambda: _ecc(device, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)),
        single("ecc_uncorrected", seldom, lambda: _ecc(device, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)),
        single("retired_pages", seldom, lambda: sum(len(call(nvml.nvmlDeviceGetRetiredPages, cause)) for cause in (0, 1))),
        FieldGroup(("remapped_rows", "remap_pending", "remap_failed"), seldom, _remapped(device)),
        FieldGroup(FABRIC, seldom, fabric(device)),
        FieldGroup(counters.FIELDS, seldom, made(counters.Counters, device)),
        FieldGroup(PCIE_RATES, 2 * second, _pcie_rates(device, pcie_counters)),
    ]


def _temperature(device: Device, function: Callable[..., int]) -> float:
    return numbers.celsius(device.call(function, nvml.NVML_TEMPERATURE_GPU))


def _compute_mode(mode: int) -> str:
    return _COMPUTE_MODES[mode] if mode < len(_COMPUTE_MODES) else str(mode)


def _ecc(device: Device, kind: int) -> int:
    """ECC errors since the driver was loaded."""
    return numbers.count(device.call(nvml.nvmlDeviceGetTotalEccErrors, kind, nvml.NVML_VOLATILE_ECC))


def _remapped(device: Device) -> Way:
    def way(values: Values, _: Missing) -> None:
        corrected, uncorrected, pending, failed = device.call(nvml.nvmlDeviceGetRemappedRows)
        values["remapped_rows"] = numbers.count(corrected) + numbers.count(uncorrected)
        values["remap_pending"], values["remap_failed"] = pending == 1, failed == 1

    return way


def _pcie_rates(device: Device, counters: FieldGroup) -> Way:
    def way(values: Values, missing: Missing) -> None:
        for kind, field in enumerate(PCIE_RATES):
            if counters.works and not counters.reason:
                missing[field] = "the counters of bytes are read instead"
            else:
                values[field] = numbers.bytes_per_s(device.call(nvml.nvmlDeviceGetPcieThroughput, kind))

    return way


class NvLink:
    """Data bytes over all links, and how many links are up, which is read every tenth time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._readings = 0
        self._links = 0

    def __call__(self, values: Values, missing: Missing) -> None:
        if self._readings % 10 == 0:
            self._links = self._count_links()
        self._readings += 1
        values["nvlink_links"] = self._links
        if not self._links:
            missing.update(dict.fromkeys(_NVLINK_COUNTERS, "no NVLink is up"))
            return
        for name, value in zip(_NVLINK_COUNTERS, self._device.fields(*_NVLINK_FIELDS), strict=True):
            values[name] = numbers.count(field_number(value) * 1024, " bytes")

    def _count_links(self) -> int:
        """Links that are up. Raises nvml.NVMLError if the driver reports on no link."""
        states = [self._link_state(number) for number in range(_MOST_LINKS)]
        known = [is_up for code, is_up in states if not code]
        if not known:
            raise nvml.NVMLError(states[0][0])
        return sum(known)

    def _link_state(self, number: int) -> tuple[int, bool]:
        """(NVML's error code, whether the link is up). Raises if the GPU is lost. Errors are not kept: they hold frames."""
        try:
            return 0, numbers.count(self._device.call(nvml.nvmlDeviceGetNvLinkState, number)) > 0
        except nvml.NVMLError as error:
            if why(error).lost:
                raise
            return error.value, False


class XidEvents:
    """Fills ``xid`` with the latest Xid error since it began to listen, by NVML's event set; no call waits. One that ended the GPU stays:
    others follow from it, such as one for each process (45)."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._latest: int | None = None
        self._data = nvml.c_nvmlEventData_t()
        self._wait = library_function("nvmlEventSetWait_v2", "nvmlEventSetWait")
        self._set = nvml.nvmlEventSetCreate()
        try:
            device.call(nvml.nvmlDeviceRegisterEvents, nvml.nvmlEventTypeXidCriticalError, self._set)
        except nvml.NVMLError:
            nvml.nvmlEventSetFree(self._set)
            raise
        device.own(self._set, nvml.nvmlEventSetFree)

    def __call__(self, values: Values, _: Missing) -> None:
        try:
            self._listen()
        finally:  # also if the GPU was lost by the error that was just read
            if self._latest is not None:  # again each time: a value that was read just before a hang is dropped
                values["xid"] = self._latest
            values["needs_reset"] = self._latest in ENDING_XIDS

    def _listen(self) -> None:
        for _ in range(_MOST_EVENTS):
            self._device.meter.count()
            code = self._wait(self._set, byref(self._data), c_uint(0))
            if code == nvml.NVML_ERROR_TIMEOUT:
                return
            if code:
                raise nvml.NVMLError(code)
            if self._data.eventType != nvml.nvmlEventTypeXidCriticalError:
                continue
            if self._latest not in ENDING_XIDS or self._data.eventData in ENDING_XIDS:
                self._latest = self._data.eventData
