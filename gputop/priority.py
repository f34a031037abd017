"""A place before busy neighbours for those who watch: where a crowd keeps a training from the CPUs it keeps us from them, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import suppress
from typing import Any

LOADER, WATCHER, BEAT = 1, 2, 3
"""Ranks of SCHED_RR: what loads the probes, a second of work that nobody waits for; the screen and the recorder; before them the beat,
which must be on time."""


def raise_priority(rank: int) -> str:
    """Ask for that place, for this thread and what it starts; says what was granted.

    SCHED_RR is the only way past other sessions' autogroups; where it is refused, niceness helps inside our own.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(rank))
        return f"SCHED_RR {rank}"
    except OSError:
        pass
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        return "nice -20"
    except OSError:
        return "ordinary: raising it needs CAP_SYS_NICE"


def lowered_to(rank: int) -> dict[str, Any]:
    """What `os.posix_spawn` is to be told for a child of that place; nothing where we have none ourselves."""
    ours = os.sched_getscheduler(0) == os.SCHED_RR
    return {"scheduler": (os.SCHED_RR, os.sched_param(rank))} if ours else {}


@contextmanager
def ordinary() -> Iterator[None]:
    """What this thread starts meanwhile has nobody's priority but its own: what the user has us start is not to have our place."""
    policy, rank = os.sched_getscheduler(0), os.sched_getparam(0)
    with suppress(OSError):
        os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, rank)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, policy, rank)
