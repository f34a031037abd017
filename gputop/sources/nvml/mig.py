"""MIG: the instances a GPU is split into, each with its memory and, on Hopper and later, its SM activity."""

from __future__ import annotations

from ctypes import byref
from ctypes import c_uint
from ctypes import c_ulonglong
from ctypes import c_void_p

import pynvml

from gputop.frame import MigInstance
from gputop.sources.nvml.abi import Attributes
from gputop.sources.nvml.abi import Device
from gputop.sources.nvml.abi import bind
from gputop.sources.nvml.abi import known
from gputop.sources.nvml.gpm import Gpm
from gputop.sources.nvml.reading import Missing
from gputop.sources.nvml.reading import Values
from gputop.sources.nvml.reasons import FAILURES


def mig_is_on(device: Device) -> bool:
    """Whether the GPU is split now; raises pynvml.NVMLError, MissingSymbol."""
    current, pending = c_uint(), c_uint()
    device.call(bind("nvmlDeviceGetMigMode"), byref(current), byref(pending))
    return current.value == 1


class Mig:
    """Fills ``mig_mode`` and ``mig``."""

    __slots__ = ("_device", "_gpm")

    def __init__(self, device: Device) -> None:
        self._device = device
        self._gpm: dict[int, Gpm | None] = {}

    def __call__(self, values: Values, _: Missing) -> None:
        values["mig_mode"] = on = mig_is_on(self._device)
        if on:
            values["mig"] = [self._instance(index, handle) for index, handle in self._handles()]

    def _handles(self) -> list[tuple[int, c_void_p]]:
        found = []
        for index in range(self._device.number("nvmlDeviceGetMaxMigDeviceCount")):
            handle = c_void_p()
            try:
                self._device.call(bind("nvmlDeviceGetMigDeviceHandleByIndex"), c_uint(index), byref(handle))
            except pynvml.NVMLError as error:
                if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                    continue
                raise
            found.append((index, handle))
        return found

    def _instance(self, index: int, handle: c_void_p) -> MigInstance:
        part = Device(handle, self._device.meter)
        memory, attributes = (c_ulonglong * 3)(), Attributes()
        part.call(bind("nvmlDeviceGetMemoryInfo"), memory)
        part.call(bind("nvmlDeviceGetAttributes_v2"), byref(attributes))
        gpu_instance = part.number("nvmlDeviceGetGpuInstanceId")
        return MigInstance(
            index, gpu_instance, part.number("nvmlDeviceGetComputeInstanceId"), part.text("nvmlDeviceGetUUID"),
            part.text("nvmlDeviceGetName").rpartition("MIG ")[2], known(memory[2]), known(memory[0]), known(attributes.sms),
            self._sm_active(gpu_instance),
        )  # fmt: skip

    def _sm_active(self, gpu_instance: int) -> float | None:
        """SM activity of the instance since the last look, None without GPM and on the first."""
        if gpu_instance not in self._gpm:
            self._gpm[gpu_instance] = self._start_gpm(gpu_instance)
        gpm = self._gpm[gpu_instance]
        if gpm is None:
            return None
        active = gpm.read()[0]
        return active if isinstance(active, float) else None

    def _start_gpm(self, gpu_instance: int) -> Gpm | None:
        try:
            return Gpm(self._device, gpu_instance)
        except FAILURES:
            return None
