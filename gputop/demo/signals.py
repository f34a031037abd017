"""A few words that stage and ranks share: whether the disturbance is on, and how many steps each rank has done."""

from __future__ import annotations

import mmap
import os

_SIZE = 4096


def create() -> int:
    """The memory's descriptor; it has no name."""
    fd = os.memfd_create("gputop-demo-signals")
    os.ftruncate(fd, _SIZE)
    return fd


class Signals:
    """The words behind a descriptor."""

    def __init__(self, fd: int) -> None:
        self._words = memoryview(mmap.mmap(fd, _SIZE)).cast("Q")

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
