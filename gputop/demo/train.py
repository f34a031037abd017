"""The demo's training script, one process per rank: ``train.py SCENARIO PARENT GPU_FD SIGNALS_FD FILE_FD``.

It never ends by itself: the stage, its parent, ends it.
"""

from __future__ import annotations

import os
import sys

from gputop.demo.gpu import Gpu
from gputop.demo.processes import die_with_parent
from gputop.demo.scenarios import SCENARIOS
from gputop.demo.signals import Signals


class Rank:
    """This process's part of the training."""

    def __init__(self, gpu_fd: int, signals_fd: int, file: int) -> None:
        self.number = int(os.environ.get("RANK", "0"))
        self.gpu = Gpu(gpu_fd, self.number)
        self.file = file
        self._signals = Signals(signals_fd)

    def disturbed(self) -> bool:
        """Whether things should go wrong now."""
        return self._signals.disturbed

    def arrive(self, step: int) -> None:
        """Tell the peers that this rank has come to the all-reduce of a step."""
        self._signals.set_step(self.number, step)

    def peer_is_at(self, step: int) -> bool:
        """Whether the other rank has."""
        return self._signals.step(1 - self.number) >= step


def main(name: str, parent: str, *fds: str) -> None:
    """Train."""
    die_with_parent(int(parent))
    rank = Rank(*map(int, fds))
    SCENARIOS[name].train(rank)


if __name__ == "__main__":
    main(*sys.argv[1:])
