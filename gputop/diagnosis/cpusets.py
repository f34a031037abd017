"""CPU lists as the kernel writes them: ``0-3,8``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache


@lru_cache(maxsize=256)
def parse(text: str) -> frozenset[int]:
    """The CPUs of a list such as ``0-3,8``; empty for what is none."""
    found: set[int] = set()
    for part in text.split(","):
        first, _dash, last = part.strip().partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found.update(range(int(first), min(int(last or first), int(first) + 4096) + 1))
    return frozenset(found)


def spell(cpus: frozenset[int]) -> str:
    """The list of a set of CPUs, runs joined."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def widening(cpus: str, pids: Iterable[int]) -> str:
    """The command that lets all threads of these processes run on a list of CPUs."""
    return f"for p in {' '.join(map(str, pids))}; do taskset -apc {cpus} $p; done"
