"""GPM, Hopper and later: what the SMs and the PCIe link did between two samples, without DCGM."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from ctypes import Structure, byref, c_char_p, c_double, c_int, c_uint, c_void_p, sizeof
from time import monotonic_ns

import pynvml

from gputop.sources.nvml.abi import Device, Function, Meter, bind, check
from gputop.sources.nvml.reading import Missing, Values

GPM_FIELDS = ("sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct", "gr_active_pct")
PCIE_COUNTERS = ("pcie_tx_bytes", "pcie_rx_bytes")
# nvmlGpmMetricId_t: SM_UTIL, SM_OCCUPANCY, ANY_TENSOR_UTIL, DRAM_BW_UTIL, PCIE_TX_PER_SEC, PCIE_RX_PER_SEC
_METRICS = (2, 3, 5, 10, 20, 21)
_FIRST_METRICS = 4
"""So many are asked for where a library takes offence at all of them."""
_KERNELS = 1
"""GRAPHICS_UTIL"""
_MIG_METRICS = (_KERNELS, 2)
_ALIKE, _ALIKE_PCT, _ALIKE_NS = 0.05, 0.05, 480_000_000
"""Ticks in which SMs were at work for as long, but for such a part or so many per cent, hardly differ in when kernels ran: on an H200, in
each of 19 jobs, by 0.5 per cent at most in the mean and 3.4 in 99 of 100, with four of ten asked for. So long one stands for others."""
_OFFENCE = (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NOT_FOUND)
_MOST_PCT = 101
_MIB, _MOST_MIB_PER_S = 1 << 20, 1_000_000
"""A terabyte a second: no link is near it."""
GPM_LEAST_NS = 100_000_000
"""Shorter intervals give invalid values on Hopper (NVIDIA/DCGM issue 310)."""
_TOO_SOON_NS = 80_000_000
_SLACK_PCT = 2.0
_NONE = "GPM has no such metric on this GPU"
_LIES = "the driver says that SMs were at work without a kernel, which cannot be"
FIRST = "not yet: GPM compares two samples, 0.1 s apart"


class _Metric(Structure):
    _fields_ = [("id", c_uint), ("code", c_int), ("value", c_double), ("texts", c_char_p * 3)]


class _MetricsGet(Structure):
    # The library reads and writes as many metrics as `count` says; nvml.h's own array grows from release to release.
    _fields_ = [("version", c_uint), ("count", c_uint), ("older", c_void_p), ("newer", c_void_p), ("metrics", _Metric * len(_METRICS))]


_METRIC = f"{_Metric.code.offset}xid{sizeof(_Metric) - _Metric.texts.offset}x"
_TOLD = {count: struct.Struct("=" + count * _METRIC) for count in range(1, len(_METRICS) + 1)}
"""By how many metrics are asked for: code and value of each, in turn."""


class _Support(Structure):
    _fields_ = [("version", c_uint), ("supported", c_uint)]


class _Kernels:
    """How long any kernel ran between two samples. An H200 takes a millisecond of CPU for it, and a hundredth of one for all other metrics:
    it is asked where SMs have worked otherwise than in the tick that it was asked for last, and now and then."""

    __slots__ = ("_asked_ns", "_get", "_lies", "_meter", "_metrics", "_sms", "_value")

    def __init__(self, metrics: Function, meter: Meter) -> None:
        self._metrics, self._meter = metrics, meter
        self._get = _MetricsGet(1, 1, None, None, (_Metric * len(_METRICS))(_Metric(id=_KERNELS)))
        self._value: float | str = ""
        self._sms, self._asked_ns = 0.0, 0
        self._lies = False
        """Whether it has said that fewer kernels ran than SMs were at work, as who knows the metric's number only may."""

    def read(self, samples: _MetricsGet, sms: float | str, now_ns: int) -> float | str:
        """In per cent, or why not."""
        if self._lies:
            return _LIES
        if not isinstance(sms, float):
            return self._ask(samples, 0.0, now_ns)
        known = isinstance(self._value, float) and sms == 0.0
        alike = abs(sms - self._sms) <= max(_ALIKE_PCT, _ALIKE * self._sms) and now_ns - self._asked_ns < _ALIKE_NS
        value = self._value if known or (alike and self._asked_ns) else self._ask(samples, sms, now_ns)
        return value if not isinstance(value, float) else 0.0 if known else max(sms, value)

    def _ask(self, samples: _MetricsGet, sms: float, now_ns: int) -> float | str:
        self._get.older, self._get.newer = samples.older, samples.newer
        self._meter.count()
        code = self._metrics(byref(self._get))
        if code not in _OFFENCE:
            check(code)
        value = _NONE if code else _value_of(*_TOLD[1].unpack_from(self._get, _MetricsGet.metrics.offset))
        if isinstance(value, float) and value < sms - _SLACK_PCT:
            self._lies, value = True, _LIES
        self._value, self._sms, self._asked_ns = value, sms, now_ns
        return value


class Gpm:
    """The metrics of a GPU, or of one MIG instance of it, since the previous call; the first only begins."""

    __slots__ = ("_device", "_get", "_kernels", "_metrics", "_sample", "_sampled_ns", "_scope", "failure", "has_compared", "moved")

    def __init__(self, device: Device, gpu_instance: int | None = None) -> None:
        self._device = device
        support = _Support(version=1)
        device.call(bind("nvmlGpmQueryDeviceSupport"), byref(support))
        if not support.supported:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._scope: tuple[int, ...] = () if gpu_instance is None else (gpu_instance,)
        self._sample = bind("nvmlGpmSampleGet" if gpu_instance is None else "nvmlGpmMigSampleGet")
        self._metrics = bind("nvmlGpmMetricsGet")
        numbers = _METRICS if gpu_instance is None else _MIG_METRICS
        wanted = (_Metric * len(_METRICS))(*(_Metric(id=number) for number in numbers))
        self._get = _MetricsGet(1, len(numbers), _new_sample(device), _new_sample(device), wanted)
        self._kernels = _Kernels(self._metrics, device.meter)
        self._sampled_ns = 0
        self.has_compared = False
        """Whether the last call had a sample before it."""
        self.failure: pynvml.NVMLError | None = None
        """Of the last call."""
        self.moved: list[float] = []
        """Bytes over PCIe since the first sample, from the GPU and to it: what its rates come to; empty while it has told none."""

    def __call__(self, values: Values, missing: Missing) -> None:
        for field, value in zip(GPM_FIELDS, self.read(), strict=False):
            if isinstance(value, float):
                values[field] = value
            elif value:
                missing[field] = value

    def close(self) -> None:
        """Give its samples up."""
        for sample in (self._get.older, self._get.newer):
            self._device.disown(sample)

    def read(self) -> list[float | str]:
        """Of each of `GPM_FIELDS`, of a MIG instance of `_MIG_METRICS`; a text says why there is none, empty where the last one stands."""
        get, now_ns = self._get, monotonic_ns()
        if now_ns - self._sampled_ns < _TOO_SOON_NS:
            return [""] * len(GPM_FIELDS)
        try:
            self.failure = None
            return self._take(get, now_ns)
        except pynvml.NVMLError as error:
            self.failure = error
            raise

    def _take(self, get: _MetricsGet, now_ns: int) -> list[float | str]:
        self._device.call(self._sample, *self._scope, c_void_p(get.newer))
        try:
            self.has_compared = bool(self._sampled_ns)
            return self._compare(get, now_ns - self._sampled_ns) if self._sampled_ns else [FIRST] * len(GPM_FIELDS)
        finally:
            self._sampled_ns = now_ns
            get.older, get.newer = get.newer, get.older

    def _compare(self, get: _MetricsGet, ns: int) -> list[float | str]:
        self._device.meter.count()
        code = self._metrics(byref(get))
        if code in _OFFENCE and get.count > _FIRST_METRICS:
            get.count = _FIRST_METRICS
            code = self._metrics(byref(get))
        check(code)
        told = _TOLD[get.count].unpack_from(get, _MetricsGet.metrics.offset)
        codes, numbers = told[::2], told[1::2]
        values: list[float | str] = [*map(_value_of, codes, numbers[:_FIRST_METRICS])]
        if self._scope:
            return values
        self._move(codes[_FIRST_METRICS:], numbers[_FIRST_METRICS:], ns / 1e9)
        return [*values, self._kernels.read(get, values[0], self._sampled_ns + ns)]

    def _move(self, codes: tuple[int, ...], mib_per_s: tuple[float, ...], seconds: float) -> None:
        """A link that is up is never quite silent: until there is something nothing is believed to be told."""
        if len(codes) < len(PCIE_COUNTERS) or any(codes) or not all(0 <= one <= _MOST_MIB_PER_S for one in mib_per_s):
            self.moved = []
        elif self.moved or any(mib_per_s):
            self.moved = [had + one * _MIB * seconds for had, one in zip(self.moved or (0.0, 0.0), mib_per_s, strict=True)]


class Moved:
    """Bytes over PCIe as GPM's rates come to: no call of their own, and no 32 bits that overflow. A way for those who have read it."""

    __slots__ = ("_gpm",)

    def __init__(self, gpm: Callable[[], Gpm]) -> None:
        """``gpm`` gives what the tick has read already; raises where there is none."""
        self._gpm = gpm

    def __call__(self, values: Values, _: Missing) -> None:
        gpm = self._gpm()
        if gpm.failure is not None:
            raise gpm.failure
        if gpm.has_compared and not gpm.moved:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        values.update(zip(PCIE_COUNTERS, map(int, gpm.moved), strict=False))


def _new_sample(device: Device) -> int | None:
    sample = c_void_p()
    check(bind("nvmlGpmSampleAlloc")(byref(sample)))
    device.own(sample, "nvmlGpmSampleFree")
    return sample.value


def _value_of(code: int, value: float) -> float | str:
    if not code and 0 <= value <= 100:
        return value
    if code or math.isnan(value):
        return _NONE
    if not 0 <= value <= _MOST_PCT:
        return f"the driver says {value:g} %, which cannot be"
    return 100.0
