"""The readings of every tick, or of every other: calls that take microseconds, or a fraction of a millisecond on a busy driver."""

from __future__ import annotations

import struct
import time
from ctypes import byref
from ctypes import c_int
from ctypes import c_uint
from ctypes import c_ulonglong
from ctypes import sizeof

import pynvml

from gputop.frame import SECOND_NS
from gputop.sources.nvml.abi import Device
from gputop.sources.nvml.abi import Fields
from gputop.sources.nvml.abi import MemoryV2
from gputop.sources.nvml.abi import Sample
from gputop.sources.nvml.abi import bind
from gputop.sources.nvml.abi import check
from gputop.sources.nvml.abi import is_past
from gputop.sources.nvml.abi import number_at
from gputop.sources.nvml.gpm import GPM_FIELDS
from gputop.sources.nvml.gpm import GPM_LEAST_NS
from gputop.sources.nvml.gpm import Gpm
from gputop.sources.nvml.numbers import count
from gputop.sources.nvml.numbers import given
from gputop.sources.nvml.numbers import megahertz
from gputop.sources.nvml.numbers import memory
from gputop.sources.nvml.numbers import part_of
from gputop.sources.nvml.numbers import percent
from gputop.sources.nvml.numbers import some
from gputop.sources.nvml.numbers import watts
from gputop.sources.nvml.reading import Missing
from gputop.sources.nvml.reading import Reading
from gputop.sources.nvml.reading import Values
from gputop.sources.nvml.reading import Way
from gputop.sources.nvml.reading import lazy
from gputop.sources.nvml.reading import take

PCIE_COUNTERS = ("pcie_tx_bytes", "pcie_rx_bytes")
_MEMORY = ("mem_used_bytes", "mem_total_bytes", "mem_reserved_bytes")
_MEMORY_V2 = 0x02000028
STANDING_NS = SECOND_NS // 5
_POWER_INSTANT, _PCIE_TX, _PCIE_RX = 186, 197, 198
_CLOCK_SM = 1
_GPU_UTILIZATION_SAMPLES = 1
_STALE_NS = 3 * SECOND_NS
_SAMPLE_BYTES, _STAMP = sizeof(Sample), struct.Struct("=Q")


def fast_readings(device: Device, interval_ns: int) -> list[Reading]:
    """What one GPU is asked in every tick, cheapest and most wanted first; memory and clock in every other, since nobody sees them jump.

    Counters come before all else: there the tick's report has their time, however long the other calls take.
    """
    standing_ns = max(interval_ns, STANDING_NS)
    return [
        Reading(PCIE_COUNTERS, interval_ns, lazy(PcieCounters, device), counts=True),
        Reading(("util_pct", "mem_util_pct"), interval_ns, lazy(_utilization, device)),
        Reading(("util_t_ns",), interval_ns, lazy(Samples, device)),
        Reading(("power_w", "power_instant"), interval_ns, lazy(_power_instant, device), lazy(_power_usage, device)),
        Reading(_MEMORY, standing_ns, lazy(_memory_v2, device), lazy(_memory_v1, device)),
        Reading(("sm_clock_mhz",), standing_ns, lazy(_sm_clock, device)),
        Reading(("throttle_mask",), interval_ns, lazy(_throttle, device, "Event"), lazy(_throttle, device, "Throttle")),
        Reading(GPM_FIELDS, max(interval_ns, GPM_LEAST_NS), lazy(Gpm, device)),
    ]


def _utilization(device: Device) -> Way:
    function, out = bind("nvmlDeviceGetUtilizationRates"), (c_uint * 2)()

    def way(values: Values, missing: Missing) -> None:
        device.call(function, out)
        take("util_pct", lambda: percent(given(out[0])), values, missing)
        take("mem_util_pct", lambda: percent(given(out[1])), values, missing)

    return way


class Samples:
    """nvmlDeviceGetSamples: the latest utilization with the moment the driver took it, on CLOCK_MONOTONIC.

    The driver stamps with the wall clock. A stamp that cannot be right (from the future, or older than any refresh) is
    not used: the value of nvmlDeviceGetUtilizationRates then stands without one.
    """

    __slots__ = ("_count", "_device", "_function", "_kind", "_latest", "_samples", "_seen_us")

    def __init__(self, device: Device) -> None:
        self._device = device
        self._function = bind("nvmlDeviceGetSamples")
        self._samples = (Sample * 128)()
        self._count, self._kind = c_uint(), c_int()
        self._seen_us = 0
        self._latest: tuple[float, int] | None = None

    def __call__(self, values: Values, missing: Missing) -> None:
        self._fetch()
        if self._latest and time.monotonic_ns() - self._latest[1] < _STALE_NS:
            values["util_pct"], values["util_t_ns"] = self._latest
        else:
            missing["util_t_ns"] = "the driver keeps no fresh utilization samples"

    def _fetch(self) -> None:
        self._count.value = len(self._samples)
        since = c_ulonglong(self._seen_us if is_past(self._seen_us) else 0)
        code = self._device.ask(self._function, _GPU_UTILIZATION_SAMPLES, since, byref(self._kind), byref(self._count), self._samples)
        if code == pynvml.NVML_ERROR_NOT_FOUND:
            return  # nothing newer than what was seen
        check(code)
        places = range(0, min(self._count.value, len(self._samples)) * _SAMPLE_BYTES, _SAMPLE_BYTES)
        stamps = ((_STAMP.unpack_from(self._samples, at)[0], at) for at in places)
        us, at = max((stamp for stamp in stamps if is_past(stamp[0])), default=(0, 0))
        if us:
            self._seen_us = us
            now_ns = time.monotonic_ns()
            ago_ns = max(0, time.time_ns() - us * 1000)
            self._latest = percent(number_at(self._samples, at + Sample.value.offset, self._kind.value)), now_ns - ago_ns


def _power_instant(device: Device) -> Way:
    fields = Fields(device, _POWER_INSTANT)

    def way(values: Values, _: Missing) -> None:
        fields.read()
        values["power_w"], values["power_instant"] = watts(fields.number(0)), True

    return way


def _power_usage(device: Device) -> Way:
    function, out = bind("nvmlDeviceGetPowerUsage"), c_uint()

    def way(values: Values, _: Missing) -> None:
        device.call(function, byref(out))
        values["power_w"], values["power_instant"] = watts(given(out.value)), False

    return way


def _memory_v2(device: Device) -> Way:
    function, out = bind("nvmlDeviceGetMemoryInfo_v2"), MemoryV2()

    def way(values: Values, _: Missing) -> None:
        out.version = _MEMORY_V2
        device.call(function, byref(out))
        total = memory(given(out.total))
        values["mem_used_bytes"], values["mem_total_bytes"] = part_of(total, given(out.used)), total
        values["mem_reserved_bytes"] = part_of(total, given(out.reserved))

    return way


def _memory_v1(device: Device) -> Way:
    function, out = bind("nvmlDeviceGetMemoryInfo"), (c_ulonglong * 3)()

    def way(values: Values, missing: Missing) -> None:
        device.call(function, out)
        total = memory(given(out[0]))
        values["mem_used_bytes"], values["mem_total_bytes"] = part_of(total, given(out[2])), total
        missing["mem_reserved_bytes"] = "it is counted as used"

    return way


def _sm_clock(device: Device) -> Way:
    function, out = bind("nvmlDeviceGetClockInfo"), c_uint()

    def way(values: Values, _: Missing) -> None:
        device.call(function, _CLOCK_SM, byref(out))
        values["sm_clock_mhz"] = megahertz(some(out.value))

    return way


def _throttle(device: Device, word: str) -> Way:
    """``word``: NVML renamed throttle reasons to event reasons with R535."""
    function, out = bind(f"nvmlDeviceGetCurrentClocks{word}Reasons"), c_ulonglong()

    def way(values: Values, _: Missing) -> None:
        device.call(function, byref(out))
        values["throttle_mask"] = given(out.value)

    return way


class PcieCounters:
    """Bytes over PCIe since the driver loaded (fields 197, 198). Where they come as 32 bit numbers the wraps are counted."""

    __slots__ = ("_fields", "_last", "_wrapped")

    def __init__(self, device: Device) -> None:
        self._fields = Fields(device, _PCIE_TX, _PCIE_RX)
        self._last = [0, 0]
        self._wrapped = [0, 0]

    def __call__(self, values: Values, _: Missing) -> None:
        self._fields.read()
        for at, name in enumerate(PCIE_COUNTERS):
            counted = count(self._fields.number(at), " bytes")
            if counted < self._last[at] and self._fields.is_32_bit(at):
                self._wrapped[at] += 1 << 32
            self._last[at] = counted
            values[name] = self._wrapped[at] + counted
