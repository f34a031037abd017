"""How much of the host others used meanwhile: a labelled run is only true where nobody else disturbed it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.workloads.runner import descendants

OTHERS_CPUS = 0.6  # CPUs that unrelated processes may take: beside more a run says nothing about its label, a tool or a fix
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Meter:
    """CPUs used since it was made by processes that are not ours (this one, and all below it)."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy_s, self._own_s = _busy_s(), _own_s()

    def cpus(self) -> float:
        """CPUs, on average; 0.02 is about as exact as clock ticks are over some seconds."""
        seconds = time.monotonic() - self._began
        return max(0.0, (_busy_s() - self._busy_s - (_own_s() - self._own_s)) / seconds)


def wait(most_cpus: float, patience_s: float) -> bool:
    """Wait until others use less than ``most_cpus`` for two seconds; False where they did not in time."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        meter = Meter()
        time.sleep(2.0)
        if meter.cpus() < most_cpus:
            return True
    return False


def _busy_s() -> float:
    """All CPUs' time that was neither idle nor iowait, stolen time included (/proc/stat)."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def _own_s() -> float:
    """Of this process and all below it, with what their ended children took."""
    return sum(_cpu_s(pid) for pid in {os.getpid(), *descendants([os.getpid()])})


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS_PER_S
