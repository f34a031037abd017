"""Signals that the dashboard sends to processes, after a question."""

from __future__ import annotations

import signal

SIGNALS = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "KILL": signal.SIGKILL}


def send_signal(name: str, targets: dict[int, int]) -> str:
    """Signal processes (pid -> start_ticks); returns a line with the outcome.

    A process with another start time got the pid of one that has ended: it is not signalled.
    """
    failed = [why for pid, start_ticks in targets.items() if (why := _why_unsent(pid, start_ticks, SIGNALS[name]))]
    done = len(targets) - len(failed)
    return f"SIG{name} sent to {done} of {len(targets)}" + (f"; {'; '.join(failed)}" if failed else "")


def _why_unsent(pid: int, start_ticks: int, number: signal.Signals) -> str:
    """Signal a process; returns why that failed, empty if it did not."""
    from gputop.prove.change import send_signal_to
    from gputop.prove.permission import stage, why_off_stage

    if why := why_off_stage(pid, stage()):
        return f"{pid} {why}"
    try:
        send_signal_to(pid, start_ticks, number)
    except PermissionError:
        return f"{pid}: not permitted"
    except (ProcessLookupError, FileNotFoundError):
        return f"{pid} has ended"
    return ""
