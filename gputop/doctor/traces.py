"""Check of the torch processes: which can be asked for a trace of torch.profiler, and why others cannot."""

from __future__ import annotations

import os
from contextlib import suppress

from gputop.doctor.checks import DoctorCheck
from gputop.sources import Unavailable, parse
from gputop.sources.files import read_once
from gputop.sources.procfs.libraries import look
from gputop.system.text import clean, counted
from gputop.traces.environment import HOW, STAT_BYTES, job_of, waiting

MOST_NAMED = 3  # processes that are named of each kind (a choice)
_SILENT = "has not imported torch yet, or is forked from one that has"


def trace_check(root: str) -> DoctorCheck:
    """The torch processes, by whether they can be asked."""
    found = {pid: _why_not(pid, root) for pid in _torch_processes(root)}
    can = [pid for pid, (why, _) in found.items() if not why]
    reasons = [(pid, why, remedy) for pid, (why, remedy) in found.items() if why]
    told = [f"{counted(len(can), 'torch process')} can be asked for a trace{_pids(can)}"] if can else []
    if reasons:
        why = "; ".join(dict.fromkeys(why for _, why, _ in reasons[:MOST_NAMED]))
        told.append(f"{counted(len(reasons), 'torch process')} cannot: {why}")
        remedy = next((remedy for _, _, remedy in reasons if remedy), HOW)
        return DoctorCheck("traces", "torch traces", "limited", "; ".join(told), remedy)
    return DoctorCheck("traces", "torch traces", "ok", "; ".join(told) or f"no torch process runs; to ask one, {HOW}")


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
            parents[int(name)] = parse.stat(read_once(folder + "stat", STAT_BYTES) or b"").ppid
    return sorted(pid for pid, parent in parents.items() if parent not in parents)


def _why_not(pid: int, root: str) -> tuple[str, str]:
    """(why a process cannot be asked, what to do); empty if it can."""
    try:
        job_of(pid, root)
    except Unavailable as why:
        return clean(why.reason, 200), clean(why.remedy, 200)
    return ("", "") if pid in waiting(root) else (f"process {pid} {_SILENT}", "")
