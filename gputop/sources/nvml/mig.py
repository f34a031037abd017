"""MIG: the instances a GPU is split into, each with its memory and, on Hopper and later, its utilization and SM activity."""

from __future__ import annotations

from functools import cache

from gputop.model.frame import MigInstance
from gputop.sources.nvml import binding as nvml
from gputop.sources.nvml.driver import FAILURES, Device, why
from gputop.sources.nvml.gpm import FIRST, Gpm
from gputop.sources.nvml.groups import Missing, Values, take
from gputop.sources.nvml.numbers import NoValue, count, memory, part_of

FIELDS = tuple(name for name in MigInstance.__struct_fields__ if name not in ("index", "missing"))

_Key = tuple[object, ...]  # distinguishes an instance from one made later with the same index


def mig_is_on(device: Device) -> bool:
    """True if the GPU is split now. Raises nvml.NVMLError."""
    current, _pending = device.call(nvml.nvmlDeviceGetMigMode)
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


class Mig:
    """Fills ``mig_mode`` and ``mig``. If a field of an instance cannot be read, the reason is that instance's alone."""

    __slots__ = ("_device", "_gpm", "_keys", "_no_gpm")

    def __init__(self, device: Device) -> None:
        self._device = device
        self._gpm: dict[_Key, Gpm] = {}
        self._no_gpm = ""  # why this GPU has no GPM
        self._keys: set[_Key] = set()  # the instances of the last reading

    def __call__(self, values: Values, _: Missing) -> None:
        before, self._keys = self._keys, set()
        values["mig_mode"] = on = mig_is_on(self._device)
        if on:
            indices = range(count(self._device.call(nvml.nvmlDeviceGetMaxMigDeviceCount)))
            values["mig"] = [instance for instance in map(self._instance, indices) if instance is not None]
        if self._keys != before:
            self._no_gpm = ""
            for key in self._gpm.keys() - self._keys:
                self._gpm.pop(key).close()

    def _instance(self, index: int) -> MigInstance | None:
        """The MIG instance with that index; None without one."""
        values: Values = {}
        missing: Missing = {}
        try:
            handle = self._device.call(nvml.nvmlDeviceGetMigDeviceHandleByIndex, index)
        except nvml.NVMLError as error:
            cause = why(error)
            if error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
                return None
            if cause.lost:
                raise
            missing = dict.fromkeys(FIELDS, cause.text)
        else:
            self._read(Device(handle, self._device.meter), values, missing)
        return MigInstance(index, **values, missing=missing)  # type: ignore[arg-type]

    def _read(self, instance: Device, values: Values, missing: Missing) -> None:
        call = instance.call
        info, gpu_instance = cache(lambda: call(nvml.nvmlDeviceGetMemoryInfo)), cache(lambda: _number(instance, "GpuInstanceId"))
        activity = cache(lambda: self._activity(_key(values), gpu_instance()))
        for field, read in (
            ("gpu_instance", gpu_instance),
            ("compute_instance", lambda: _number(instance, "ComputeInstanceId")),
            ("uuid", lambda: call(nvml.nvmlDeviceGetUUID)),
            ("profile", lambda: call(nvml.nvmlDeviceGetName).rpartition("MIG ")[2]),
            ("mem_used_bytes", lambda: part_of(memory(info().total), info().used)),
            ("mem_total_bytes", lambda: memory(info().total)),
            ("sm_count", lambda: count(call(nvml.nvmlDeviceGetAttributes).multiprocessorCount)),
            ("util_pct", lambda: _float(activity()[0])),
            ("sm_active_pct", lambda: _float(activity()[1])),
        ):
            take(field, read, values, missing)
        self._keys.add(_key(values))

    def _activity(self, key: _Key, gpu_instance: int) -> list[float | str]:
        """[utilization, SM activity] since the last reading, or the reason for having none. Raises NVML's errors."""
        if key not in self._gpm:
            self._gpm[key] = self._start_gpm(gpu_instance)
        return self._gpm[key].read()

    def _start_gpm(self, gpu_instance: int) -> Gpm:
        if self._no_gpm:
            raise NoValue(self._no_gpm)
        try:
            return Gpm(self._device, gpu_instance)
        except FAILURES as error:
            cause = why(error)
            self._no_gpm = cause.text if cause.lasting else ""
            raise


def _number(instance: Device, name: str) -> int:
    return count(instance.call(getattr(nvml, f"nvmlDeviceGet{name}")))


def _key(values: Values) -> _Key:
    return tuple(values.get(name) for name in ("gpu_instance", "compute_instance", "uuid", "profile"))


def _float(value: float | str) -> float:
    """The value. Raises NoValue with the reason if it is a text."""
    if isinstance(value, str):
        raise NoValue(value or FIRST)
    return value
