"""Whether a process can be asked for a trace, and the reason where it cannot."""

from __future__ import annotations

from collections.abc import Sequence

from gputop.system.errors import Unavailable
from gputop.system.text import clean
from gputop.traces.environment import HOW, job_of, waiting

WhyNot = dict[int, tuple[str, str]]
_MOST_CHARS = 200  # of a reason


def why_not(pids: Sequence[int], root: str = "/") -> WhyNot:
    """Pid -> (why it cannot be asked, what to do); both are empty if it can."""
    asking = set(waiting(root)) if pids else set()
    return {pid: _why_not(pid, root, pid in asking) for pid in pids}


def _why_not(pid: int, root: str, asks: bool) -> tuple[str, str]:
    try:
        job_of(pid, root)
    except Unavailable as why:
        return clean(why.reason, _MOST_CHARS), clean(why.remedy, _MOST_CHARS) or HOW
    return ("", "") if asks else (f"process {pid} has not imported torch yet, or is forked from one that has", "")
