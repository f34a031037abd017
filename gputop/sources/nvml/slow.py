"""The readings of every second, two seconds and ten: process lists, sensors that cost, limits and health."""

from __future__ import annotations

from ctypes import Structure, byref, c_int, c_uint

import pynvml

from gputop.model.frame import SECOND_NS
from gputop.sources.nvml.abi import Device, Fields, bind
from gputop.sources.nvml.events import XID, XidEvents
from gputop.sources.nvml.mig import Mig
from gputop.sources.nvml.numbers import (
    NONE,
    bytes_per_s,
    celsius,
    count,
    fan,
    given,
    limit_megahertz,
    limit_watts,
    link,
    megahertz,
    percent,
    pstate,
    some,
)
from gputop.sources.nvml.procs import Processes
from gputop.sources.nvml.reading import Lazy, Missing, Reading, Values, Way, one
from gputop.sources.nvml.reasons import why

SLOWEST_NS = 10 * SECOND_NS
"""What hardly ever changes is asked for so often."""
_MEMORY_TEMP, _NVLINK_TX, _NVLINK_RX = 82, 138, 139
_NVLINK_COUNTERS = ("nvlink_tx_bytes", "nvlink_rx_bytes")
_ALL_LINKS = 0xFFFFFFFF
_MOST_LINKS = 36
_CLOCK_SM, _CLOCK_MEM = 1, 2
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0
_PSTATE_UNKNOWN = 32
_COMPUTE_MODES = ("Default", "Exclusive Thread", "Prohibited", "Exclusive Process")
PCIE_RATES = ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s")


def slow_readings(device: Device, pcie_counters: Reading) -> list[Reading]:
    """What one GPU is asked seldom; what a person looks for first comes first. Energy takes a real driver 3 to 13 ms of CPU.

    ``pcie_counters``: while it works, the rates, which hold the driver for 20 ms each, are left alone.
    """
    number = device.number
    return [
        Reading(("procs",), SECOND_NS, Lazy(Processes, device)),
        one("temp_c", SECOND_NS, lambda: celsius(number("nvmlDeviceGetTemperature", 0)), Lazy(_TemperatureV, device)),
        one("power_limit_w", SECOND_NS, lambda: limit_watts(number("nvmlDeviceGetEnforcedPowerLimit"))),
        one("pstate", SECOND_NS, lambda: _pstate(number("nvmlDeviceGetPerformanceState"))),
        Reading(("mem_temp_c",), SECOND_NS, Lazy(_memory_temp, device)),
        one("mem_clock_mhz", SECOND_NS, lambda: megahertz(number("nvmlDeviceGetClockInfo", _CLOCK_MEM))),
        one("energy_mj", 5 * SECOND_NS, lambda: device.long("nvmlDeviceGetTotalEnergyConsumption"), counts=True),
        Reading(("mig_mode", "mig"), SECOND_NS, Lazy(Mig, device)),
        Reading(XID, SECOND_NS, Lazy(XidEvents, device)),
        Reading((*_NVLINK_COUNTERS, "nvlink_links"), SECOND_NS, Lazy(_NvLink, device), counts=True),
        one("pcie_gen", 2 * SECOND_NS, lambda: link(number("nvmlDeviceGetCurrPcieLinkGeneration"))),
        one("pcie_width", 2 * SECOND_NS, lambda: link(number("nvmlDeviceGetCurrPcieLinkWidth"))),
        Reading(("enc_pct",), 2 * SECOND_NS, Lazy(_codec, device, "enc_pct", "nvmlDeviceGetEncoderUtilization")),
        Reading(("dec_pct",), 2 * SECOND_NS, Lazy(_codec, device, "dec_pct", "nvmlDeviceGetDecoderUtilization")),
        one("fan_pct", 2 * SECOND_NS, lambda: fan(number("nvmlDeviceGetFanSpeed"))),
        one("sm_clock_max_mhz", SLOWEST_NS, lambda: limit_megahertz(number("nvmlDeviceGetMaxClockInfo", _CLOCK_SM))),
        one("mem_clock_max_mhz", SLOWEST_NS, lambda: limit_megahertz(number("nvmlDeviceGetMaxClockInfo", _CLOCK_MEM))),
        one("power_limit_default_w", SLOWEST_NS, lambda: limit_watts(number("nvmlDeviceGetPowerManagementDefaultLimit"))),
        one("power_limit_max_w", SLOWEST_NS, lambda: _power_most(device)),
        one("pcie_gen_max", SLOWEST_NS, lambda: link(number("nvmlDeviceGetMaxPcieLinkGeneration"))),
        one("pcie_width_max", SLOWEST_NS, lambda: link(number("nvmlDeviceGetMaxPcieLinkWidth"))),
        one("compute_mode", SLOWEST_NS, lambda: _compute_mode(number("nvmlDeviceGetComputeMode"))),
        one("ecc_corrected", SLOWEST_NS, lambda: _ecc(device, _CORRECTED)),
        one("ecc_uncorrected", SLOWEST_NS, lambda: _ecc(device, _UNCORRECTED)),
        one("retired_pages", SLOWEST_NS, lambda: _retired(device, 0) + _retired(device, 1)),
        Reading(("remapped_rows", "remap_pending", "remap_failed"), SLOWEST_NS, Lazy(_remapped, device)),
        Reading(PCIE_RATES, 2 * SECOND_NS, Lazy(_pcie_rates, device, pcie_counters)),
    ]


class _Temperature(Structure):
    _fields_ = [("version", c_uint), ("sensor", c_int), ("celsius", c_int)]


class _TemperatureV:
    """nvmlDeviceGetTemperatureV, which replaces nvmlDeviceGetTemperature from R570 on."""

    def __init__(self, device: Device) -> None:
        self._device, self._function, self._out = device, bind("nvmlDeviceGetTemperatureV"), _Temperature(version=0x100000C)

    def __call__(self, values: Values, _: Missing) -> None:
        self._device.call(self._function, byref(self._out))
        values["temp_c"] = celsius(self._out.celsius)


def _memory_temp(device: Device) -> Way:
    fields = Fields(device, _MEMORY_TEMP)

    def way(values: Values, _: Missing) -> None:
        fields.read()
        values["mem_temp_c"] = celsius(fields.number(0))

    return way


class _NvLink:
    """Data bytes over all links (fields 138, 139, in KiB); which links are up is looked up every tenth time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._fields = Fields(device, _NVLINK_TX, _NVLINK_RX, scope=_ALL_LINKS)
        self._turn = 0
        self._links = 0

    def __call__(self, values: Values, missing: Missing) -> None:
        if self._turn % 10 == 0:
            self._links = self._count_links()
        self._turn += 1
        values["nvlink_links"] = self._links
        if not self._links:
            missing.update(dict.fromkeys(_NVLINK_COUNTERS, "no NVLink is up"))
            return
        self._fields.read()
        for at, name in enumerate(_NVLINK_COUNTERS):
            values[name] = count(self._fields.number(at) * 1024, " bytes")

    def _count_links(self) -> int:
        """Those that are up. Raises pynvml.NVMLError where nothing is told of any."""
        states = [self._link_state(link) for link in range(_MOST_LINKS)]
        known = [is_up for code, is_up in states if not code]
        if not known:
            raise pynvml.NVMLError(states[0][0])
        return sum(known)

    def _link_state(self, link: int) -> tuple[int, bool]:
        """(NVML's return code, whether it is up); raises where the GPU is lost. No errors: kept ones hold frames that hold them."""
        state = c_uint()
        code = self._device.ask(bind("nvmlDeviceGetNvLinkState"), c_uint(link), byref(state))
        if code and why(pynvml.NVMLError(code)).lost:
            raise pynvml.NVMLError(code)
        return code or (pynvml.NVML_ERROR_NO_DATA if state.value in NONE else 0), state.value != 0


def _codec(device: Device, field: str, name: str) -> Way:
    function, out, period_us = bind(name), c_uint(), c_uint()

    def way(values: Values, _: Missing) -> None:
        device.call(function, byref(out), byref(period_us))
        values[field] = percent(given(out.value))

    return way


def _power_most(device: Device) -> float:
    least, most = c_uint(), c_uint()
    device.call(bind("nvmlDeviceGetPowerManagementLimitConstraints"), byref(least), byref(most))
    return limit_watts(given(most.value))


def _pstate(state: int) -> int:
    if state == _PSTATE_UNKNOWN:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_DATA)
    return pstate(state)


def _compute_mode(mode: int) -> str:
    return _COMPUTE_MODES[mode] if mode < len(_COMPUTE_MODES) else str(mode)


def _ecc(device: Device, kind: int) -> int:
    return device.long("nvmlDeviceGetTotalEccErrors", kind, _VOLATILE)


def _retired(device: Device, cause: int) -> int:
    """Pages retired for ``cause``; asked without a buffer NVML answers with the number alone."""
    count = c_uint(0)
    try:
        device.call(bind("nvmlDeviceGetRetiredPages"), cause, byref(count), None)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
            raise
    return given(count.value)


def _remapped(device: Device) -> Way:
    function = bind("nvmlDeviceGetRemappedRows")
    corrected, uncorrected, pending, failed = c_uint(), c_uint(), c_uint(), c_uint()

    def way(values: Values, _: Missing) -> None:
        device.call(function, byref(corrected), byref(uncorrected), byref(pending), byref(failed))
        values["remapped_rows"] = given(corrected.value) + given(uncorrected.value)
        values["remap_pending"], values["remap_failed"] = pending.value == 1, failed.value == 1

    return way


def _pcie_rates(device: Device, counters: Reading) -> Way:
    function, out = bind("nvmlDeviceGetPcieThroughput"), c_uint()

    def way(values: Values, missing: Missing) -> None:
        for kind, field in enumerate(PCIE_RATES):
            if counters.works and not counters.reason:
                missing[field] = "the counters of bytes are read instead"
                continue
            device.call(function, kind, byref(out))
            values[field] = bytes_per_s(some(out.value))

    return way
