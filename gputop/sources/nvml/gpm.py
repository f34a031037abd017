"""GPM, Hopper and later: what the SMs did between two samples, without DCGM."""

from __future__ import annotations

import math
import struct
from ctypes import Structure
from ctypes import byref
from ctypes import c_char_p
from ctypes import c_double
from ctypes import c_int
from ctypes import c_uint
from ctypes import c_void_p
from ctypes import sizeof
from time import monotonic_ns

import pynvml

from gputop.sources.nvml.abi import Device
from gputop.sources.nvml.abi import bind
from gputop.sources.nvml.abi import check
from gputop.sources.nvml.reading import Missing
from gputop.sources.nvml.reading import Values

GPM_FIELDS = ("sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct")
# nvmlGpmMetricId_t: SM_UTIL, SM_OCCUPANCY, ANY_TENSOR_UTIL, DRAM_BW_UTIL; of a MIG instance GRAPHICS_UTIL (of any kernel), SM_UTIL
_METRICS = (2, 3, 5, 10)
_MIG_METRICS = (1, 2)
_MOST_PCT = 101
GPM_LEAST_NS = 100_000_000
"""Shorter intervals give invalid values on Hopper (NVIDIA/DCGM issue 310)."""
_TOO_SOON_NS = 80_000_000
FIRST = "not yet: GPM compares two samples, 0.1 s apart"


class _Metric(Structure):
    _fields_ = [("id", c_uint), ("code", c_int), ("value", c_double), ("texts", c_char_p * 3)]


class _MetricsGet(Structure):
    # The library reads and writes as many metrics as `count` says; nvml.h's own array grows from release to release.
    _fields_ = [("version", c_uint), ("count", c_uint), ("older", c_void_p), ("newer", c_void_p), ("metrics", _Metric * len(_METRICS))]


_PLACES = [_MetricsGet.metrics.offset + at * sizeof(_Metric) + _Metric.code.offset for at in range(len(_METRICS))]
_CODE_AND_VALUE = struct.Struct("=id")


class _Support(Structure):
    _fields_ = [("version", c_uint), ("supported", c_uint)]


class Gpm:
    """The metrics of a GPU, or of one MIG instance of it, since the previous call; the first only begins."""

    __slots__ = ("_device", "_get", "_metrics", "_sample", "_sampled_ns", "_scope")

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
        self._sampled_ns = 0

    def __call__(self, values: Values, missing: Missing) -> None:
        for field, value in zip(GPM_FIELDS, self.read(), strict=True):
            if isinstance(value, float):
                values[field] = value
            elif value:
                missing[field] = value

    def close(self) -> None:
        """Give its samples up."""
        for sample in (self._get.older, self._get.newer):
            self._device.disown(sample)

    def read(self) -> list[float | str]:
        """One value per metric; a text says why there is none, empty where the last one stands."""
        get, now_ns = self._get, monotonic_ns()
        if now_ns - self._sampled_ns < _TOO_SOON_NS:
            return [""] * get.count
        self._device.call(self._sample, *self._scope, c_void_p(get.newer))
        try:
            return self._compare(get) if self._sampled_ns else [FIRST] * get.count
        finally:
            self._sampled_ns = now_ns
            get.older, get.newer = get.newer, get.older

    def _compare(self, get: _MetricsGet) -> list[float | str]:
        self._device.meter.count()
        check(self._metrics(byref(get)))
        return [_value_of(*_CODE_AND_VALUE.unpack_from(get, at)) for at in _PLACES[: get.count]]


def _new_sample(device: Device) -> int | None:
    sample = c_void_p()
    check(bind("nvmlGpmSampleAlloc")(byref(sample)))
    device.own(sample, "nvmlGpmSampleFree")
    return sample.value


def _value_of(code: int, value: float) -> float | str:
    if code or math.isnan(value):
        return "GPM has no such metric on this GPU"
    if not 0 <= value <= _MOST_PCT:
        return f"the driver says {value:g} %, which cannot be"
    return min(100.0, value)
