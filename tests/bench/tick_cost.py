"""What one tick of the host sources costs this thread: ``python -m tests.bench.tick_cost [PROCESSES HOT THREADS]``."""

from __future__ import annotations

import os
import signal
import statistics
import sys
import threading
import time

from gputop.model.frame import Frame
from gputop.sources import Beat, Settings
from gputop.sources.cgroup import CgroupSource
from gputop.sources.host import HostSource
from gputop.sources.procfs import ProcfsSource

TICKS = 60


def spawn(threads: int, busy: bool) -> int:
    """A child with ``threads`` threads; of a busy one the main thread and one other wake ten times a second."""
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(120)
    for number in range(threads - 1):
        threading.Thread(target=_live, args=(0.1 if busy and number == 0 else 100.0,), daemon=True).start()
    _live(0.1 if busy else 100.0)
    os._exit(0)


def _live(pause_s: float) -> None:
    while True:
        time.sleep(pause_s)


def measure(hot: frozenset[int], ticks: int = TICKS) -> dict[str, list[float]]:
    """Milliseconds of thread time per tick and source, after the first second."""
    sources = [cls(Settings()) for cls in (ProcfsSource, HostSource, CgroupSource)]
    for source in sources:
        source.open()
    costs: dict[str, list[float]] = {source.name: [] for source in sources}
    for seq in range(-15, ticks):
        now = time.monotonic_ns()
        frame, beat = Frame(max(seq, 0), now), Beat(now, max(seq, 0), seq == -15, hot=hot if seq > -15 else frozenset())
        for source in sources:
            started = time.thread_time_ns()
            source.read(beat, frame)
            if seq >= 0:
                costs[source.name].append((time.thread_time_ns() - started) / 1e6)
        time.sleep(max(0.0, 0.1 - (time.monotonic_ns() - now) / 1e9))
    for source in sources:
        source.close()
    return costs


def main(processes: int, hot: int, threads: int) -> None:
    pids = [spawn(threads, True) for _ in range(hot)] + [spawn(1, False) for _ in range(processes - hot)]
    try:
        costs = measure(frozenset(pids[:hot]))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
    print(f"{processes} processes, {hot} hot of {threads} threads; ms per tick: mean / median / p95")
    for name, values in costs.items():
        ordered = sorted(values)
        print(f"  {name:8} {statistics.mean(values):.3f} / {statistics.median(values):.3f} / {ordered[int(len(ordered) * 0.95)]:.3f}")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:4]]
    main(*(given if len(given) == 3 else (100, 20, 4)))
