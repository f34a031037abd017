"""NVML's C interface as we call it: structures laid out as in nvml.h, and a device whose calls are counted.

nvidia-ml-py loads the library, starts it and names its errors. The calls themselves go to the library directly: kept
buffers, one call where the binding makes two (size, then data), and no friendly objects ten times a second.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from ctypes import Structure, Union, byref, c_double, c_int, c_longlong, c_uint, c_ulonglong, c_void_p
from time import monotonic_ns, time_ns
from typing import Any

import pynvml

from gputop.sources.nvml.numbers import MOST_BYTES, given, some

Function = Callable[..., int]


class MissingSymbol(Exception):
    """The driver's library has no function of this name: the driver is too old."""


class _Value(Union):
    _fields_ = [("dbl", c_double), ("uint", c_uint), ("ull", c_ulonglong), ("sll", c_longlong), ("sint", c_int)]


_KINDS = tuple(map(struct.Struct, ("=d", "=I", "=Q", "=Q", "=q", "=i", "=I")))
"""By nvmlValueType_t how nvmlValue_t is to be read. Unpacking costs a fraction of what a structure's attributes do."""
_UNSIGNED_INT, _UNSIGNED_LONG_LONG = 1, 3


class Sample(Structure):
    """nvmlSample_t; ``us`` is wall-clock microseconds."""

    _fields_ = [("us", c_ulonglong), ("value", _Value)]


class FieldValue(Structure):
    """nvmlFieldValue_t."""

    _fields_ = [
        ("field", c_uint), ("scope", c_uint), ("us", c_longlong), ("latency_us", c_longlong),
        ("type", c_int), ("code", c_int), ("value", _Value),
    ]  # fmt: skip


_FIELD_BYTES, _TYPE_AND_CODE = ctypes.sizeof(FieldValue), struct.Struct("=ii")
_TYPE_AT, _VALUE_AT = FieldValue.type.offset, FieldValue.value.offset


class ProcessInfoV1(Structure):
    """nvmlProcessInfo_v1_t, before R470."""

    _fields_ = [("pid", c_uint), ("mem_bytes", c_ulonglong)]


class ProcessInfo(Structure):
    """nvmlProcessInfo_v2_t, which version 3 shares."""

    _fields_ = [("pid", c_uint), ("mem_bytes", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint)]


class LongProcessInfo(Structure):
    """What R535.43 to 535.98 give as version 3: with the protected memory of confidential computing."""

    _fields_ = [*ProcessInfo._fields_, ("protected_bytes", c_ulonglong)]


class ProcessUtilization(Structure):
    """nvmlProcessUtilizationSample_t."""

    _fields_ = [("pid", c_uint), ("us", c_ulonglong), ("sm", c_uint), ("mem", c_uint), ("enc", c_uint), ("dec", c_uint)]


class MemoryV2(Structure):
    """nvmlMemory_v2_t; ``used`` leaves the driver's reserve out."""

    _fields_ = [("version", c_uint), ("total", c_ulonglong), ("reserved", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class PciInfo(Structure):
    """nvmlPciInfo_t."""

    _fields_ = [
        ("legacy", ctypes.c_char * 16), ("domain", c_uint), ("bus", c_uint), ("device", c_uint),
        ("id", c_uint), ("subsystem", c_uint), ("bus_id", ctypes.c_char * 32),
    ]  # fmt: skip


class EventData(Structure):
    """nvmlEventData_t."""

    _fields_ = [("device", c_void_p), ("type", c_ulonglong), ("data", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint)]


class Attributes(Structure):
    """nvmlDeviceAttributes_t of a MIG device."""

    _fields_ = [("sms", c_uint), ("others", c_uint * 7), ("mem_mib", c_ulonglong)]


_AHEAD_NS = 50_000_000
"""That far a stamp may lie in the future, as two clocks differ: so long at most does a smaller step back hide what is new."""

_found: tuple[object, dict[str, Function]] = (None, {})
"""A library and its functions as far as they were asked for: ctypes makes a new object each time it is asked."""


def find(name: str) -> Function | None:
    """The library's function ``name``, None where it has none."""
    global _found
    library = pynvml.nvmlLib
    if _found[0] is not library:
        _found = library, {}
    known = _found[1]
    if name not in known:
        try:
            known[name] = library[name]
        except AttributeError:
            return None
    return known[name]


def bind(name: str) -> Function:
    """The library's function ``name``; MissingSymbol where it has none."""
    function = find(name)
    if function is None:
        raise MissingSymbol(name)
    return function


def check(code: int) -> None:
    """Raise pynvml's error for a return code other than success."""
    if code:
        raise pynvml.NVMLError(code)


def number_at(buffer: ctypes.Array[Any], offset: int, kind: int) -> int | float:
    """What the nvmlValue_t at byte ``offset`` holds, by its nvmlValueType_t: anything, see `numbers`. Raises pynvml.NVMLError where that
    is nothing."""
    number: int | float = _KINDS[kind if 0 <= kind < len(_KINDS) else _UNSIGNED_LONG_LONG].unpack_from(buffer, offset)[0]
    return some(number) if isinstance(number, int) else number


def is_past(stamp_us: int) -> bool:
    """Whether the driver, which stamps with the wall clock, can have given it by now: not where that clock was set back since."""
    return stamp_us * 1000 < time_ns() + _AHEAD_NS


class Meter:
    """What calls cost, over all the handles that share it, and when the latest began (``called_ns``)."""

    __slots__ = ("called_ns", "calls", "ns")

    def __init__(self) -> None:
        self.called_ns = self.calls = self.ns = 0

    def count(self) -> None:
        """A call begins."""
        self.calls += 1
        self.called_ns = monotonic_ns()


class Device:
    """A handle whose calls are counted by ``meter``. Used by one thread only, so each lane of a GPU has its own."""

    __slots__ = ("_owned", "handle", "mem_bytes", "meter", "mig")

    def __init__(self, handle: c_void_p, meter: Meter) -> None:
        self.handle = handle
        self.meter = meter
        self.mig = False
        """Whether the GPU is split, as last seen."""
        self.mem_bytes = MOST_BYTES
        """The GPU's whole memory, as last read; before that more than any has."""
        self._owned: dict[int | None, Function] = {}

    def own(self, thing: c_void_p, free: str) -> None:
        """Have NVML's function ``free`` called with ``thing`` when that, or the handle, is given up."""
        self._owned[thing.value] = bind(free)

    def disown(self, thing: int | None) -> None:
        """Give up what lies at that address."""
        self._owned.pop(thing)(c_void_p(thing))

    def release(self) -> None:
        """Give the handle up."""
        for thing in list(self._owned):
            self.disown(thing)

    def call(self, function: Function, *arguments: object) -> None:
        """Call ``function(handle, *arguments)``; raises pynvml.NVMLError."""
        meter = self.meter
        meter.calls += 1
        meter.called_ns = monotonic_ns()
        if code := function(self.handle, *arguments):
            raise pynvml.NVMLError(code)

    def ask(self, function: Function, *arguments: object) -> int:
        """The same where failing is usual; returns nvmlReturn_t."""
        self.meter.count()
        return function(self.handle, *arguments)

    def number(self, name: str, *arguments: object) -> int:
        """The unsigned number that NVML's function ``name`` gives as its last argument."""
        out = c_uint()
        self.call(bind(name), *arguments, byref(out))
        return given(out.value)

    def long(self, name: str, *arguments: object) -> int:
        """The same for a 64 bit number."""
        out = c_ulonglong()
        self.call(bind(name), *arguments, byref(out))
        return given(out.value)

    def text(self, name: str, room: int = 96) -> str:
        """The text that NVML's function ``name`` writes."""
        out = ctypes.create_string_buffer(room)
        self.call(bind(name), out, c_uint(room))
        return out.value.decode("utf-8", "replace")


class Fields:
    """A kept request of nvmlDeviceGetFieldValues."""

    __slots__ = ("_device", "_function", "_request", "_room")

    def __init__(self, device: Device, *ids: int, scope: int = 0) -> None:
        self._device = device
        self._function = bind("nvmlDeviceGetFieldValues")
        self._room = len(ids)
        self._request = (FieldValue * len(ids))()
        for slot, field in zip(self._request, ids, strict=True):
            slot.field, slot.scope = field, scope

    def read(self) -> None:
        """Ask for all of them in one call."""
        self._device.call(self._function, self._room, self._request)

    def number(self, at: int) -> int | float:
        """The value at position ``at``, whatever it is; raises the error NVML gave for that field alone."""
        at_byte = at * _FIELD_BYTES
        kind, code = _TYPE_AND_CODE.unpack_from(self._request, at_byte + _TYPE_AT)
        if code:
            raise pynvml.NVMLError(code)
        return number_at(self._request, at_byte + _VALUE_AT, kind)

    def is_32_bit(self, at: int) -> bool:
        """Whether the counter at ``at`` came as an unsigned int, which wraps."""
        return bool(self._request[at].type == _UNSIGNED_INT)
