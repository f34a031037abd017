"""What it changes: culprits, with their threads and descendants, get SCHED_IDLE: they run where nobody else wants the CPU (cpu-contention,
straggler-rank). A session of its own (autogroup) gets the least weight instead, for policies count only inside of it.

Whether it may be kept: yes.
What right it needs: to give it, the same user; to take it back, CAP_SYS_NICE or RLIMIT_NICE, so it is not begun without.
How it is undone: policy, priority and SCHED_RESET_ON_FORK of each thread are put back; who began meanwhile gets those of its parent.
"""

from __future__ import annotations

import os

from gputop.experiments.change import IDLE, Case, Change, Plan, Told
from gputop.experiments.interventions import Intervention
from gputop.experiments.scene import Scene, may_raise

NAME = "idle-priority"


def _make(case: Case, scene: Scene) -> Plan | Told | None:
    del case
    if not scene.culprits:
        return scene.told("nobody to put aside")
    bound = [one for one in scene.culprits if not may_raise(one.pid, os.getpriority(os.PRIO_PROCESS, one.pid))]
    if bound:
        return scene.told(f"{bound[0]} may be given idle priority, but only root may end that: run gputop prove as root (sudo)")
    says = f"{', '.join(map(str, scene.culprits))} to idle priority"
    return scene.planned(Plan(NAME, says, tuple(Change("policy", IDLE, one) for one in scene.culprits), may_keep=True))


INTERVENTION = Intervention(NAME, ("cpu-contention", "straggler-rank"), _make)
