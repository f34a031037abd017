"""Check of the torch processes: which can be asked for a trace of torch.profiler, and why others cannot."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from gputop.doctor.checks import DoctorCheck
from gputop.sources import parse
from gputop.sources.files import read_once
from gputop.sources.procfs.libraries import look
from gputop.system.text import counted

MOST_NAMED = 3  # processes that are named of each kind (a choice)
_STAT_BYTES = 4096


def trace_check(root: str, why_not: Callable[[Sequence[int], str], Mapping[int, tuple[str, str]]]) -> DoctorCheck:
    """The torch processes, by whether they can be asked. ``why_not``: as in `gputop.traces.askable`."""
    found = why_not(_torch_processes(root), root)
    can, reasons = [pid for pid, (why, _) in found.items() if not why], [row for row in found.values() if row[0]]
    facts = [f"{counted(len(can), 'torch process')} can be asked for a trace{_pids(can)}"] if can else []
    if not reasons:
        return DoctorCheck("traces", "torch traces", "ok", "; ".join(facts) or "no torch process runs: none can be asked for a trace")
    facts.append(f"{counted(len(reasons), 'torch process')} cannot: {'; '.join(dict.fromkeys(why for why, _ in reasons[:MOST_NAMED]))}")
    remedy = next((remedy for _, remedy in reasons if remedy), None)
    return DoctorCheck("traces", "torch traces", "limited", "; ".join(facts), remedy)


def _pids(pids: list[int]) -> str:
    more = f" and {len(pids) - MOST_NAMED} more" if len(pids) > MOST_NAMED else ""
    return f" ({', '.join(map(str, pids[:MOST_NAMED]))}{more})"


def _torch_processes(root: str) -> list[int]:
    """Pids of Python processes that have torch mapped and whose parent has not: workers of a loader are forked from their trainer."""
    parents: dict[int, int] = {}
    for name in os.listdir(os.path.join(root, "proc")):
        folder = os.path.join(root, "proc", name, "")
        if not name.isdigit() or "torch" not in look(folder)[1]:
            continue
        with suppress(ValueError, IndexError):  # it has ended
            parents[int(name)] = parse.stat(read_once(folder + "stat", _STAT_BYTES) or b"").ppid
    return sorted(pid for pid, parent in parents.items() if parent not in parents)
