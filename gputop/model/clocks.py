"""The clocks that date a stream, and whether one of them has jumped: frames bear CLOCK_MONOTONIC, which knows neither date nor sleep.

A wall clock that is set (NTP after the boot, by hand) had been wrong before too, so the whole stream is dated by what it says now.
After a sleep it was right before: that time is only added from then on. CLOCK_BOOTTIME, which goes on in a sleep, tells one from the
other.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from msgspec.structs import replace

from gputop.model.frame import Header

JUMP_NS = 50_000_000
"""Less is how exactly the clocks are read; whoever slews a clock slews CLOCK_MONOTONIC with it."""
_READINGS = 3


class Clocks(NamedTuple):
    """Read at one moment, in ns."""

    t_ns: int
    """CLOCK_MONOTONIC."""
    unix_ns: int
    """CLOCK_REALTIME."""
    slept_ns: int
    """How far CLOCK_BOOTTIME is ahead of the first: the machine's sleep since it booted."""


def read() -> Clocks:
    """The clocks of this machine; of some readings the quickest, for we may be interrupted between two clocks."""
    return min((_reading() for _ in range(_READINGS)), key=lambda reading: reading[0])[1]


def _reading() -> tuple[int, Clocks]:
    t_ns = time.monotonic_ns()
    unix_ns, boot_ns = time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic_ns() - t_ns, Clocks(t_ns, unix_ns, boot_ns - t_ns)


def dated(header: Header, now: Clocks, t_ns: int) -> Header:
    """The header as it is to be said by now, this very one where no clock has jumped. ``t_ns`` is of the first frame that may lie behind a
    sleep."""
    if abs(now.slept_ns - header.slept_ns_at(now.t_ns)) >= JUMP_NS:
        header = replace(header, slept=(*header.slept, (t_ns, now.slept_ns)))
    error_ns = now.unix_ns - header.unix_ns_of(now.t_ns)
    return replace(header, unix_ns=header.unix_ns + error_ns) if abs(error_ns) >= JUMP_NS else header
