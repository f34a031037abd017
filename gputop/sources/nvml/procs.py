"""Processes on a GPU: NVML's lists, newest version of the call that the driver has, and what each used of the SMs."""

from __future__ import annotations

import time
from collections.abc import Callable
from ctypes import Array, Structure, byref, c_uint, c_ulonglong
from typing import Any, TypeVar

import pynvml
from msgspec import Struct

from gputop.model.frame import PART, SECOND_NS, GpuProc
from gputop.sources.nvml.abi import (
    Device,
    Function,
    LongProcessInfo,
    MissingSymbol,
    ProcessInfo,
    ProcessInfoV1,
    ProcessUtilization,
    bind,
    find,
    is_past,
)
from gputop.sources.nvml.numbers import NONE, NoValue, part_of, percent
from gputop.sources.nvml.reading import Missing, Values
from gputop.sources.nvml.reasons import why

Number = TypeVar("Number", int, float)
Shares = tuple[float | None, float | None, float | None, float | None]
"""Per cent of SMs, memory, encoder, decoder."""
_NOTHING: Shares = (0.0, 0.0, 0.0, 0.0)
_NO_INSTANCE = 0xFFFFFFFF
_ASK_AGAIN_NS = 60 * SECOND_NS
_LAYOUTS: tuple[tuple[str, tuple[type[Structure], ...]], ...] = (
    ("_v3", (ProcessInfo, LongProcessInfo)), ("_v2", (ProcessInfo,)), ("", (ProcessInfoV1,)),
)  # fmt: skip
"""Versions of the call, and how a row of theirs is laid out; where there are two, the rows themselves tell which it is."""
_MOST_ROWS = 1 << 16
"""A driver that has more to list than that is not believed."""
_MOST_PID = 1 << 22
"""PID_MAX_LIMIT of 64-bit kernels."""
# An MPS client computes: for us it is what any other compute process is.
_LISTS = (("Compute", "C", ""), ("MPSCompute", "C", "mps"), ("Graphics", "G", "graphics"))
"""NVML's name of the list, what its processes are, and what they are called where it is refused."""


class _Row(Struct):
    kinds: set[str]
    mem_bytes: int | None


class Processes:
    """Fills ``procs`` with all processes that hold a context on the GPU."""

    __slots__ = ("_lists", "_usage")

    def __init__(self, device: Device) -> None:
        self._lists = [_List(device, *names) for names in _LISTS]
        self._usage = _Usage(device)

    def __call__(self, values: Values, missing: Missing) -> None:
        rows: dict[tuple[int, int | None], _Row] = {}
        for listed in self._lists:
            listed.add_to(rows, missing)
            if listed.reason:
                missing[PART + listed.part] = listed.reason
        used = self._usage.read(missing) if rows else {}
        values["procs"] = [_proc(pid, instance, row, used) for (pid, instance), row in rows.items()]
        if rows and used is None:
            missing[f"{PART}sm_pct"] = self._usage.reason


def _proc(pid: int, instance: int | None, row: _Row, used: dict[int, Shares] | None) -> GpuProc:
    # NVML leaves out those that used nothing since the last look; None is "cannot be told".
    sm, mem, enc, dec = (None, None, None, None) if used is None else used.get(pid, _NOTHING)
    return GpuProc(pid, "+".join(sorted(row.kinds)), row.mem_bytes, sm, mem, enc, dec, instance)


class _List:
    """nvmlDeviceGet{Compute,Graphics,MPSCompute}RunningProcesses."""

    __slots__ = (
        "_buffer", "_count", "_device", "_function", "_kind", "_layouts", "_mig", "_name", "_room", "_silent_until_ns", "part", "reason",
    )  # fmt: skip

    def __init__(self, device: Device, name: str, kind: str, part: str) -> None:
        self._device, self._name, self._kind = device, name, kind
        self.part = part
        """What its processes are called where they cannot be listed; empty of the main list, without which there is none."""
        self.reason = ""
        """Why they cannot be."""
        self._silent_until_ns = 0
        self._mig = False
        """Whether the GPU was split when the driver was asked last."""
        self._count = c_uint()
        self._function, self._layouts = self._bind()
        self._room = 64
        self._buffer = self._new_buffer()

    def add_to(self, rows: dict[tuple[int, int | None], _Row], missing: Missing) -> None:
        """Add what it lists. A list beside the main one that this GPU has not is asked for once a minute, and when MIG has been switched;
        one of a newer driver never."""
        if self._function is None or (time.monotonic_ns() < self._silent_until_ns and self._mig == self._device.mig):
            return
        self._mig = self._device.mig
        try:
            self._fetch(self._function)
            self.reason = ""
        except pynvml.NVMLError as error:
            cause = why(error, self._mig)
            if not (self.part and cause.lasting):
                raise
            self.reason = cause.text
            self._silent_until_ns = time.monotonic_ns() + _ASK_AGAIN_NS
            return
        for info in self._listed():
            instance = getattr(info, "gpu_instance", _NO_INSTANCE)
            row = rows.setdefault((info.pid, None if instance == _NO_INSTANCE else instance), _Row(set(), None))
            row.kinds.add(self._kind)
            mem_bytes = _believed("mem_bytes", info.mem_bytes, missing, lambda held: part_of(self._device.mem_bytes, held))
            if mem_bytes is not None:
                row.mem_bytes = max(row.mem_bytes or 0, mem_bytes)

    def _bind(self) -> tuple[Function | None, tuple[type[Structure], ...]]:
        for suffix, layouts in _LAYOUTS:
            function = find(f"nvmlDeviceGet{self._name}RunningProcesses{suffix}")
            if function:
                return function, layouts
        missing = MissingSymbol(f"nvmlDeviceGet{self._name}RunningProcesses")
        if not self.part:
            raise missing
        self.reason = why(missing).text
        return None, (ProcessInfo,)

    def _new_buffer(self) -> Array[Any]:
        """Room for rows of the longest layout: whichever the driver has must not write beyond it."""
        return (self._layouts[-1] * self._room)()

    def _listed(self) -> list[Any]:
        """The rows, in the layout in which they name processes; in the first one where none does."""
        told = map(self._rows_in, self._layouts)  # the second is only looked at where the first does not fit
        fitting = (rows for rows in told if all(0 < row.pid <= _MOST_PID for row in rows))
        return next(fitting, None) or self._rows_in(self._layouts[0])

    def _rows_in(self, layout: type[Structure]) -> list[Any]:
        return list((layout * self._count.value).from_buffer(self._buffer))

    def _fetch(self, function: Function) -> None:
        while True:
            self._count.value = self._room
            try:
                self._device.call(function, byref(self._count), self._buffer)
                return
            except pynvml.NVMLError as error:
                wanted = max(self._count.value, self._room)
                if error.value != pynvml.NVML_ERROR_INSUFFICIENT_SIZE or wanted >= _MOST_ROWS:
                    raise
            self._room = wanted * 2
            self._buffer = self._new_buffer()


class _Usage:
    """nvmlDeviceGetProcessUtilization: share of the SMs, memory, encoder and decoder per process since the last look."""

    __slots__ = ("_count", "_device", "_function", "_mig", "_rows", "_seen_us", "_silent_until_ns", "reason")

    def __init__(self, device: Device) -> None:
        self._device = device
        self._count = c_uint()
        self._rows: Array[ProcessUtilization] = (ProcessUtilization * 128)()
        self._seen_us = 0
        self._silent_until_ns = 0
        self._mig = False
        """Whether the GPU was split when the driver was asked last."""
        self._function: Function | None = None
        self.reason = ""

    def read(self, missing: Missing) -> dict[int, Shares] | None:
        """By pid: sm, mem, enc, dec in per cent; None where the driver does not tell, see ``reason``."""
        if time.monotonic_ns() < self._silent_until_ns and self._mig == self._device.mig:
            return None
        self._mig = self._device.mig
        try:
            return self._fetch(missing)
        except (pynvml.NVMLError, MissingSymbol) as error:
            cause = why(error, self._mig)
            if cause.lost:
                raise
            self.reason = cause.text
            self._silent_until_ns = time.monotonic_ns() + (_ASK_AGAIN_NS if cause.lasting else 0)
            return None

    def _fetch(self, missing: Missing) -> dict[int, Shares]:
        if self._function is None:
            self._function = bind("nvmlDeviceGetProcessUtilization")
        self._count.value = len(self._rows)
        since = c_ulonglong(self._seen_us if is_past(self._seen_us) else 0)
        try:
            self._device.call(self._function, self._rows, byref(self._count), since)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                return {}  # none of them used anything
            if error.value != pynvml.NVML_ERROR_INSUFFICIENT_SIZE or len(self._rows) >= _MOST_ROWS:
                raise
            self._rows = (ProcessUtilization * (2 * len(self._rows)))()
            return self._fetch(missing)
        used: dict[int, Shares] = {}
        rows = sorted((row for row in self._rows[: self._count.value] if is_past(row.us)), key=_stamp)
        self._seen_us = rows[-1].us if rows else since.value
        for row in rows:  # of several of one process the newest counts
            sm, mem, enc, dec = (_believed(f"{what}_pct", getattr(row, what), missing, percent) for what in ("sm", "mem", "enc", "dec"))
            used[row.pid] = sm, mem, enc, dec
        return used


def _stamp(row: ProcessUtilization) -> int:
    stamp: int = row.us
    return stamp


def _believed(field: str, number: int, missing: Missing, check: Callable[[int], Number]) -> Number | None:
    """What ``check`` makes of a process's number; None where there is none, with its reason where that cannot be."""
    try:
        return None if number in NONE else check(number)
    except NoValue as error:
        missing[PART + field] = str(error)
        return None
