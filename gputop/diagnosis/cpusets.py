"""CPU lists as the kernel writes them: ``0-3,8``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

MOST_CPUS = 8192  # NR_CPUS of a kernel at most (arch/x86/Kconfig)
_MOST_TEXT = 6 * MOST_CPUS  # characters of a list of them


@lru_cache(maxsize=256)
def parse(text: str) -> frozenset[int]:
    """The CPUs of a list such as ``0-3,8``, in ascending order as the kernel writes it; empty for what is none."""
    found: set[int] = set()
    following = 0
    for part in text.split(",") if len(text) <= _MOST_TEXT else ():
        first, _dash, last = part.strip().partition("-")
        if first.isdecimal() and (not last or last.isdecimal()) and int(first) >= following:
            following = min(int(last or first), MOST_CPUS - 1) + 1
            found.update(range(int(first), following))
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
