"""The driver's answers: calls of NVML that are counted and timed, and what their failures mean in words."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from ctypes import Union, sizeof
from time import monotonic_ns, time_ns
from typing import Any

from msgspec import Struct

from gputop.sources import Unavailable
from gputop.sources.nvml import binding as nvml
from gputop.sources.nvml.numbers import MOST_BYTES, NoValue
from gputop.system import crash
from gputop.system.privilege import in_container

FAILURES = Exception  # what a call may raise: NVML's errors, and whatever else an unknown driver causes; it must cost one value only

_AHEAD_NS = 50_000_000  # ns that a driver's stamp may lie in the future, since two clocks differ
_VALUE_FORMATS = ("=d", "=I", "=Q", "=Q", "=q", "=i", "=H")  # of nvmlValue_t, by nvmlValueType_t
_VALUE_TYPES = tuple(map(struct.Struct, _VALUE_FORMATS))
_FIELD_BYTES, _TYPE_AND_CODE = sizeof(nvml.c_nvmlFieldValue_t), struct.Struct("=ii")
_TYPE_AT, _VALUE_AT = nvml.c_nvmlFieldValue_t.valueType.offset, nvml.c_nvmlFieldValue_t.value.offset
# Errors of an answer that is none of those in nvml.h.
_MISFITS: tuple[type[Exception], ...] = AttributeError, TypeError, ValueError


class Meter:
    """Cost of the calls of one GPU: their number, their time in ns, and when the latest began."""

    __slots__ = ("called_ns", "calls", "ns")

    def __init__(self) -> None:
        self.called_ns = self.calls = self.ns = 0

    def count(self) -> None:
        """A call begins."""
        self.calls += 1
        self.called_ns = monotonic_ns()


class Device:
    """A GPU or MIG instance; ``meter`` counts its calls. One thread uses it, so each poller of a GPU has its own."""

    __slots__ = ("_owned", "handle", "mem_bytes", "meter", "mig")

    def __init__(self, handle: object, meter: Meter) -> None:
        self.handle = handle  # c_nvmlDevice_t, None before the GPU has answered
        self.meter = meter
        self.mig = False  # whether the GPU was split into MIG instances when that was read last
        self.mem_bytes = MOST_BYTES  # the GPU's whole memory as last read
        self._owned: dict[int, tuple[object, Callable[[object], object]]] = {}

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Call a ``function`` of `binding` for this device. Raises nvml.NVMLError."""
        self.meter.count()
        return function(self.handle, *arguments)

    def call_library(self, function: Callable[..., int], *arguments: object) -> None:
        """Call a function of the library itself, see `library_function`. Raises nvml.NVMLError."""
        meter = self.meter
        meter.calls += 1
        meter.called_ns = monotonic_ns()
        if code := function(self.handle, *arguments):
            raise nvml.NVMLError(code)

    def fields(self, *wanted: int | tuple[int, int]) -> list[Any]:
        """nvmlDeviceGetFieldValues of field ids, or pairs of id and scope: c_nvmlFieldValue_t, for `field_number`."""
        values: list[Any] = self.call(nvml.nvmlDeviceGetFieldValues, wanted)
        return values

    def own(self, thing: object, free: Callable[[object], object]) -> None:
        """Call ``free(thing)`` when this device is released."""
        self._owned[id(thing)] = thing, free

    def disown(self, thing: object) -> None:
        """Free ``thing`` now."""
        thing, free = self._owned.pop(id(thing))
        with suppress(nvml.NVMLError):
            free(thing)

    def release(self) -> None:
        """Free all that this device owns."""
        for thing, _ in list(self._owned.values()):
            self.disown(thing)


def library_function(*names: str) -> Callable[..., int]:
    """The first function of the names that the driver's library has. Raises nvml.NVMLError if it has none.

    For the calls of every poll, into kept buffers: new ones cost 0.15 points of a core more with eight GPUs (measured).
    """
    for name in names:
        with suppress(AttributeError):
            function: Callable[..., int] = getattr(nvml.nvmlLib, name)
            return function
    raise nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)


class KeptFields:
    """A request of nvmlDeviceGetFieldValues into a kept buffer."""

    __slots__ = ("_device", "_function", "_values", "count")

    def __init__(self, device: Device, *ids: int | tuple[int, int]) -> None:
        """``ids``: field ids, or pairs of id and scope, which is a link."""
        self._device, self.count = device, len(ids)
        self._function = library_function("nvmlDeviceGetFieldValues")
        self._values = (nvml.c_nvmlFieldValue_t * self.count)()
        for value, field in zip(self._values, ids, strict=True):
            value.fieldId, value.scopeId = field if isinstance(field, tuple) else (field, 0)

    def read(self) -> None:
        """Raises nvml.NVMLError."""
        self._device.call_library(self._function, self.count, self._values)

    def number(self, at: int) -> int | float:
        """The unchecked number at position ``at``. Raises the nvml.NVMLError that the driver gave for this field."""
        offset = at * _FIELD_BYTES
        kind, code = _TYPE_AND_CODE.unpack_from(self._values, offset + _TYPE_AT)
        if code:
            raise nvml.NVMLError(code)
        number: int | float = _value_format(kind).unpack_from(self._values, offset + _VALUE_AT)[0]
        return number

    def is_32_bit(self, at: int) -> bool:
        """True if the number at ``at`` is a counter that overflows at 32 bits."""
        return bool(self._values[at].valueType == nvml.NVML_VALUE_TYPE_UNSIGNED_INT)


def field_number(value: Any) -> int | float:
    """The unchecked number of a c_nvmlFieldValue_t. Raises the nvml.NVMLError that the driver gave for this field."""
    if value.nvmlReturn:
        raise nvml.NVMLError(value.nvmlReturn)
    return value_number(value.value, value.valueType)


def value_number(value: Union, kind: int) -> int | float:
    """The unchecked number of a c_nvmlValue_t, by its nvmlValueType_t."""
    number: int | float = _value_format(kind).unpack_from(value)[0]
    return number


def _value_format(kind: int) -> struct.Struct:
    return _VALUE_TYPES[kind if 0 <= kind < len(_VALUE_TYPES) else nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG]


def is_past(stamp_us: int) -> bool:
    """True if a driver's stamp (wall clock) lies in the past. It does not after that clock was set back."""
    return stamp_us * 1000 < time_ns() + _AHEAD_NS


class Why(Struct, frozen=True):
    """Why a call gave no value. ``lasting``: another try soon is pointless; ``lost``: the whole GPU is gone."""

    text: str
    lasting: bool = False
    lost: bool = False


_TOO_OLD = Why("the driver is too old for it", lasting=True)
_KNOWN = {
    nvml.NVML_ERROR_NOT_SUPPORTED: Why("not supported on this GPU", lasting=True),
    nvml.NVML_ERROR_FUNCTION_NOT_FOUND: _TOO_OLD,
    nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: _TOO_OLD,
    nvml.NVML_ERROR_INVALID_ARGUMENT: Why("not supported on this GPU (invalid argument)", lasting=True),
    nvml.NVML_ERROR_GPU_IS_LOST: Why("GPU lost: it has fallen off the bus or been removed", lost=True),
    nvml.NVML_ERROR_RESET_REQUIRED: Why("GPU needs a reset", lost=True),
    nvml.NVML_ERROR_NO_DATA: Why("the driver has no value for it"),
    nvml.NVML_ERROR_TIMEOUT: Why("the driver timed out"),
}


def why(error: Exception, mig: bool = False) -> Why:
    """The meaning of a failed call; ``mig``: the GPU is split into MIG instances."""
    if isinstance(error, NoValue):
        return Why(str(error))
    if not isinstance(error, nvml.NVMLError):
        return Why(f"the driver's answer does not fit nvml.h: {error}" if isinstance(error, _MISFITS) else crash.log(error), lasting=True)
    if mig and error.value == nvml.NVML_ERROR_NOT_SUPPORTED:
        return Why("not available while MIG is on", lasting=True)
    if error.value == nvml.NVML_ERROR_NO_PERMISSION:
        whom = "not even for root; in a container it may take CAP_SYS_ADMIN" if os.geteuid() == 0 else "the driver reserves it for root"
        return Why(f"no permission: {whom}", lasting=True)
    return _KNOWN.get(error.value) or Why(f"the driver failed: {error}")


_START = {
    nvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "no NVIDIA driver: libnvidia-ml.so.1 is not found",
        "install the NVIDIA driver; in a container start it with --gpus all (NVIDIA Container Toolkit)",
    ),
    nvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "the NVIDIA driver is not loaded",
        "modprobe nvidia (see dmesg for why it is not); in a container pass the GPU in with --gpus all",
    ),
    nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "driver/library version mismatch: libnvidia-ml was updated, the loaded kernel module was not",
        "reboot, or stop what uses the GPUs and reload: rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia",
    ),
    nvml.NVML_ERROR_NO_PERMISSION: (
        "no permission to talk to the NVIDIA driver",
        "ls -l /dev/nvidia*: join the group that may use them, or run as root; in a container pass the GPU in with --gpus all",
    ),
    nvml.NVML_ERROR_FUNCTION_NOT_FOUND: (
        "the NVIDIA driver is too old: its NVML lacks functions that every reading needs",
        "install a newer driver (R384 or later)",
    ),
}


_CONTROL = "dev/nvidiactl"  # the node that each program opens which uses the driver
_GPUS_LOST = (
    "start the container again; for good, on the host: sudo nvidia-ctk system create-dev-char-symlinks --create-all at each boot, "
    "or CDI (docker run --device nvidia.com/gpu=all), or Docker's native.cgroupdriver=cgroupfs"
)
"""Remedy for devices that systemd took away by rewriting their rules without the toolkit's additions. Source: NVIDIA Container
Toolkit, Troubleshooting."""


def unavailable(error: Exception, root: str = "/") -> Unavailable:
    """Why NVML as a whole cannot be used, and what the user can do about it."""
    code = error.value if isinstance(error, nvml.NVMLError) else None
    if code is not None and _is_refused_by_cgroup(root):
        if in_container(root):
            why = f"the container has lost its GPUs: its cgroup refuses /{_CONTROL}, as after systemctl daemon-reload on the host"
            return Unavailable(why, _GPUS_LOST)
        return Unavailable(f"the cgroup of this process refuses /{_CONTROL}", "in its systemd unit: DeviceAllow=char-nvidia* rw")
    if code == nvml.NVML_ERROR_UNKNOWN and in_container(root):
        why = f"NVML does not start: {error}, as in a container that has lost its GPUs (after systemctl daemon-reload on the host)"
        return Unavailable(why, _GPUS_LOST)
    return Unavailable(*_START.get(code or 0, (f"NVML does not start: {error}", "nvidia-smi shows more")))


def _is_refused_by_cgroup(root: str) -> bool:
    """True if the driver's node is there and a cgroup keeps this process from it: EPERM; a file's mode gives EACCES."""
    try:
        os.close(os.open(os.path.join(root, _CONTROL), os.O_RDWR | os.O_CLOEXEC))
    except OSError as refused:
        return refused.errno == errno.EPERM
    return False
