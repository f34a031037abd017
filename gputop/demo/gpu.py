"""The simulated GPU as the demo's training script uses it: launches are booked, waits are slept, copies are copied."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from gputop.sources.simulated import layout

FULL = 1_000_000
"""All SMs, in parts per million."""
_STAGING_BYTES = 4 << 20
_BUS_BYTES_PER_S = 6e9
_SPIN_S = 0.005


class Gpu:
    """One device, whose only user this process is."""

    def __init__(self, fd: int, device: int, memory_bytes: int = 11 << 30) -> None:
        self._words = layout.attach(fd)
        self._at = layout.base(device)
        slot = self._at + layout.FIRST_PROC
        self._words[slot + 1] = memory_bytes
        self._words[slot] = os.getpid()
        self._pageable = memoryview(bytearray(_STAGING_BYTES))
        self._staging = memoryview(bytearray(_STAGING_BYTES))

    def launch(self, length_ms: float, sms_ppm: int = FULL) -> None:
        """A kernel of ``length_ms`` on ``sms_ppm`` of the SMs; returns at once."""
        words, at, length = self._words, self._at, int(length_ms * 1e6)
        words[at + 3] = sms_ppm
        words[at + 1] = max(time.monotonic_ns(), words[at + 1]) + length
        words[at] += length
        words[at + 2] += length * sms_ppm // FULL
        words[at + 6] += 1
        words[at + layout.FIRST_PROC + 2] += length

    def synchronize(self) -> None:
        """Sleep until all that was launched is done."""
        while (left_ns := self._words[self._at + layout.UNTIL] - time.monotonic_ns()) > 0:
            time.sleep(left_ns / 1e9)

    def copy_in(self, count: int) -> None:
        """``tensor.to(device)`` from pageable memory: this CPU copies into a staging buffer, and spins until the bus has taken that."""
        end = time.monotonic() + count / _BUS_BYTES_PER_S
        for _ in range(count // _STAGING_BYTES):
            self._staging[:] = self._pageable
            self._words[self._at + layout.RX] += _STAGING_BYTES
        self._words[self._at + layout.RX] += count % _STAGING_BYTES
        while time.monotonic() < end:
            pass

    def all_reduce(self, has_arrived: Callable[[], bool]) -> None:
        """A collective: its kernel spins on few SMs until the peers are there."""
        while not has_arrived():
            self.launch(1e3 * _SPIN_S, FULL // 16)
            self.synchronize()
