"""What it changes: the culprits' threads and descendants get nice 19, where the kernel or its sandbox has no SCHED_IDLE (cpu-contention,
straggler-rank).

Whether it may be kept: yes.
What right it needs: to give it, the same user; to take it back, CAP_SYS_NICE or RLIMIT_NICE, so it is not begun without.
How it is undone: each thread gets its old niceness; who began meanwhile gets that of its parent.
"""

from __future__ import annotations

import os

from gputop.prove.change import Case, Change, Plan, Told, named
from gputop.prove.interventions import Intervention
from gputop.prove.scene import Scene, may_raise

NAME = "nice"


def _make(case: Case, scene: Scene) -> Plan | Told | None:
    del case
    if not scene.culprits or _has_idle():
        return None
    for one in scene.culprits:
        if not may_raise(one.pid, os.getpriority(os.PRIO_PROCESS, one.pid)):
            return Told(f"{one}: you may make it nicer, but only root can take that back: run gputop prove as root (sudo)")
    says = f"{named(scene.culprits)} to nice 19"
    return scene.planned(Plan(NAME, says, tuple(Change("nice", "19", one) for one in scene.culprits), may_keep=True))


def _has_idle() -> bool:
    try:
        os.sched_get_priority_min(os.SCHED_IDLE)
    except OSError:
        return False
    return True


INTERVENTION = Intervention(NAME, ("cpu-contention", "straggler-rank"), _make)
