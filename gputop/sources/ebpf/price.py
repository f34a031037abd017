"""Price of a call of a probed function on this machine: measured on functions of our own, with the same programs attached.

The price depends on the processor, on virtualization (a trap may leave the guest), and on whether the kernel emulates the function's first
instruction or single-steps it. The functions lie in a memfd and begin with one instruction of each kind.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import time
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from gputop.sources.ebpf.maps import Map

CALIBRATION = 0x7FFF  # number of the call in cookies; no library's
CALLS, ROUNDS = 50, 5  # calls in a row, and rounds; the fastest round counts
_EMULATED = bytes.fromhex("53 5b c3")  # push rbx; pop rbx; ret
_STEPPED = bytes.fromhex("48 83 ec 08 48 83 c4 08 c3")  # sub rsp, 8; add rsp, 8; ret
_PLACES = (_EMULATED, _STEPPED, _EMULATED, _STEPPED)
_PAIRED, _LAUNCHED = (0, 1), (2, 3)  # places with the probes of a call and of a launch, by whether they are single-stepped
_DISTANCE = 64  # bytes between them
_MOST_NS = 100_000  # a higher price is a measurement gone wrong


class ProbeOverhead(Struct, frozen=True):
    """ns that probing adds to a call."""

    call_ns: int
    inside_ns: int  # the part that the probe measures as duration of the call
    launch_ns: int  # without a probe on the return


ASSUMED = {False: ProbeOverhead(1_300, 500, 600), True: ProbeOverhead(11_000, 9_500, 10_000)}
"""Prices by whether the probe is single-stepped; measured in a virtual machine, where probes are dear."""


class Attaches(Protocol):
    """The part of a linker that calibration needs."""

    def attach(self, library: int, cookies: dict[int, int]) -> list[int]:
        """Attach to entries and returns."""
        ...

    def attach_entries(self, library: int, offsets: list[int]) -> list[int]:
        """Attach the program that counts launches."""
        ...


def calibrate(linker: Attaches, calls: Map) -> tuple[dict[bool, ProbeOverhead], list[int]]:
    """(the prices, links to close). What could not be measured is `ASSUMED`. Raises OSError or HelperFailed if attaching fails."""
    if platform.machine() != "x86_64":
        return ASSUMED, []
    memory = os.memfd_create("gputop-calibration", os.MFD_CLOEXEC)
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    try:
        os.ftruncate(memory, mmap.PAGESIZE)
        for place, code in enumerate(_PLACES):
            os.pwrite(memory, code, _DISTANCE * place)
        address = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, memory, ctypes.c_long(0))
        if address in (None, ctypes.c_void_p(-1).value):
            return ASSUMED, []
        try:
            return _measure(linker, calls, memory, address)
        finally:
            libc.munmap(ctypes.c_void_p(address), mmap.PAGESIZE)
    finally:
        os.close(memory)


def _measure(linker: Attaches, calls: Map, memory: int, address: int) -> tuple[dict[bool, ProbeOverhead], list[int]]:
    functions = [ctypes.PYFUNCTYPE(None)(address + _DISTANCE * place) for place in range(len(_PLACES))]
    free = [_call_ns(function) for function in functions]
    cookies = {_DISTANCE * place: CALIBRATION - place for place in _PAIRED}
    links = linker.attach(memory, cookies) + linker.attach_entries(memory, [_DISTANCE * place for place in _LAUNCHED])
    cost = [_call_ns(function) - before for function, before in zip(functions, free, strict=True)]
    prices = {}
    for stepped, assumed in ASSUMED.items():
        call_ns, launch_ns = cost[_PAIRED[stepped]], cost[_LAUNCHED[stepped]]
        key = os.getpid() | cookies[_DISTANCE * _PAIRED[stepped]] << 32
        try:
            count, total_ns = struct.unpack_from("<QQ", calls.get(key))
            calls.delete([key])
        except OSError:
            count, total_ns = 0, 0
        measured = ProbeOverhead(call_ns, min(total_ns // max(1, count), call_ns), launch_ns)
        prices[stepped] = measured if count and 0 < launch_ns < _MOST_NS and 0 < call_ns < _MOST_NS else assumed
    return prices, links


def _call_ns(function: Callable[[], None]) -> int:
    """CPU time of a call in ns."""
    best = 1 << 62
    for _ in range(ROUNDS):
        began = time.thread_time_ns()
        for _ in range(CALLS):
            function()
        best = min(best, time.thread_time_ns() - began)
    return best // CALLS
