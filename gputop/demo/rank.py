"""One rank of the demo's training: its simulated GPU, and the memory that stage and ranks share."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable

from gputop.sources import simulated

FULL = 1_000_000  # all SMs, in parts per million
_SIGNALS_BYTES = 4096  # one page: a word for the stage, one a rank
_STAGING_BYTES = 4 << 20  # a copy goes through a buffer of this size
_BUS_BYTES_PER_S = 6e9  # PCIe 3 x8, about
_SPIN_S = 0.005  # s that a collective's kernel spins before it looks for its peers again


def create_signals() -> int:
    """The descriptor of memory without a name, for `Signals`."""
    fd = os.memfd_create("gputop-demo-signals")
    os.ftruncate(fd, _SIGNALS_BYTES)
    return fd


class Signals:
    """Whether the disturbance is on, and how many steps each rank has done."""

    def __init__(self, fd: int) -> None:
        self._words = memoryview(mmap.mmap(fd, _SIGNALS_BYTES)).cast("Q")

    @property
    def disturbed(self) -> bool:
        """Things go wrong now."""
        return bool(self._words[0])

    @disturbed.setter
    def disturbed(self, on: bool) -> None:
        self._words[0] = on

    def step(self, rank: int) -> int:
        """The last step that ``rank`` has brought to the all-reduce."""
        return self._words[1 + rank]

    def set_step(self, rank: int, step: int) -> None:
        """Written by that rank only."""
        self._words[1 + rank] = step


class Gpu:
    """One device with this process as its only user: launches are booked, waits slept, copies copied."""

    def __init__(self, fd: int, device: int, memory_bytes: int = 11 << 30) -> None:
        self._words = simulated.attach(fd)
        self._at = simulated.base(device)
        slot = self._at + simulated.FIRST_PROC
        self._words[slot + 1] = memory_bytes
        self._words[slot] = os.getpid()
        self._pageable = memoryview(bytearray(_STAGING_BYTES))
        self._staging = memoryview(bytearray(_STAGING_BYTES))

    def launch(self, length_ms: float, sms_ppm: int = FULL) -> None:
        """Book a kernel of ``length_ms`` on ``sms_ppm`` of the SMs; returns at once."""
        words, at, length = self._words, self._at, int(length_ms * 1e6)
        words[at + simulated.SM_PPM] = sms_ppm
        words[at + simulated.UNTIL] = max(time.monotonic_ns(), words[at + simulated.UNTIL]) + length
        words[at + simulated.BUSY] += length
        words[at + simulated.SM_BUSY] += length * sms_ppm // FULL
        words[at + simulated.LAUNCHES] += 1
        words[at + simulated.FIRST_PROC + 2] += length

    def synchronize(self) -> None:
        """Sleep until all that was launched is done."""
        while (left_ns := self._words[self._at + simulated.UNTIL] - time.monotonic_ns()) > 0:
            time.sleep(left_ns / 1e9)

    def copy_in(self, count: int) -> None:
        """``tensor.to(device)`` of ``count`` pageable bytes: copy them into a staging buffer, and spin until the bus has taken them."""
        end = time.monotonic() + count / _BUS_BYTES_PER_S
        for _ in range(count // _STAGING_BYTES):
            self._staging[:] = self._pageable
            self._words[self._at + simulated.RX] += _STAGING_BYTES
        self._words[self._at + simulated.RX] += count % _STAGING_BYTES
        while time.monotonic() < end:
            pass

    def all_reduce(self, has_arrived: Callable[[], bool]) -> None:
        """Run a collective: its kernel spins on a sixteenth of the SMs until the peers are there."""
        while not has_arrived():
            self.launch(1e3 * _SPIN_S, FULL // 16)
            self.synchronize()


class Rank:
    """What a scenario's ``train`` works with."""

    def __init__(self, gpu_fd: int, signals_fd: int, file: int) -> None:
        self.number = int(os.environ.get("RANK", "0"))
        self.gpu = Gpu(gpu_fd, self.number)
        self.file = file  # the descriptor of the samples' file, -1 where the scenario has none
        self._signals = Signals(signals_fd)

    def disturbed(self) -> bool:
        """Whether things should go wrong now."""
        return self._signals.disturbed

    def arrive(self, step: int) -> None:
        """Tell the peer that this rank has come to the all-reduce of ``step``."""
        self._signals.set_step(self.number, step)

    def peer_is_at(self, step: int) -> bool:
        """Whether the other rank has come there too."""
        return self._signals.step(1 - self.number) >= step
