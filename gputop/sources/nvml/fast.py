"""The readings of every tick, or of every other: calls that take microseconds, or a fraction of a millisecond on a busy driver."""

from __future__ import annotations

import struct
import time
from ctypes import byref, c_int, c_uint, c_ulonglong, sizeof
from itertools import pairwise

import pynvml

from gputop.model.frame import SECOND_NS, link_bytes_per_s
from gputop.sources.nvml.abi import Device, Fields, MemoryV2, Sample, bind, check, is_past, number_at
from gputop.sources.nvml.gpm import GPM_FIELDS, GPM_LEAST_NS, PCIE_COUNTERS, Gpm, Moved
from gputop.sources.nvml.numbers import NoValue, count, given, megahertz, memory, part_of, percent, some, watts
from gputop.sources.nvml.reading import Lazy, Missing, Reading, Values, Way, once, take
from gputop.sources.nvml.reasons import FAILURES

_MEMORY = ("mem_used_bytes", "mem_total_bytes", "mem_reserved_bytes")
_MEMORY_V2 = 0x02000028
STANDING_NS = SECOND_NS // 5
_POWER_INSTANT, _PCIE_TX, _PCIE_RX = 186, 197, 198
_CLOCK_SM = 1
_GPU_UTILIZATION_SAMPLES = 1
_STALE_NS = 3 * SECOND_NS
_CHECK_NS = SECOND_NS
"""After so long samples are asked for, whatever is known."""
_TELLS_NS = 120_000_000
"""Behind a new sample nvmlDeviceGetUtilizationRates may be by so much: drivers since R550 refresh it each 0.1 s."""
_JITTER = 0.95
"""Of the rhythm: a sample may come so early."""
_ROUND, _MUCH = 1 << 32, 1 << 28
"""What a counter of 32 bits holds, and what it grows by from one reading to the next before it may have gone round unseen."""
_PACE_S = 0.001
_RHYTHM, _LEAST_RHYTHM_NS = 4, 20_000_000
"""Samples that show a rhythm, and the shortest there may be: where they lie closer, any call may bring new ones."""
_SAMPLE_BYTES, _STAMP = sizeof(Sample), struct.Struct("=Q")


def fast_readings(device: Device, interval_ns: int) -> list[Reading]:
    """What one GPU is asked in every tick, cheapest and most wanted first; memory and clock in every other, since nobody sees them jump.

    Counters come before all else: there the tick's report has their time, however long the other calls take. GPM is one: it tells of the
    time since it was read last.
    """
    standing_ns, gpm = max(interval_ns, STANDING_NS), once(Gpm, device)
    kernels = Reading(GPM_FIELDS, max(interval_ns, GPM_LEAST_NS), Lazy(gpm), counts=True)
    samples = Samples(device, kernels)
    return [
        kernels,
        Reading(PCIE_COUNTERS, interval_ns, Moved(gpm), Lazy(PcieCounters, device), counts=True),
        Reading(("util_pct", "mem_util_pct"), interval_ns, Lazy(_utilization, device, samples)),
        Reading(("util_t_ns",), interval_ns, samples),
        Reading(("power_w", "power_instant"), interval_ns, Lazy(_power_instant, device), Lazy(_power_usage, device)),
        Reading(_MEMORY, standing_ns, Lazy(_memory_v2, device), Lazy(_memory_v1, device)),
        Reading(("sm_clock_mhz",), standing_ns, Lazy(_sm_clock, device)),
        Reading(("throttle_mask",), interval_ns, Lazy(_throttle, device, "Event"), Lazy(_throttle, device, "Throttle")),
    ]


def _utilization(device: Device, samples: Samples) -> Way:
    function, out = bind("nvmlDeviceGetUtilizationRates"), (c_uint * 2)()

    def way(values: Values, missing: Missing) -> None:
        samples.rate = None
        device.call(function, out)
        util, mem_util = out
        if util <= 100 and mem_util <= 100:
            samples.rate = values["util_pct"] = float(util)
            values["mem_util_pct"] = float(mem_util)
            return
        take("util_pct", lambda: percent(given(out[0])), values, missing)
        samples.rate = out[0] if "util_pct" in values else None
        take("mem_util_pct", lambda: percent(given(out[1])), values, missing)

    return way


class Samples:
    """nvmlDeviceGetSamples: the latest utilization with the moment the driver took it, on CLOCK_MONOTONIC.

    It costs a real driver milliseconds of CPU, where nvmlDeviceGetUtilizationRates costs microseconds: it is asked when there can be a
    newer one and that has changed, and else now and then. In between what the driver has measured again is known by its rhythm; so is
    what has changed, where GPM tells exactly when kernels ran.

    The driver stamps with the wall clock. A stamp that cannot be right (from the future, or older than any refresh) is
    not used: the value of nvmlDeviceGetUtilizationRates then stands without one.
    """

    __slots__ = (
        "_age_ns", "_asked_ns", "_buffer", "_count", "_device", "_function", "_kernels", "_kind", "_latest", "_period_ns", "_rate_before",
        "_seen_us", "rate",
    )  # fmt: skip

    def __init__(self, device: Device, kernels: Reading | None = None) -> None:
        """``kernels`` is GPM's reading, where there is one."""
        self._kernels = kernels
        self.rate: float | None = None
        """What nvmlDeviceGetUtilizationRates gave in this tick, None where it gave nothing."""
        self._rate_before: float | None = None
        self._device = device
        self._function = once(bind, "nvmlDeviceGetSamples")
        self._buffer = (Sample * 128)()
        self._count, self._kind = c_uint(), c_int()
        self._seen_us = 0
        self._latest: tuple[float, int] | None = None
        self._period_ns = self._asked_ns = self._age_ns = 0
        """The driver's rhythm, 0 while it is not known; when it was asked last, and how old the latest was then."""

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
        return self._kernels is not None and self._kernels.works and not self._kernels.reason

    def _change(self, now_ns: int) -> None:
        """What nvmlDeviceGetUtilizationRates gives anew was measured when the driver did so last."""
        if self._latest is not None and self.rate not in (None, self._latest[0]):
            stamp_ns = self._latest[1]
            beats = max(1, (now_ns - stamp_ns) // self._period_ns)
            self._latest = self.rate, min(now_ns, stamp_ns + beats * self._period_ns)

    def _repeated_ns(self, now_ns: int) -> int:
        """How much later the driver measured the same once more, as far as nvmlDeviceGetUtilizationRates would have told otherwise."""
        if self._latest is None or not self._period_ns or self.rate != self._latest[0]:
            return 0
        known_ns = now_ns - max(self._age_ns, _TELLS_NS) - self._latest[1]
        return max(0, known_ns) // self._period_ns * self._period_ns

    def _fetch(self) -> None:
        self._count.value = len(self._buffer)
        since = c_ulonglong(self._seen_us if is_past(self._seen_us) else 0)
        code = self._device.ask(self._function(), _GPU_UTILIZATION_SAMPLES, since, byref(self._kind), byref(self._count), self._buffer)
        if code == pynvml.NVML_ERROR_NOT_FOUND:
            return  # nothing newer than what was seen
        check(code)
        places = range(0, min(self._count.value, len(self._buffer)) * _SAMPLE_BYTES, _SAMPLE_BYTES)
        stamps = [stamp for at in places if is_past((stamp := (_STAMP.unpack_from(self._buffer, at)[0], at))[0])]
        us, at = max(stamps, default=(0, 0))
        if not us:
            return
        if len(stamps) >= _RHYTHM:
            self._period_ns = _rhythm_ns([stamp for stamp, _ in stamps])
        self._seen_us = us
        now_ns, self._age_ns = time.monotonic_ns(), max(0, time.time_ns() - us * 1000)
        self._latest = percent(number_at(self._buffer, at + Sample.value.offset, self._kind.value)), now_ns - self._age_ns


def _rhythm_ns(stamps_us: list[int]) -> int:
    """What mostly lies between two of them; 0 where that is no rhythm of a driver's."""
    ordered = sorted(set(stamps_us))
    gaps = sorted(newer - older for older, newer in pairwise(ordered))
    middle_ns = gaps[len(gaps) // 2] * 1000 if gaps else 0
    return middle_ns if middle_ns >= _LEAST_RHYTHM_NS else 0


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
    """Bytes over PCIe since gputop began (fields 197, 198). An H200's have 32 bits, and its link carries more than these hold in 0.1 s:
    how often they went round is then told by how fast they go at the moment. Where they may go round more than once they tell nothing."""

    __slots__ = ("_counted", "_fields", "_last", "_link_bytes_per_ns", "_read_ns", "_round")

    def __init__(self, device: Device) -> None:
        self._fields = Fields(device, _PCIE_TX, _PCIE_RX)
        self._link_bytes_per_ns = _link_bytes_per_ns(device)
        self._last: list[int] = []
        self._read_ns = 0
        self._counted = [0, 0]
        self._round = [False, False]
        """Whether each has gone round unseen the last time."""

    def __call__(self, values: Values, _: Missing) -> None:
        began_ns, numbers = time.monotonic_ns(), self._read()
        ns, self._read_ns = began_ns - self._read_ns, began_ns
        older, self._last = self._last, numbers
        for at, name in enumerate(PCIE_COUNTERS):
            if older:
                grown = numbers[at] - older[at]
                self._counted[at] += self._unwrapped(at, grown, ns) if self._fields.is_32_bit(at) else max(0, grown)
            values[name] = self._counted[at]

    def _read(self) -> list[int]:
        self._fields.read()
        return [count(self._fields.number(at), " bytes") for at in range(len(PCIE_COUNTERS))]

    def _unwrapped(self, at: int, grown: int, ns: int) -> int:
        """What it grew by in ``ns`` where it holds 32 bits. Raises NoValue where nothing tells."""
        seen, most = grown % _ROUND, self._link_bytes_per_ns * ns
        if seen + _ROUND > most:
            return seen
        if seen + 2 * _ROUND <= most:
            raise NoValue("the counter overflows more than once between two readings")
        self._round[at] = (self._round[at] or seen > _MUCH) and self._pace(at) * ns > seen + _ROUND / 2
        return seen + self._round[at] * _ROUND

    def _pace(self, at: int) -> float:
        """Bytes per ns at this moment."""
        before, began_ns = self._read()[at], time.monotonic_ns()
        time.sleep(_PACE_S)
        return (self._read()[at] - before) % _ROUND / (time.monotonic_ns() - began_ns)


def _link_bytes_per_ns(device: Device) -> float:
    """What the link carries at most one way, 0 where that is not told."""
    try:
        generation, lanes = (device.number(f"nvmlDeviceGetMaxPcieLink{what}") for what in ("Generation", "Width"))
    except FAILURES:
        return 0.0
    return (link_bytes_per_s(generation, lanes) or 0.0) / SECOND_NS
