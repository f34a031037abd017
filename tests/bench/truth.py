"""Truth: on-CPU time, run-queue delay and switches of contended processes, beside /proc read independently."""

from __future__ import annotations

import os
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

from gputop.model.frame import ProcSample
from tests.bench.beat import collect
from tests.bench.crowd import crowd
from tests.bench.figures import table

COUNTERS = ("oncpu_ns", "run_delay_ns", "vol", "invol")
_SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)
_Reading = tuple[int, dict[str, int]]


class Reader(threading.Thread):
    """Reads /proc of ``pids`` every 5 ms by itself."""

    def __init__(self, pids: list[int]) -> None:
        super().__init__(daemon=True)
        self.readings: dict[int, list[_Reading]] = {pid: [] for pid in pids}
        self.done = threading.Event()

    def run(self) -> None:
        """Until ``done`` is set."""
        while not self.done.wait(0.005):
            for pid, readings in self.readings.items():
                readings.append((time.monotonic_ns(), read(pid)))

    def at(self, pid: int, counter: str, t_ns: int) -> float:
        """The counter at ``t_ns``, between the readings around it."""
        readings = self.readings[pid]
        after = bisect_left(readings, (t_ns,))
        (t0, low), (t1, high) = readings[max(0, after - 1)], readings[min(after, len(readings) - 1)]
        share = (t_ns - t0) / (t1 - t0) if t1 > t0 else 0.0
        return low[counter] + share * (high[counter] - low[counter])


def read(pid: int) -> dict[str, int]:
    """The counters of a process's main thread, from its schedstat and status."""
    oncpu, delay, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    vol, invol = _SWITCHES.findall(Path(f"/proc/{pid}/status").read_text())
    return {"oncpu_ns": int(oncpu), "run_delay_ns": int(delay), "vol": int(vol), "invol": int(invol)}


def errors_pct(pids: list[int], seconds: float) -> dict[str, list[float]]:
    """Per counter and process: how far what gputop saw grow differs from what grew, % of what grew."""
    reader = Reader(pids)
    reader.start()
    frames = collect(dict(os.environ), seconds).frames
    reader.done.set()
    reader.join()
    errors: dict[str, list[float]] = {counter: [] for counter in COUNTERS}
    for pid in pids:
        samples = [sample for frame in frames for sample in frame.procs if sample.pid == pid]
        for counter in COUNTERS:
            had = [sample for sample in samples if getattr(sample, counter) is not None]
            if len(had) > 1 and (error := _error_pct(reader, had[0], had[-1], counter)) is not None:
                errors[counter].append(error)
    return errors


def _error_pct(reader: Reader, first: ProcSample, last: ProcSample, counter: str) -> float | None:
    seen = getattr(last, counter) - getattr(first, counter)
    grew = reader.at(last.pid, counter, last.t_ns) - reader.at(first.pid, counter, first.t_ns)
    return 100 * abs(seen - grew) / grew if grew > 0 else None


def report(run_s: float = 12.0) -> Iterator[str]:
    """The table."""
    with crowd(4, busy_us=3000, period_ms=5, life_s=60) as pids, crowd(4, busy_us=-1, life_s=60):
        errors = errors_pct(pids, run_s)
    yield f"## Truth (4 contended processes over {run_s:g} s, beside /proc read every 5 ms)"
    rows = [[counter, len(found), f"{max(found):.2f}" if found else "not measured"] for counter, found in errors.items()]
    yield table(["counter", "processes", "largest difference %"], rows)
