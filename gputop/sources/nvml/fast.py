"""The groups of every poll, or of every other: calls that take microseconds, or a fraction of a millisecond on a busy driver."""

from __future__ import annotations

import time
from ctypes import byref, c_int, c_uint, c_ulonglong
from itertools import pairwise

from gputop.model.frame import SECOND_NS, link_bytes_per_s
from gputop.sources.host import memory_fields
from gputop.sources.nvml import binding as nvml
from gputop.sources.nvml.driver import FAILURES, Device, KeptFields, is_past, library_function, value_number
from gputop.sources.nvml.gpm import C2C_COUNTERS, GPM_FIELDS, GPM_LEAST_NS, PCIE_COUNTERS, Gpm
from gputop.sources.nvml.groups import FieldGroup, Missing, Values, Way, made, once, single, take
from gputop.sources.nvml.numbers import NoValue, count, link, megahertz, memory, part_of, percent, watts

MEMINFO = "/proc/meminfo"
STANDING_NS = SECOND_NS // 5  # ns between two readings of memory and clock; a user would not notice finer steps
FEW_GPUS = 8  # with more, GPM and throttling are read as seldom: half of a poll's cost, and GPM's readings are means over all the time
_MEMORY = ("mem_used_bytes", "mem_total_bytes", "mem_reserved_bytes")
_POWER_INSTANT, _PCIE_TX, _PCIE_RX = 186, 197, 198  # NVML_FI_DEV_POWER_INSTANT, …_PCIE_COUNT_TX_BYTES, …_PCIE_COUNT_RX_BYTES

_STALE_NS = 3 * SECOND_NS  # ns after which a sample is older than any driver's refresh
_CHECK_NS = SECOND_NS  # ns after which samples are asked for, whatever is known
_LAGS_NS = 120_000_000  # ns that nvmlDeviceGetUtilizationRates may lag behind a new sample: since R550 drivers refresh it each 0.1 s
_JITTER = 0.95  # of the rhythm: a sample may come so early
_RHYTHM = 4  # samples that show a rhythm
_LEAST_RHYTHM_NS = 20_000_000  # ns, the shortest rhythm: if samples lie closer, any call may bring new ones

_ROUND = 1 << 32  # bytes that a counter of 32 bits holds
_MUCH = 1 << 28  # bytes between two readings from which on it may have overflowed unseen
_PACE_S = 0.001  # s between the two readings that show a link's rate


def fast_groups(device: Device, interval_ns: int, of_many: bool = False) -> list[FieldGroup]:
    """Field groups that are read in every poll of a GPU, cheapest and most wanted first.

    Counters come first, so that the poll has their time, however long other calls take. GPM is a counter: it covers the time since it was
    read last. ``of_many``: this GPU is one of more than `FEW_GPUS`.
    """
    standing_ns, gpm, call = max(interval_ns, STANDING_NS), once(Gpm, device), device.call
    seldom_ns = standing_ns if of_many else interval_ns
    activity = FieldGroup(GPM_FIELDS, max(seldom_ns, GPM_LEAST_NS), lambda values, missing: gpm()(values, missing), counts=True)
    samples = Samples(device, activity)
    return [
        activity,
        FieldGroup(PCIE_COUNTERS, interval_ns, lambda values, _: gpm().add_pcie_to(values), made(PcieCounters, device), counts=True),
        FieldGroup(C2C_COUNTERS, interval_ns, lambda values, _: gpm().add_c2c_to(values), counts=True),
        FieldGroup(("util_pct", "mem_util_pct"), interval_ns, made(_utilization, device, samples)),
        FieldGroup(("util_t_ns",), interval_ns, samples),
        FieldGroup(("power_w", "power_instant"), interval_ns, made(_power_instant, device), _power_usage(device)),
        FieldGroup(_MEMORY, standing_ns, _memory_v2(device), _memory_v1(device)),
        single("sm_clock_mhz", standing_ns, lambda: megahertz(call(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM))),
        FieldGroup(("throttle_mask",), seldom_ns, made(_throttle, device)),
    ]


def _utilization(device: Device, samples: Samples) -> Way:
    function, rates = library_function("nvmlDeviceGetUtilizationRates"), (c_uint * 2)()

    def way(values: Values, missing: Missing) -> None:
        samples.rate = None
        device.call_library(function, rates)
        util, mem_util = rates
        if util <= 100 and mem_util <= 100:
            samples.rate = values["util_pct"] = float(util)
            values["mem_util_pct"] = float(mem_util)
            return
        take("util_pct", lambda: percent(util), values, missing)
        take("mem_util_pct", lambda: percent(mem_util), values, missing)
        samples.rate = util if "util_pct" in values else None

    return way


class Samples:
    """nvmlDeviceGetSamples: the latest utilization, with the moment the driver took it, on CLOCK_MONOTONIC.

    This call costs a real driver milliseconds of CPU, nvmlDeviceGetUtilizationRates microseconds. So it is made when there can be a newer
    sample and the rate has changed, and else each second. Samples in between that repeat the last value are known by the driver's rhythm;
    if GPM shows exactly when kernels ran, so are samples that change it.

    The driver stamps with the wall clock. A stamp from the future, or older than any refresh, is not used: the value of
    nvmlDeviceGetUtilizationRates then has no stamp.
    """

    __slots__ = (
        "_activity", "_age_ns", "_asked_ns", "_buffer", "_count", "_device", "_function", "_kind", "_latest", "_period_ns",
        "_rate_before", "_seen_us", "rate",
    )  # fmt: skip

    def __init__(self, device: Device, activity: FieldGroup | None = None) -> None:
        """``activity``: the group of GPM."""
        self._activity = activity
        self.rate: float | None = None  # the value of nvmlDeviceGetUtilizationRates in this poll, None without one
        self._rate_before: float | None = None
        self._device = device
        self._function = once(library_function, "nvmlDeviceGetSamples")
        self._buffer = (nvml.c_nvmlSample_t * 128)()
        self._count, self._kind = c_uint(), c_int()
        self._seen_us = 0
        self._latest: tuple[float, int] | None = None  # utilization in per cent, and when the driver took it
        self._period_ns = 0  # the driver's rhythm, 0 while it is unknown
        self._asked_ns = self._age_ns = 0  # when samples were asked for, and how old the latest was then

    def __call__(self, values: Values, missing: Missing) -> None:
        now_ns = time.monotonic_ns()
        if self._is_due(now_ns):
            self._asked_ns = now_ns
            self._fetch()
        elif self._is_exact and self.rate != self._rate_before:
            self._change(now_ns)
        self._rate_before = self.rate
        if self._latest and now_ns - self._latest[1] < _STALE_NS:
            values["util_pct"], values["util_t_ns"] = self._latest[0], self._latest[1] + self._repeated_ns(now_ns)
        else:
            missing["util_t_ns"] = "the driver keeps no fresh utilization samples"

    def _is_due(self, now_ns: int) -> bool:
        if self._latest is None or not self._period_ns or self.rate is None:
            return True
        if now_ns < self._latest[1] + self._period_ns * _JITTER:
            return False
        return now_ns - self._asked_ns >= _CHECK_NS or (self.rate != self._latest[0] and not self._is_exact)

    @property
    def _is_exact(self) -> bool:
        """True if GPM shows when kernels ran."""
        return self._activity is not None and self._activity.works and not self._activity.reason

    def _change(self, now_ns: int) -> None:
        """Take a changed rate for the driver's latest sample."""
        if self._latest is not None and self.rate is not None and self.rate != self._latest[0]:
            stamp_ns = self._latest[1]
            beats = max(1, (now_ns - stamp_ns) // self._period_ns)
            self._latest = float(self.rate), min(now_ns, stamp_ns + beats * self._period_ns)

    def _repeated_ns(self, now_ns: int) -> int:
        """ns between the latest sample and the newest one known to have the same value: nvmlDeviceGetUtilizationRates would have changed
        otherwise."""
        if self._latest is None or not self._period_ns or self.rate != self._latest[0]:
            return 0
        known_ns = now_ns - max(self._age_ns, _LAGS_NS) - self._latest[1]
        return max(0, known_ns) // self._period_ns * self._period_ns

    def _fetch(self) -> None:
        self._count.value = len(self._buffer)
        since = c_ulonglong(self._seen_us if is_past(self._seen_us) else 0)
        out = byref(self._kind), byref(self._count), self._buffer
        try:
            self._device.call_library(self._function(), nvml.NVML_GPU_UTILIZATION_SAMPLES, since, *out)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NOT_FOUND:
                return  # nothing newer than what was seen
            raise
        samples = [sample for sample in self._buffer[: min(self._count.value, len(self._buffer))] if is_past(sample.timeStamp)]
        newest = max(samples, key=_stamp_us, default=None)
        if newest is None or not newest.timeStamp:
            return
        if len(samples) >= _RHYTHM:
            self._period_ns = _rhythm_ns(list(map(_stamp_us, samples)))
        self._seen_us = newest.timeStamp
        now_ns, self._age_ns = time.monotonic_ns(), max(0, time.time_ns() - newest.timeStamp * 1000)
        self._latest = percent(value_number(newest.sampleValue, self._kind.value)), now_ns - self._age_ns


def _stamp_us(sample: nvml.c_nvmlSample_t) -> int:
    stamp: int = sample.timeStamp
    return stamp


def _rhythm_ns(stamps_us: list[int]) -> int:
    """The median gap between stamps; 0 if that is no driver's rhythm."""
    ordered = sorted(set(stamps_us))
    gaps = sorted(newer - older for older, newer in pairwise(ordered))
    middle_ns = gaps[len(gaps) // 2] * 1000 if gaps else 0
    return middle_ns if middle_ns >= _LEAST_RHYTHM_NS else 0


def _power_instant(device: Device) -> Way:
    fields = KeptFields(device, _POWER_INSTANT)

    def way(values: Values, _: Missing) -> None:
        fields.read()
        values["power_w"], values["power_instant"] = watts(fields.number(0)), True

    return way


def _power_usage(device: Device) -> Way:
    def way(values: Values, _: Missing) -> None:
        values["power_w"], values["power_instant"] = watts(device.call(nvml.nvmlDeviceGetPowerUsage)), False

    return way


def _throttle(device: Device) -> Way:
    # The second is its name before R535.
    function = library_function("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    mask = c_ulonglong()

    def way(values: Values, _: Missing) -> None:
        device.call_library(function, byref(mask))
        values["throttle_mask"] = count(mask.value)

    return way


def _memory_v2(device: Device) -> Way:
    def way(values: Values, _: Missing) -> None:
        info = device.call(nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlMemory_v2)
        total = memory(info.total)
        values["mem_used_bytes"], values["mem_total_bytes"] = part_of(total, info.used), total
        values["mem_reserved_bytes"] = part_of(total, info.reserved)

    return way


def _memory_v1(device: Device) -> Way:
    def way(values: Values, missing: Missing) -> None:
        try:
            info = device.call(nvml.nvmlDeviceGetMemoryInfo)
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_NOT_SUPPORTED or device.mig:
                raise
            _memory_of_host(values, missing)
            return
        total = memory(info.total)
        values["mem_used_bytes"], values["mem_total_bytes"] = part_of(total, info.used), total
        missing["mem_reserved_bytes"] = "it is counted as used"

    return way


def _memory_of_host(values: Values, missing: Missing) -> None:
    """Read the memory of a GPU that shares the host's: all that is in use (/proc/meminfo), because NVML only knows what the GPU's processes
    hold."""
    with open(MEMINFO, "rb") as file:
        host = memory_fields(file.read())
    total, available = host.get("mem_total_bytes"), host.get("mem_available_bytes")
    if not isinstance(total, int) or not isinstance(available, int):
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    values["mem_used_bytes"], values["mem_total_bytes"], values["mem_shared"] = part_of(total, total - available), total, True
    missing["mem_reserved_bytes"] = "the GPU shares the host's memory"


class PcieCounters:
    """Bytes over PCIe since gputop began (fields 197 and 198).

    Counters of an H200 have 32 bits, and its link carries more in 0.1 s. The rate at the moment then shows how often a counter
    overflowed. If it may have overflowed more than once there is no value.
    """

    __slots__ = ("_counted", "_fields", "_last", "_link_bytes_per_ns", "_overflowed", "_read_ns")

    def __init__(self, device: Device) -> None:
        self._fields = KeptFields(device, _PCIE_TX, _PCIE_RX)
        self._link_bytes_per_ns = _link_bytes_per_ns(device)
        self._last: list[int] = []
        self._read_ns = 0
        self._counted = [0, 0]
        self._overflowed = [False, False]  # whether each overflowed between the last two readings

    def __call__(self, values: Values, _: Missing) -> None:
        began_ns, numbers = time.monotonic_ns(), self._read()
        ns, self._read_ns = began_ns - self._read_ns, began_ns
        older, self._last = self._last, numbers
        for at, name in enumerate(PCIE_COUNTERS):
            if older:
                grown = numbers[at] - older[at]
                self._counted[at] += self._unwrapped(at, grown, ns) if self._fields.is_32_bit(at) else max(0, grown)
            values[name] = self._counted[at]

    def _unwrapped(self, at: int, grown: int, ns: int) -> int:
        """Bytes by which a counter of 32 bits grew within ``ns``. Raises NoValue if that is unknown."""
        seen, most = grown % _ROUND, self._link_bytes_per_ns * ns
        if seen + _ROUND > most:
            return seen
        if seen + 2 * _ROUND <= most:
            raise NoValue("the counter overflows more than once between two readings")
        self._overflowed[at] = (self._overflowed[at] or seen > _MUCH) and self._pace(at) * ns > seen + _ROUND / 2
        return seen + self._overflowed[at] * _ROUND

    def _pace(self, at: int) -> float:
        """Bytes per ns at this moment."""
        before, began_ns = self._read()[at], time.monotonic_ns()
        time.sleep(_PACE_S)
        return (self._read()[at] - before) % _ROUND / (time.monotonic_ns() - began_ns)

    def _read(self) -> list[int]:
        self._fields.read()
        return [count(self._fields.number(at), " bytes") for at in range(self._fields.count)]


def _link_bytes_per_ns(device: Device) -> float:
    """Largest bytes per ns that the PCIe link carries one way; 0 if the driver does not report its generation and width."""
    try:
        generation = link(device.call(nvml.nvmlDeviceGetMaxPcieLinkGeneration))
        lanes = link(device.call(nvml.nvmlDeviceGetMaxPcieLinkWidth))
    except FAILURES:
        return 0.0
    return (link_bytes_per_s(generation, lanes) or 0.0) / SECOND_NS
