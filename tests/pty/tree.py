"""CPU and memory of a whole process tree, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """A process tree at one moment."""

    pids: tuple[int, ...]
    cpu_s: float
    """utime + stime of all, and of children they have reaped (/proc/PID/stat 14 to 17), seconds."""
    pss_bytes: int
    """Proportional memory, summed (/proc/PID/smaps_rollup)."""


def tree(root: int) -> list[int]:
    """``root`` and all its descendants, also those of its session whose parent has gone."""
    parents, sessions = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            parents[int(entry)], sessions[int(entry)] = int(fields[1]), int(fields[3])
    members = {root}
    while more := {p for p, parent in parents.items() if p not in members and (parent in members or sessions[p] == root)}:
        members |= more
    return sorted(members)


def usage(root: int) -> Usage:
    """CPU and memory that the tree under ``root`` has used."""
    pids = tree(root)
    stats = [fields for pid in pids if (fields := _stat(pid))]
    cpu = sum(int(f[i]) for f in stats for i in (11, 12, 13, 14)) * _TICK_S
    return Usage(tuple(pids), cpu, sum(_pss(pid) for pid in pids))


def spent(pids: Iterable[int]) -> tuple[dict[int, int], int]:
    """ns of CPU by thread id (schedstat: exact, where `Usage` has clock ticks), and the voluntary switches of them all: wake-ups."""
    ns_by_tid, wakeups = dict[int, int](), 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with suppress(OSError):  # a thread that ends meanwhile
                ns_by_tid[int(task.name)] = int((task / "schedstat").read_text().split()[0])
                lines = (task / "status").read_text().splitlines()
                wakeups += next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return ns_by_tid, wakeups


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third (state) on; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _pss(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
