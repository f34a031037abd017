"""GPM (Hopper and later): what the SMs and the PCIe link did between two samples, without DCGM."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from ctypes import Structure, byref, c_uint, sizeof
from time import monotonic_ns

from gputop.model.frame import SECOND_NS
from gputop.sources.nvml import binding as nvml
from gputop.sources.nvml import numbers
from gputop.sources.nvml.driver import FAILURES, Device, field_number, library_function, why
from gputop.sources.nvml.groups import Missing, Values

GPM_FIELDS = ("sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct", "gr_active_pct")
PCIE_COUNTERS = ("pcie_tx_bytes", "pcie_rx_bytes")
C2C_COUNTERS = ("c2c_tx_bytes", "c2c_rx_bytes")
# nvmlGpmMetricId_t: SM_UTIL, SM_OCCUPANCY, ANY_TENSOR_UTIL, DRAM_BW_UTIL, PCIE_TX_PER_SEC, PCIE_RX_PER_SEC
_METRICS = (2, 3, 5, 10, 20, 21)
_C2C_METRICS = (102, 103)  # C2C_DATA_TX_PER_SEC, C2C_DATA_RX_PER_SEC, of a GPU with links to a Grace CPU
_C2C_LINK_COUNT = 170  # NVML_FI_DEV_C2C_LINK_COUNT
_FIRST_METRICS = 4  # metrics that are asked for alone if a library refuses the whole list
_KERNELS = 1  # GRAPHICS_UTIL
_MIG_METRICS = (_KERNELS, 2)
# A reading of the kernels' time stands for the polls after it while SM activity stays the same. In 19 jobs on an H200 that is off by
# 0.5 per cent in the mean and 3.4 in 99 of 100 polls, and saves six of ten readings (measured).
_ALIKE, _ALIKE_PCT = 0.05, 0.05  # part of SM activity, and per cent, by which it may differ
_ALIKE_NS = 480_000_000  # ns for which a reading stands at most
_REFUSALS = (nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NOT_FOUND)
_MOST_PCT = 101  # GPM rounds beyond 100
_MIB, _MOST_MIB_PER_S = 1 << 20, 1_000_000  # no link reaches a terabyte a second
GPM_LEAST_NS = 100_000_000  # ns: shorter intervals give invalid values on Hopper (NVIDIA/DCGM issue 310)
_TOO_SOON_NS = 80_000_000  # ns since the last sample within which that one stands
_SLACK_PCT = 2.0  # by which kernels may have run less than SMs were at work
_NONE = "GPM has no such metric on this GPU"
_LIES = "the driver reported busy SMs without a kernel, which is impossible; next try after {:.0f} s"
_FIRST_PAUSE_NS = 30 * SECOND_NS  # ns without the metric after its first wrong value (guess: little of a job's life)
_LONGEST_PAUSE_NS = 600 * SECOND_NS  # ns, the longest, after doubling: a driver that is always wrong then costs 6 readings of 1 ms an hour
FIRST = "not yet: GPM compares two samples, 0.1 s apart"


class _MetricsGet(Structure):
    """nvmlGpmMetricsGet_t with room for our metrics: the library uses numMetrics entries, and nvml.h has room for hundreds."""

    _fields_ = [*nvml.c_nvmlGpmMetricsGet_t._fields_, ("metrics", nvml.c_nvmlGpmMetric_t * len(_METRICS + _C2C_METRICS))]


_METRIC = nvml.c_nvmlGpmMetric_t
_CODE_AND_VALUE = f"{_METRIC.nvmlReturn.offset}xid{sizeof(_METRIC) - _METRIC.metricInfo.offset}x"
_RESULTS = {count: struct.Struct("=" + count * _CODE_AND_VALUE) for count in range(1, len(_METRICS + _C2C_METRICS) + 1)}
"""Number of metrics -> code and value of each, in turn. Unpacking costs a fraction of the structures' attributes."""


def _request(numbers: tuple[int, ...]) -> _MetricsGet:
    request = _MetricsGet(version=nvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(numbers))
    for slot, number in zip(request.metrics, numbers, strict=False):
        slot.metricId = number
    return request


class Gpm:
    """The metrics of a GPU, or of one MIG instance, since the previous call; the first call only takes a sample."""

    __slots__ = (
        "_device",
        "_failure",
        "_get",
        "_has_compared",
        "_kernels",
        "_metrics_get",
        "_newer",
        "_older",
        "_over_c2c",
        "_over_pcie",
        "_sample_get",
        "_sampled_ns",
        "_scope",
    )

    def __init__(self, device: Device, gpu_instance: int | None = None) -> None:
        """Raises nvml.NVMLError if the GPU has no GPM."""
        self._device = device
        if not device.call(nvml.nvmlGpmQueryDeviceSupport).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        self._scope = () if gpu_instance is None else (c_uint(gpu_instance),)
        self._sample_get = library_function("nvmlGpmSampleGet" if gpu_instance is None else "nvmlGpmMigSampleGet")
        self._metrics_get = library_function("nvmlGpmMetricsGet")
        c2c = _C2C_METRICS if gpu_instance is None and _has_c2c(device) else ()
        self._get = _request(_METRICS + c2c if gpu_instance is None else _MIG_METRICS)
        self._older, self._newer = self._new_sample(), self._new_sample()
        self._kernels = _Kernels()
        self._sampled_ns = 0
        self._has_compared = False  # whether the last call had a sample before it
        self._failure: nvml.NVMLError | None = None  # of the last call
        self._over_pcie, self._over_c2c = _Moved(PCIE_COUNTERS), _Moved(C2C_COUNTERS, may_rest=True)

    def __call__(self, values: Values, missing: Missing) -> None:
        for field, value in zip(GPM_FIELDS, self.read(), strict=False):
            if isinstance(value, float):
                values[field] = value
            elif value:
                missing[field] = value

    def add_pcie_to(self, values: Values) -> None:
        """Bytes over PCIe, by the rates of this poll's reading: no call of its own, and no 32 bits that overflow. Raises its error.

        Nothing in a poll in which GPM is not due.
        """
        self._add(self._over_pcie, values)

    def add_c2c_to(self, values: Values) -> None:
        """Bytes over C2C, as `add_pcie_to`."""
        self._add(self._over_c2c, values)

    def _add(self, moved: _Moved, values: Values) -> None:
        if self._failure is not None:
            raise self._failure
        if self._has_compared and not moved.sums:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        moved.give(values)

    def close(self) -> None:
        """Free the samples."""
        for sample in (self._older, self._newer):
            self._device.disown(sample)

    def read(self) -> list[float | str]:
        """A value of each of `GPM_FIELDS`, or of a MIG instance its utilization and SM activity.

        A text is the reason for no value; it is empty if the last value stands. Raises nvml.NVMLError.
        """
        now_ns = monotonic_ns()
        if now_ns - self._sampled_ns < _TOO_SOON_NS:
            return [""] * len(GPM_FIELDS)
        try:
            self._failure = None
            return self._sample(now_ns)
        except nvml.NVMLError as error:
            self._failure = error
            raise

    def _new_sample(self) -> object:
        sample: object = nvml.nvmlGpmSampleAlloc()
        self._device.own(sample, nvml.nvmlGpmSampleFree)
        return sample

    def _sample(self, now_ns: int) -> list[float | str]:
        self._device.call_library(self._sample_get, *self._scope, self._newer)
        try:
            self._has_compared = bool(self._sampled_ns)
            return self._compare(now_ns - self._sampled_ns) if self._sampled_ns else [FIRST] * len(GPM_FIELDS)
        finally:
            self._sampled_ns = now_ns
            self._older, self._newer = self._newer, self._older

    def _compare(self, ns: int) -> list[float | str]:
        while True:
            try:
                self._ask(self._get)
                break
            except nvml.NVMLError as error:
                if error.value not in _REFUSALS or self._get.numMetrics <= _FIRST_METRICS:
                    raise
                self._get.numMetrics = len(_METRICS) if self._get.numMetrics > len(_METRICS) else _FIRST_METRICS
        results = _RESULTS[self._get.numMetrics].unpack_from(self._get, _MetricsGet.metrics.offset)
        codes, numbers = results[::2], results[1::2]
        values: list[float | str] = [*map(_value_of, codes, numbers[:_FIRST_METRICS])]
        if self._scope:
            return values
        pcie, c2c = slice(_FIRST_METRICS, len(_METRICS)), slice(len(_METRICS), None)
        self._over_pcie.add(codes[pcie], numbers[pcie], ns / 1e9)
        self._over_c2c.add(codes[c2c], numbers[c2c], ns / 1e9)
        return [*values, self._kernels.read(values[0], self._sampled_ns + ns, self._ask)]

    def _ask(self, request: _MetricsGet) -> None:
        """Fill in the request from the two samples. Raises nvml.NVMLError."""
        request.sample1, request.sample2 = self._older, self._newer
        self._device.meter.count()
        if code := self._metrics_get(byref(request)):
            raise nvml.NVMLError(code)


class _Moved:
    """Bytes over a link from the GPU and to it since the first sample, by GPM's rates."""

    __slots__ = ("_has_moved", "_may_rest", "_names", "sums")

    def __init__(self, names: tuple[str, str], may_rest: bool = False) -> None:
        """``names`` of the counters: sent, received. ``may_rest``: nothing moves on the link by itself."""
        self._names, self._may_rest = names, may_rest
        self.sums: list[float] = []  # empty while there are none
        self._has_moved = False  # whether they were read since they were last given

    def add(self, codes: tuple[int, ...], rates: tuple[float, ...], seconds: float) -> None:
        """Add a reading. A PCIe link that is up is never quite silent: rates of 0 are believed only after others."""
        if not rates or any(codes) or not all(0 <= rate <= _MOST_MIB_PER_S for rate in rates):
            self.sums = []
        elif self.sums or any(rates) or self._may_rest:
            self.sums = [had + rate * _MIB * seconds for had, rate in zip(self.sums or (0.0, 0.0), rates, strict=True)]
            self._has_moved = True

    def give(self, values: Values) -> None:
        """Put the sums into ``values``, if they were read since."""
        if self._has_moved:
            self._has_moved = False
            values.update(zip(self._names, map(int, self.sums), strict=False))


class _Kernels:
    """Share of time in which any kernel ran, between two samples.

    It costs an H200 a millisecond of CPU, all other metrics together a hundredth of that (measured). So it is read when SMs worked for
    another share of time than at the last reading, and now and then.

    A driver may know the metric's number only, or be wrong once. After a value below the SMs' share the metric is not read for a while, and
    twice as long each time. Then it is believed again once it agrees with SMs at work; with idle SMs a 0 proves nothing.
    """

    __slots__ = ("_again_ns", "_asked_ns", "_get", "_pause_ns", "_sms", "_value")

    def __init__(self) -> None:
        self._get = _request((_KERNELS,))
        self._value: float | str = ""
        self._sms, self._asked_ns = 0.0, 0
        self._again_ns = 0  # when it may be asked again after a wrong value, 0 while it is believed
        self._pause_ns = _FIRST_PAUSE_NS  # after the next wrong value

    def read(self, sms: float | str, now_ns: int, ask: Callable[[_MetricsGet], None]) -> float | str:
        """The metric in per cent, or the reason for no value. ``sms``: SM activity; ``ask`` fills in a request. Raises
        nvml.NVMLError."""
        if self._again_ns and (now_ns < self._again_ns or not isinstance(sms, float) or sms <= _SLACK_PCT):
            return self._value
        if not isinstance(sms, float):
            return self._ask(0.0, now_ns, ask)
        is_idle = isinstance(self._value, float) and sms == 0.0
        is_alike = abs(sms - self._sms) <= max(_ALIKE_PCT, _ALIKE * self._sms) and now_ns - self._asked_ns < _ALIKE_NS
        value = self._value if is_idle or (is_alike and self._asked_ns) else self._ask(sms, now_ns, ask)
        return value if not isinstance(value, float) else 0.0 if is_idle else max(sms, value)

    def _ask(self, sms: float, now_ns: int, ask: Callable[[_MetricsGet], None]) -> float | str:
        try:
            ask(self._get)
            value = _value_of(self._get.metrics[0].nvmlReturn, self._get.metrics[0].value)
        except nvml.NVMLError as error:
            if error.value not in _REFUSALS:
                raise
            value = _NONE
        if isinstance(value, float) and value < sms - _SLACK_PCT:
            value, self._again_ns = _LIES.format(self._pause_ns / SECOND_NS), now_ns + self._pause_ns
            self._pause_ns = min(2 * self._pause_ns, _LONGEST_PAUSE_NS)
        elif isinstance(value, float):
            self._again_ns = 0
        self._value, self._sms, self._asked_ns = value, sms, now_ns
        return value


def _has_c2c(device: Device) -> bool:
    """True if the GPU has links to a Grace CPU. Raises the error of a lost GPU."""
    try:
        return numbers.count(field_number(*device.fields(_C2C_LINK_COUNT))) > 0
    except FAILURES as error:
        if why(error).lost:
            raise
        return False


def _value_of(code: int, value: float) -> float | str:
    """The value in per cent, or the reason for having no value."""
    if code or math.isnan(value):
        return _NONE
    if not 0 <= value <= _MOST_PCT:
        return f"the driver reports {value:g} %, which is impossible"
    return min(value, 100.0)
