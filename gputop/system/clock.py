"""Asks the kernel whether the wall clock can be relied on."""

from __future__ import annotations

import ctypes

_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronized (STA_UNSYNC of what NTP, chrony and PTP keep up)
_TIMEX_BYTES = 1024  # room for struct timex, which has 208 bytes


def is_synchronized() -> bool:
    """True if the kernel calls the clock synchronized; False too if it may not be asked (a sandbox without adjtimex)."""
    asked = ctypes.create_string_buffer(_TIMEX_BYTES)  # all zero: nothing is set, only read
    told = int(ctypes.CDLL(None, use_errno=True).adjtimex(asked))
    return 0 <= told < _TIME_ERROR
