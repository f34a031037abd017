# ruff: noqa: N801, N802, N816 - the names are those of nvml.h
"""NVML's library by ctypes: the functions, structures and codes that gputop uses, by the names of nvml.h.

NVIDIA's Python module nvidia-ml-py has all of them, and would add 1.6 MiB to the collector (measured). The tests compare these with that
module. A function whose name begins with ``nvml`` raises `NVMLError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import (
    CDLL,
    Array,
    Structure,
    Union,
    byref,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_longlong,
    c_ubyte,
    c_uint,
    c_uint32,
    c_ulong,
    c_ulonglong,
    c_ushort,
    c_void_p,
    create_string_buffer,
    sizeof,
)
from typing import Any

NVML_SUCCESS = 0
NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_INSUFFICIENT_SIZE = 7
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_TIMEOUT = 10
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_RESET_REQUIRED = 16
NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
NVML_ERROR_NO_DATA = 21
NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25
NVML_ERROR_UNKNOWN = 999

NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
NVML_DEVICE_MIG_ENABLE = 1
NVML_GPU_UTILIZATION_SAMPLES = 1
NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
NVML_PSTATE_UNKNOWN = 32
NVML_TEMPERATURE_GPU = 0
NVML_VALUE_TYPE_UNSIGNED_INT, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 1, 3
NVML_VOLATILE_ECC = 0
NVML_GPM_METRICS_GET_VERSION = NVML_GPM_SUPPORT_VERSION = 1
nvmlEventTypeXidCriticalError = 8
nvmlMemory_v2 = 0x02000028  # version 2 of a structure of 0x28 bytes
nvmlTemperature_v1 = 0x0100000C

_TEXT_BYTES = 96  # of the longest text: names and UUIDs of version 2 (NVML_DEVICE_UUID_V2_BUFFER_SIZE)
_MORE_PAGES = 5  # room for pages that are retired between two calls

nvmlLib: CDLL | None = None  # the driver's library, once `nvmlInit` has loaded it


class NVMLError(Exception):
    """A call that failed; ``value`` is NVML's code."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        """The library's own words."""
        try:
            describe = _function("nvmlErrorString")
        except NVMLError:
            return f"NVML error {self.value}"
        describe.restype = c_char_p
        text: bytes | None = describe(self.value)
        return (text or b"").decode(errors="replace")


# structures


class c_nvmlValue_t(Union):
    """A number whose member an nvmlValueType_t names."""

    _fields_ = [
        ("dVal", c_double), ("uiVal", c_uint), ("ulVal", c_ulong), ("ullVal", c_ulonglong), ("sllVal", c_longlong), ("siVal", c_int),
        ("usVal", c_ushort),
    ]  # fmt: skip


class c_nvmlFieldValue_t(Structure):
    """A field, and its value or why it has none."""

    _fields_ = [
        ("fieldId", c_uint32), ("scopeId", c_uint32), ("timestamp", c_int64), ("latencyUsec", c_int64), ("valueType", c_uint),
        ("nvmlReturn", c_uint), ("value", c_nvmlValue_t),
    ]  # fmt: skip


class c_nvmlSample_t(Structure):
    """A sample, and the driver's clock then."""

    _fields_ = [("timeStamp", c_ulonglong), ("sampleValue", c_nvmlValue_t)]


class c_nvmlProcessUtilizationSample_t(Structure):
    """What a process used of the GPU, in per cent."""

    _fields_ = [("pid", c_uint), ("timeStamp", c_ulonglong), *((f"{unit}Util", c_uint) for unit in ("sm", "mem", "enc", "dec"))]


class _MetricInfo(Structure):
    _fields_ = [("shortName", c_char_p), ("longName", c_char_p), ("unit", c_char_p)]


class c_nvmlGpmMetric_t(Structure):
    """A metric of GPM, and its value or why it has none."""

    _fields_ = [("metricId", c_uint), ("nvmlReturn", c_uint), ("value", c_double), ("metricInfo", _MetricInfo)]


class c_nvmlGpmMetricsGet_t(Structure):
    """The head of a request for metrics; they follow it."""

    _fields_ = [("version", c_uint), ("numMetrics", c_uint), ("sample1", c_void_p), ("sample2", c_void_p)]


class c_nvmlGpmSupport_t(Structure):
    """Whether a GPU has GPM."""

    _fields_ = [("version", c_uint), ("isSupportedDevice", c_uint)]


class c_nvmlGpuFabricInfo_v2_t(Structure):
    """How a GPU stands in the NVLink fabric."""

    _fields_ = [
        ("version", c_uint), ("clusterUuid", c_ubyte * 16), ("status", c_uint), ("cliqueId", c_uint),
        ("state", c_uint), ("healthMask", c_uint),  # of the state one byte is in use, as NVIDIA's module has it
    ]  # fmt: skip


class c_nvmlEventData_t(Structure):
    """An event of a GPU."""

    _fields_ = [
        ("device", c_void_p), ("eventType", c_ulonglong), ("eventData", c_ulonglong), ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    ]  # fmt: skip


class c_nvmlMemory_t(Structure):
    """The memory of a GPU, in bytes; the driver's own share is a part of what is used."""

    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class c_nvmlMemory_v2_t(Structure):
    """The memory of a GPU, in bytes; the driver's own share is apart."""

    _fields_ = [("version", c_uint), ("total", c_ulonglong), ("reserved", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class nvmlPciInfo_t(Structure):
    """Where a GPU is on the PCI bus."""

    _fields_ = [
        ("busIdLegacy", c_char * 16), *((name, c_uint) for name in ("domain", "bus", "device", "pciDeviceId", "pciSubSystemId")),
        ("busId", c_char * 32),
    ]  # fmt: skip


class c_nvmlDeviceAttributes(Structure):
    """What a MIG instance has of its GPU."""

    _fields_ = [
        *((f"{name}Count", c_uint) for name in (
            "multiprocessor", "sharedCopyEngine", "sharedDecoder", "sharedEncoder", "sharedJpeg", "sharedOfa", "gpuInstanceSlice",
            "computeInstanceSlice",
        )),
        ("memorySizeMB", c_ulonglong),
    ]  # fmt: skip


class c_nvmlTemperature_v1_t(Structure):
    """A temperature, in degrees Celsius."""

    _fields_ = [("version", c_uint), ("sensorType", c_uint), ("temperature", c_int)]


# calls


def _function(name: str) -> Any:
    """A function of the library."""
    if nvmlLib is None:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)
    try:
        return getattr(nvmlLib, name)
    except AttributeError:
        raise NVMLError(NVML_ERROR_FUNCTION_NOT_FOUND) from None


def _call(name: str, *arguments: object) -> None:
    if code := _function(name)(*arguments):
        raise NVMLError(code)


def _number(name: str, kind: Any = c_uint) -> Callable[..., int]:
    """A function that gives one number; its arguments are a handle, if any, and unsigned ints."""

    def read(*arguments: Any) -> int:
        number = kind()
        _call(name, *arguments, byref(number))
        return int(number.value)

    return read


def _numbers(name: str, count: int) -> Callable[[object], list[int]]:
    """A function that gives several unsigned ints of a device."""

    def read(handle: object) -> list[int]:
        found = [c_uint() for _ in range(count)]
        _call(name, handle, *map(byref, found))
        return [number.value for number in found]

    return read


def _text(name: str) -> Callable[..., str]:
    """A function that gives a text, of a device or of the system."""

    def read(*handle: object) -> str:
        text = create_string_buffer(_TEXT_BYTES)
        _call(name, *handle, text, c_uint(_TEXT_BYTES))
        return text.value.decode()

    return read


def _handle(name: str) -> Callable[..., c_void_p]:
    """A function that makes or finds something, such as a device; its arguments are a handle, if any, and unsigned ints."""

    def read(*arguments: Any) -> c_void_p:
        found = c_void_p()
        _call(name, *arguments, byref(found))
        return found

    return read


def nvmlInit() -> None:
    """Load the driver's library, unless that was done, and start it."""
    global nvmlLib
    if nvmlLib is None:
        try:
            nvmlLib = CDLL("libnvidia-ml.so.1")
        except OSError:
            raise NVMLError(NVML_ERROR_LIBRARY_NOT_FOUND) from None
    _call("nvmlInitWithFlags", c_uint(0))


def nvmlShutdown() -> None:
    """End what `nvmlInit` started."""
    _call("nvmlShutdown")


nvmlSystemGetDriverVersion = _text("nvmlSystemGetDriverVersion")
nvmlSystemGetNVMLVersion = _text("nvmlSystemGetNVMLVersion")
nvmlSystemGetCudaDriverVersion = _number("nvmlSystemGetCudaDriverVersion", c_int)
nvmlDeviceGetCount = _number("nvmlDeviceGetCount_v2")
nvmlDeviceGetHandleByIndex = _handle("nvmlDeviceGetHandleByIndex_v2")
nvmlDeviceGetMigDeviceHandleByIndex = _handle("nvmlDeviceGetMigDeviceHandleByIndex")
nvmlEventSetCreate = _handle("nvmlEventSetCreate")
nvmlGpmSampleAlloc = _handle("nvmlGpmSampleAlloc")

nvmlDeviceGetUUID = _text("nvmlDeviceGetUUID")
nvmlDeviceGetName = _text("nvmlDeviceGetName")
nvmlDeviceGetArchitecture = _number("nvmlDeviceGetArchitecture")
nvmlDeviceGetClockInfo = _number("nvmlDeviceGetClockInfo")
nvmlDeviceGetComputeInstanceId = _number("nvmlDeviceGetComputeInstanceId")
nvmlDeviceGetComputeMode = _number("nvmlDeviceGetComputeMode")
nvmlDeviceGetCurrPcieLinkGeneration = _number("nvmlDeviceGetCurrPcieLinkGeneration")
nvmlDeviceGetCurrPcieLinkWidth = _number("nvmlDeviceGetCurrPcieLinkWidth")
nvmlDeviceGetDecoderUtilization = _numbers("nvmlDeviceGetDecoderUtilization", 2)
nvmlDeviceGetEncoderUtilization = _numbers("nvmlDeviceGetEncoderUtilization", 2)
nvmlDeviceGetEnforcedPowerLimit = _number("nvmlDeviceGetEnforcedPowerLimit")
nvmlDeviceGetFanSpeed = _number("nvmlDeviceGetFanSpeed")
nvmlDeviceGetGpuInstanceId = _number("nvmlDeviceGetGpuInstanceId")
nvmlDeviceGetMaxClockInfo = _number("nvmlDeviceGetMaxClockInfo")
nvmlDeviceGetMaxMigDeviceCount = _number("nvmlDeviceGetMaxMigDeviceCount")
nvmlDeviceGetMaxPcieLinkGeneration = _number("nvmlDeviceGetMaxPcieLinkGeneration")
nvmlDeviceGetMaxPcieLinkWidth = _number("nvmlDeviceGetMaxPcieLinkWidth")
nvmlDeviceGetMigMode = _numbers("nvmlDeviceGetMigMode", 2)
nvmlDeviceGetNvLinkState = _number("nvmlDeviceGetNvLinkState")
nvmlDeviceGetPcieThroughput = _number("nvmlDeviceGetPcieThroughput")
nvmlDeviceGetPerformanceState = _number("nvmlDeviceGetPerformanceState")
nvmlDeviceGetPowerManagementDefaultLimit = _number("nvmlDeviceGetPowerManagementDefaultLimit")
nvmlDeviceGetPowerManagementLimitConstraints = _numbers("nvmlDeviceGetPowerManagementLimitConstraints", 2)
nvmlDeviceGetPowerUsage = _number("nvmlDeviceGetPowerUsage")
nvmlDeviceGetRemappedRows = _numbers("nvmlDeviceGetRemappedRows", 4)
nvmlDeviceGetTemperature = _number("nvmlDeviceGetTemperature")
nvmlDeviceGetTotalEccErrors = _number("nvmlDeviceGetTotalEccErrors", c_ulonglong)
nvmlDeviceGetTotalEnergyConsumption = _number("nvmlDeviceGetTotalEnergyConsumption", c_ulonglong)


def nvmlDeviceGetMemoryInfo(handle: object, version: int = 0) -> c_nvmlMemory_t | c_nvmlMemory_v2_t:
    """The memory of a device; ``version``: of the structure, 0 for the first."""
    memory = c_nvmlMemory_v2_t(version=version) if version else c_nvmlMemory_t()
    _call("nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo", handle, byref(memory))
    return memory


def nvmlDeviceGetPciInfo(handle: object) -> nvmlPciInfo_t:
    """Where the device is on the PCI bus."""
    info = nvmlPciInfo_t()
    _call("nvmlDeviceGetPciInfo_v3", handle, byref(info))
    return info


def nvmlDeviceGetAttributes(handle: object) -> c_nvmlDeviceAttributes:
    """What a MIG instance has of its GPU."""
    attributes = c_nvmlDeviceAttributes()
    _call("nvmlDeviceGetAttributes_v2", handle, byref(attributes))
    return attributes


def nvmlDeviceGetTemperatureV(handle: object, sensor: int) -> int:
    """A temperature, by newer drivers."""
    found = c_nvmlTemperature_v1_t(version=nvmlTemperature_v1, sensorType=sensor)
    _call("nvmlDeviceGetTemperatureV", handle, byref(found))
    return int(found.temperature)


def nvmlDeviceGetFieldValues(handle: object, wanted: Sequence[int | tuple[int, int]]) -> Array[c_nvmlFieldValue_t]:
    """Values of field ids, or of pairs of id and scope."""
    values = (c_nvmlFieldValue_t * len(wanted))()
    for value, field in zip(values, wanted, strict=True):
        value.fieldId, value.scopeId = field if isinstance(field, tuple) else (field, 0)
    _call("nvmlDeviceGetFieldValues", handle, c_int32(len(wanted)), byref(values))
    return values


def nvmlDeviceGetRetiredPages(handle: object, cause: int) -> list[int]:
    """Addresses of the pages that were retired for a cause."""
    count, get = c_uint(), _function("nvmlDeviceGetRetiredPages")
    code = get(handle, c_uint(cause), byref(count), None)
    if code not in (NVML_SUCCESS, NVML_ERROR_INSUFFICIENT_SIZE):
        raise NVMLError(code)
    count.value = 2 * count.value + _MORE_PAGES
    pages = (c_ulonglong * count.value)()
    if code := get(handle, c_uint(cause), byref(count), pages):
        raise NVMLError(code)
    return list(pages[: count.value])


def nvmlDeviceGetProcessUtilization(handle: object, since_us: int) -> list[c_nvmlProcessUtilizationSample_t]:
    """Samples of processes since a stamp of the driver's."""
    count, get = c_uint(), _function("nvmlDeviceGetProcessUtilization")
    if (code := get(handle, None, byref(count), c_ulonglong(since_us))) != NVML_ERROR_INSUFFICIENT_SIZE:
        raise NVMLError(code)
    samples = (c_nvmlProcessUtilizationSample_t * count.value)()
    if code := get(handle, samples, byref(count), c_ulonglong(since_us)):
        raise NVMLError(code)
    return list(samples[: count.value])


def nvmlGpmQueryDeviceSupport(handle: object) -> c_nvmlGpmSupport_t:
    """Whether the device has GPM."""
    support = c_nvmlGpmSupport_t(version=NVML_GPM_SUPPORT_VERSION)
    _call("nvmlGpmQueryDeviceSupport", handle, byref(support))
    return support


def nvmlDeviceGetGpuFabricInfoV(handle: object) -> c_nvmlGpuFabricInfo_v2_t:
    """How the device stands in the NVLink fabric."""
    info = c_nvmlGpuFabricInfo_v2_t(version=sizeof(c_nvmlGpuFabricInfo_v2_t) | 2 << 24)
    _call("nvmlDeviceGetGpuFabricInfoV", handle, byref(info))
    return info


def nvmlGpmSampleFree(sample: object) -> None:
    _call("nvmlGpmSampleFree", sample)


def nvmlDeviceRegisterEvents(handle: object, kinds: int, event_set: object) -> None:
    """Let a set have the device's events of these kinds."""
    _call("nvmlDeviceRegisterEvents", handle, c_ulonglong(kinds), event_set)


def nvmlEventSetFree(event_set: object) -> None:
    _call("nvmlEventSetFree", event_set)
