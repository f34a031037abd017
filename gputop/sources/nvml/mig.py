"""MIG: the instances a GPU is split into, each with its memory and, on Hopper and later, its utilization and SM activity."""

from __future__ import annotations

from ctypes import Array, byref, c_uint, c_ulonglong, c_void_p
from functools import cache

import pynvml

from gputop.model.frame import MigInstance
from gputop.sources.nvml.abi import Attributes, Device, bind
from gputop.sources.nvml.gpm import FIRST, Gpm
from gputop.sources.nvml.numbers import NoValue, given, memory, part_of
from gputop.sources.nvml.reading import Missing, Values, take
from gputop.sources.nvml.reasons import FAILURES, why

FIELDS = tuple(name for name in MigInstance.__struct_fields__ if name not in ("index", "missing"))


_Part = tuple[object, ...]


def mig_is_on(device: Device) -> bool:
    """Whether the GPU is split now; raises pynvml.NVMLError, MissingSymbol."""
    current, pending = c_uint(), c_uint()
    device.call(bind("nvmlDeviceGetMigMode"), byref(current), byref(pending))
    return current.value == 1


class Mig:
    """Fills ``mig_mode`` and ``mig``. What cannot be read of one instance has its reason there and leaves the others alone."""

    __slots__ = ("_device", "_gpm", "_no_gpm", "_parts")

    def __init__(self, device: Device) -> None:
        self._device = device
        self._gpm: dict[_Part, Gpm] = {}
        self._no_gpm = ""
        """Why this GPU has none."""
        self._parts: set[_Part] = set()
        """How it was split at the last look."""

    def __call__(self, values: Values, _: Missing) -> None:
        before, self._parts = self._parts, set()
        values["mig_mode"] = on = mig_is_on(self._device)
        if on:
            numbers = range(self._device.number("nvmlDeviceGetMaxMigDeviceCount"))
            values["mig"] = [instance for instance in map(self._instance, numbers) if instance is not None]
        if self._parts != before:
            self._forget()

    def _forget(self) -> None:
        """What was learned of another split: an instance's number may have been given to a new one."""
        self._no_gpm = ""
        for part in self._gpm.keys() - self._parts:
            self._gpm.pop(part).close()

    def _instance(self, index: int) -> MigInstance | None:
        """None where there is none of that number."""
        handle = c_void_p()
        values: Values = {}
        missing: Missing = {}
        try:
            self._device.call(bind("nvmlDeviceGetMigDeviceHandleByIndex"), c_uint(index), byref(handle))
        except pynvml.NVMLError as error:
            cause = why(error)
            if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                return None
            if cause.lost:
                raise
            missing = dict.fromkeys(FIELDS, cause.text)
        else:
            self._read(Device(handle, self._device.meter), values, missing)
        return MigInstance(index, **values, missing=missing)  # type: ignore[arg-type]

    def _read(self, part: Device, values: Values, missing: Missing) -> None:
        asked, gpu_instance = cache(lambda: _memory(part)), cache(lambda: part.number("nvmlDeviceGetGpuInstanceId"))
        worked = cache(lambda: self._worked(_part(values), gpu_instance()))
        for field, read in (
            ("gpu_instance", gpu_instance),
            ("compute_instance", lambda: part.number("nvmlDeviceGetComputeInstanceId")),
            ("uuid", lambda: part.text("nvmlDeviceGetUUID")),
            ("profile", lambda: part.text("nvmlDeviceGetName").rpartition("MIG ")[2]),
            ("mem_used_bytes", lambda: part_of(memory(given(asked()[0])), given(asked()[2]))),
            ("mem_total_bytes", lambda: memory(given(asked()[0]))),
            ("sm_count", lambda: _sm_count(part)),
            ("util_pct", lambda: _told(worked()[0])),
            ("sm_active_pct", lambda: _told(worked()[1])),
        ):
            take(field, read, values, missing)
        self._parts.add(_part(values))

    def _worked(self, part: _Part, gpu_instance: int) -> list[float | str]:
        """Utilization and SM activity of the instance since the last look, or why there is none. Raises NVML's errors."""
        if part not in self._gpm:
            self._gpm[part] = self._start_gpm(gpu_instance)
        return self._gpm[part].read()

    def _start_gpm(self, gpu_instance: int) -> Gpm:
        if self._no_gpm:
            raise NoValue(self._no_gpm)
        try:
            return Gpm(self._device, gpu_instance)
        except FAILURES as error:
            cause = why(error)
            self._no_gpm = cause.text if cause.lasting else ""
            raise


def _part(values: Values) -> _Part:
    """Which instance it is, as far as that can be told."""
    return tuple(values.get(name) for name in ("gpu_instance", "compute_instance", "uuid", "profile"))


def _told(value: float | str) -> float:
    """Raises NoValue with the reason, on the first look too."""
    if isinstance(value, str):
        raise NoValue(value or FIRST)
    return value


def _memory(part: Device) -> Array[c_ulonglong]:
    """Total, free, used bytes (nvmlDeviceGetMemoryInfo)."""
    memory = (c_ulonglong * 3)()
    part.call(bind("nvmlDeviceGetMemoryInfo"), memory)
    return memory


def _sm_count(part: Device) -> int:
    attributes = Attributes()
    part.call(bind("nvmlDeviceGetAttributes_v2"), byref(attributes))
    return given(attributes.sms)
