"""A monitoring agent writes down the workers' stacks twice a second, with ptrace as debuggers do: each time all of them stop for 300 ms."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_SEIZE, _INTERRUPT, _DETACH, _WALL = 0x4206, 0x4207, 17, 0x40000000
_STOPPED_S, _FREE_S = 0.3, 0.2
_PR_SET_PDEATHSIG = 1


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=1), workers=2), trainer.compute(25))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with running.child([sys.executable, "-m", __name__, *map(str, running.workers())]):
        yield


def _profile(pids: list[str], libc: ctypes.CDLL) -> None:
    """Stop all threads of ``pids`` now and then; when this process ends, the kernel lets them go."""
    while True:
        threads = [int(tid) for pid in pids for tid in os.listdir(f"/proc/{pid}/task")]
        for tid in threads:
            libc.ptrace(_SEIZE, tid, None, None)
            libc.ptrace(_INTERRUPT, tid, None, None)
        for tid in threads:
            os.waitpid(tid, _WALL)
        time.sleep(_STOPPED_S)
        for tid in threads:
            libc.ptrace(_DETACH, tid, None, None)
        time.sleep(_FREE_S)


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb)

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _profile(sys.argv[1:], ctypes.CDLL(None))
