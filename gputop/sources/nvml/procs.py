"""Processes on a GPU: NVML's lists, by the newest version of the call that the driver has, and the share of the SMs that each used."""

from __future__ import annotations

import time
from collections.abc import Callable
from ctypes import Array, Structure, byref, c_uint, c_ulonglong
from typing import Any, TypeVar

from msgspec import Struct

from gputop.model.frame import PART, SECOND_NS, GpuProc
from gputop.sources.nvml import binding as nvml
from gputop.sources.nvml.driver import Device, is_past, library_function, why
from gputop.sources.nvml.groups import Missing, Values
from gputop.sources.nvml.numbers import NOT_AVAILABLE, NoValue, part_of, percent

Number = TypeVar("Number", int, float)
Shares = tuple[float | None, float | None, float | None, float | None]  # per cent of SMs, memory, encoder, decoder
_SHARES = ("sm_pct", "mem_pct", "enc_pct", "dec_pct")
_NOTHING: Shares = (0.0, 0.0, 0.0, 0.0)
_NO_INSTANCE = 0xFFFFFFFF  # MIG instance of a process on a GPU that is not split
_ASK_AGAIN_NS = 60 * SECOND_NS  # ns until a refused list is asked for again
_ROOM = 64  # rows of the first buffer
_MOST_ROWS = 1 << 16  # a driver that has more to list is not believed
_MOST_PID = 1 << 22  # PID_MAX_LIMIT of 64-bit kernels
_LISTS = (("Compute", "C", ""), ("MPSCompute", "C+M", "mps"), ("Graphics", "G", "graphics"))
"""NVML's name of the list, the kinds of its processes (an MPS client computes), and their name in the reason if the list is refused."""


class _InfoV1(Structure):
    """nvmlProcessInfo_v1_t, before R470."""

    _fields_ = [("pid", c_uint), ("mem_bytes", c_ulonglong)]


class _ProcessInfo(Structure):
    """nvmlProcessInfo_v2_t, which version 3 of the call shares."""

    _fields_ = [*_InfoV1._fields_, ("gpu_instance", c_uint), ("compute_instance", c_uint)]


class _LongInfo(Structure):
    """Rows of version 3 from R535.43 to 535.98: with the protected memory of confidential computing."""

    _fields_ = [*_ProcessInfo._fields_, ("protected_bytes", c_ulonglong)]


_LAYOUTS: dict[str, tuple[type[Structure], ...]] = {"_v3": (_ProcessInfo, _LongInfo), "_v2": (_ProcessInfo,), "": (_InfoV1,)}
"""Version of the call, newest first -> possible layouts of its rows; the rows show which of two layouts they have.

One call with room for many rows, not two (size, then data): a real driver needs 4 ms for each (measured).
"""


class _ProcessMemory(Struct):
    kinds: set[str]
    mem_bytes: int | None


class Processes:
    """Fills ``procs`` with all processes that hold a context on the GPU."""

    __slots__ = ("_lists", "_usage")

    def __init__(self, device: Device) -> None:
        """Raises nvml.NVMLError if the driver has no list of compute processes."""
        self._lists = [_List(device, *names) for names in _LISTS]
        self._usage = _ProcessUtilization(device)

    def __call__(self, values: Values, missing: Missing) -> None:
        rows: dict[tuple[int, int | None], _ProcessMemory] = {}
        for listed in self._lists:
            listed.add_to(rows, missing)
            if listed.reason:
                missing[PART + listed.part] = listed.reason
        used = self._usage.read(missing) if rows else {}
        values["procs"] = [_proc(pid, instance, row, used) for (pid, instance), row in rows.items()]
        if rows and used is None:
            missing[f"{PART}sm_pct"] = self._usage.reason


def _proc(pid: int, instance: int | None, row: _ProcessMemory, used: dict[int, Shares] | None) -> GpuProc:
    # NVML leaves out processes that used nothing since the last reading; None means unknown.
    sm, mem, enc, dec = (None, None, None, None) if used is None else used.get(pid, _NOTHING)
    return GpuProc(
        pid=pid,
        kind="+".join(sorted(row.kinds)),
        mem_bytes=row.mem_bytes,
        sm_pct=sm,
        mem_pct=mem,
        enc_pct=enc,
        dec_pct=dec,
        gpu_instance=instance,
    )


class _List:
    """nvmlDeviceGet{Compute,Graphics,MPSCompute}RunningProcesses, into a kept buffer."""

    __slots__ = ("_buffer", "_count", "_device", "_function", "_kinds", "_layouts", "_mig", "_silent_until_ns", "part", "reason")

    def __init__(self, device: Device, name: str, kinds: str, part: str) -> None:
        self._device, self._kinds = device, kinds.split("+")
        self.part = part  # the processes' name in the reason; empty for the main list, without which there is no list at all
        self.reason = ""  # why they cannot be listed
        self._silent_until_ns = 0
        self._mig = False  # whether the GPU was split at the last call
        self._count = c_uint()
        self._function, self._layouts = self._find(f"nvmlDeviceGet{name}RunningProcesses")
        self._buffer = self._new_buffer(_ROOM)

    def add_to(self, rows: dict[tuple[int, int | None], _ProcessMemory], missing: Missing) -> None:
        """Add the list's processes to ``rows``. A refused list is asked for again once a minute, and when MIG is switched."""
        if self._function is None or (time.monotonic_ns() < self._silent_until_ns and self._mig == self._device.mig):
            return
        self._mig = self._device.mig
        try:
            self._fetch(self._function)
            self.reason = ""
        except nvml.NVMLError as error:
            cause = why(error, self._mig)
            if not (self.part and cause.lasting):
                raise
            self.reason = cause.text
            self._silent_until_ns = time.monotonic_ns() + _ASK_AGAIN_NS
            return
        for info in self._listed():
            instance = getattr(info, "gpu_instance", _NO_INSTANCE)
            row = rows.setdefault((info.pid, None if instance == _NO_INSTANCE else instance), _ProcessMemory(set(), None))
            row.kinds.update(self._kinds)
            mem_bytes = _checked("mem_bytes", info.mem_bytes, missing, lambda held: part_of(self._device.mem_bytes, held))
            if mem_bytes is not None:
                row.mem_bytes = max(row.mem_bytes or 0, mem_bytes)

    def _find(self, name: str) -> tuple[Callable[..., int] | None, tuple[type[Structure], ...]]:
        """The newest version of the call, and its layouts. Without any, a list other than the main one stays silent."""
        for suffix, layouts in _LAYOUTS.items():
            if hasattr(nvml.nvmlLib, name + suffix):
                return library_function(name + suffix), layouts
        missing = nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        if not self.part:
            raise missing
        self.reason = why(missing).text
        return None, (_ProcessInfo,)

    def _new_buffer(self, room: int) -> Array[Any]:
        """Rows of the longest layout: the driver must not write beyond the buffer, whichever layout it has."""
        return (self._layouts[-1] * room)()

    def _listed(self) -> list[Any]:
        """Rows in the first layout in which all pids are possible; else in the first layout."""
        tried = map(self._rows_in, self._layouts)
        fitting = (rows for rows in tried if all(0 < row.pid <= _MOST_PID for row in rows))
        return next(fitting, None) or self._rows_in(self._layouts[0])

    def _rows_in(self, layout: type[Structure]) -> list[Any]:
        return list((layout * self._count.value).from_buffer(self._buffer))

    def _fetch(self, function: Callable[..., int]) -> None:
        while True:
            self._count.value = room = len(self._buffer)
            try:
                self._device.call_library(function, byref(self._count), self._buffer)
                return
            except nvml.NVMLError as error:
                wanted = max(self._count.value, room)
                if error.value != nvml.NVML_ERROR_INSUFFICIENT_SIZE or wanted >= _MOST_ROWS:
                    raise
            self._buffer = self._new_buffer(wanted * 2)


class _ProcessUtilization:
    """nvmlDeviceGetProcessUtilization: share of SMs, memory, encoder and decoder per process since the last reading."""

    __slots__ = ("_device", "_mig", "_seen_us", "_silent_until_ns", "reason")

    def __init__(self, device: Device) -> None:
        self._device = device
        self._seen_us = 0  # the newest stamp so far
        self._silent_until_ns = 0
        self._mig = False  # whether the GPU was split at the last call
        self.reason = ""  # why the shares are unknown

    def read(self, missing: Missing) -> dict[int, Shares] | None:
        """Shares by pid; None if the driver does not give them, see ``reason``."""
        if time.monotonic_ns() < self._silent_until_ns and self._mig == self._device.mig:
            return None
        self._mig = self._device.mig
        try:
            return self._fetch(missing)
        except nvml.NVMLError as error:
            cause = why(error, self._mig)
            if cause.lost:
                raise
            self.reason = cause.text
            self._silent_until_ns = time.monotonic_ns() + (_ASK_AGAIN_NS if cause.lasting else 0)
            return None

    def _fetch(self, missing: Missing) -> dict[int, Shares]:
        since = self._seen_us if is_past(self._seen_us) else 0
        try:
            found = self._device.call(nvml.nvmlDeviceGetProcessUtilization, since)
        except nvml.NVMLError as error:
            # The binding raises "success" if there is no row to make room for.
            if error.value not in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_SUCCESS):
                raise
            return {}  # no process used anything
        rows = sorted((row for row in found if is_past(row.timeStamp)), key=_stamp_us)
        self._seen_us = rows[-1].timeStamp if rows else since
        used: dict[int, Shares] = {}
        for row in rows:  # the newest row of a process counts
            numbers = row.smUtil, row.memUtil, row.encUtil, row.decUtil
            sm, mem, enc, dec = (_checked(field, number, missing, percent) for field, number in zip(_SHARES, numbers, strict=True))
            used[row.pid] = sm, mem, enc, dec
        return used


def _stamp_us(row: nvml.c_nvmlProcessUtilizationSample_t) -> int:
    stamp: int = row.timeStamp
    return stamp


def _checked(field: str, number: int, missing: Missing, check: Callable[[int], Number]) -> Number | None:
    """A process's number; None if it is not available, or impossible: then the reason goes into ``missing``."""
    try:
        return None if number in NOT_AVAILABLE else check(number)
    except NoValue as error:
        missing[PART + field] = str(error)
        return None
