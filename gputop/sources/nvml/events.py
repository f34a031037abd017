"""Xid errors, by NVML's event set: asked without waiting."""

from __future__ import annotations

from ctypes import byref, c_uint, c_ulonglong, c_void_p

import pynvml

from gputop.sources.nvml.abi import Device, EventData, Function, MissingSymbol, bind, check
from gputop.sources.nvml.reading import Missing, Values

XID = ("xid",)
_XID_CRITICAL_ERROR = 0x8
_MOST_AT_ONCE = 64


class XidEvents:
    """Fills ``xid`` with the latest error since it began to listen; nothing while there was none."""

    __slots__ = ("_data", "_device", "_latest", "_set", "_wait")

    def __init__(self, device: Device) -> None:
        self._device = device
        self._data = EventData()
        self._latest: int | None = None
        self._set = c_void_p()
        self._wait = _wait_function()
        check(bind("nvmlEventSetCreate")(byref(self._set)))
        try:
            device.call(bind("nvmlDeviceRegisterEvents"), c_ulonglong(_XID_CRITICAL_ERROR), self._set)
        except pynvml.NVMLError:
            bind("nvmlEventSetFree")(self._set)
            raise
        device.own(self._set, "nvmlEventSetFree")

    def __call__(self, values: Values, _: Missing) -> None:
        try:
            self._listen()
        finally:  # also where the GPU was lost by the error that has just been told
            if self._latest is not None:  # again each time: a value that was read just before a hang is dropped
                values["xid"] = self._latest

    def _listen(self) -> None:
        for _turn in range(_MOST_AT_ONCE):
            self._device.meter.count()
            code = self._wait(self._set, byref(self._data), c_uint(0))
            if code == pynvml.NVML_ERROR_TIMEOUT:
                return
            check(code)
            if self._data.type == _XID_CRITICAL_ERROR:
                self._latest = self._data.data


def _wait_function() -> Function:
    try:
        return bind("nvmlEventSetWait_v2")
    except MissingSymbol:
        return bind("nvmlEventSetWait")
