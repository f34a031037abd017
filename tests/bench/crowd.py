"""Crowds of real, cheap, bounded processes: users of the GPUs, a busy host, hogs.

Run as a program it forks the crowd, prints its pids and ends it when standard input closes; whatever happens, every member
ends after its life.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1


@contextmanager
def crowd(count: int, busy_us: int = 200, period_ms: float = 100.0, life_s: int = 900) -> Iterator[list[int]]:
    """``count`` processes that work ``busy_us`` in every ``period_ms``; gives their pids. ``busy_us`` of -1 is a hog."""
    arguments = [str(count), str(busy_us), str(period_ms), str(life_s)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.bench.crowd", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        try:
            yield [int(pid) for pid in parent.stdout.readline().split()]
        finally:
            parent.stdin.close()


def _member(busy_us: int, period_ms: float, life_s: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(life_s)
    while True:
        stop = time.perf_counter_ns() + busy_us * 1000
        while busy_us < 0 or time.perf_counter_ns() < stop:
            pass
        time.sleep(period_ms / 1000)


def main() -> None:
    """Fork the crowd, name it, wait for the end of standard input."""
    count, busy_us, period_ms, life_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    pids: list[int] = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            _member(busy_us, period_ms, life_s)
        pids.append(pid)
    print(*pids, flush=True)
    sys.stdin.read()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
