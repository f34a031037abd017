"""Clocks that date a stream, and their jumps.

Frames carry CLOCK_MONOTONIC, which knows no date and stops while the machine sleeps. When the wall clock is set (NTP after the boot,
or by hand), it was wrong before too, so the whole stream gets the new date. After a sleep the clock was right before: the sleep is
added from the moment of waking. CLOCK_BOOTTIME, which goes on during a sleep, distinguishes the two cases.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from msgspec.structs import replace

from gputop.model.frame import Header

JUMP_NS = 50_000_000  # ns; a smaller difference is the error of reading the clocks (slewing moves CLOCK_MONOTONIC too)
_READINGS, _QUICK_NS = 3, 20_000  # the quickest counts, and the first that takes no longer: it dates a frame that exactly


class Clocks(NamedTuple):
    """Three clocks at one moment, in ns."""

    t_ns: int  # CLOCK_MONOTONIC
    unix_ns: int  # CLOCK_REALTIME
    slept_ns: int  # CLOCK_BOOTTIME minus CLOCK_MONOTONIC: how long the machine has slept since it booted


def read() -> Clocks:
    """Read the clocks of this machine; again if it took long, for an interruption between two clocks spoils a reading, and the quickest has
    none."""
    took_ns, clocks = _reading()
    for _ in range(_READINGS - 1):
        if took_ns > _QUICK_NS:
            took_ns, clocks = min((took_ns, clocks), _reading())
    return clocks


def _reading() -> tuple[int, Clocks]:
    t_ns = time.monotonic_ns()
    unix_ns, boot_ns = time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic_ns() - t_ns, Clocks(t_ns, unix_ns, boot_ns - t_ns)


def dated(header: Header, now: Clocks, t_ns: int) -> Header:
    """The header with its clocks corrected to ``now``; the same object if no clock has jumped.

    ``t_ns`` is the time of the first frame that may lie after a sleep.
    """
    if abs(now.slept_ns - header.slept_ns_at(now.t_ns)) >= JUMP_NS:
        header = replace(header, slept=(*header.slept, (t_ns, now.slept_ns)))
    error_ns = now.unix_ns - header.unix_ns_of(now.t_ns)
    return replace(header, unix_ns=header.unix_ns + error_ns) if abs(error_ns) >= JUMP_NS else header
