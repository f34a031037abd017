"""Change: culprits, with their threads and descendants, may only run on CPUs that the job may not use, or else on one CPU
(cpu-contention, straggler-rank): what is left without the right to take a priority back, so it shows a part of the gain.

May be kept: yes.
Right needed: the same user.
Undo: each thread gets its old mask; one that began since gets its parent's.
"""

from __future__ import annotations

import os

from gputop.prove.change import Case, Change, Plan, Refusal, TargetProcess
from gputop.prove.interventions import Intervention
from gputop.prove.scene import Scene

NAME = "one-cpu"


def _make(case: Case, scene: Scene) -> Plan | Refusal | None:
    del case
    changes = [change for one in scene.culprits if (change := narrowed(scene, one))]
    says = ", ".join(f"{change.target} to CPU {change.new} alone" for change in changes)
    return scene.planned(Plan(NAME, says, tuple(changes), may_keep=True)) if changes else None


def narrowed(scene: Scene, target: TargetProcess) -> Change | None:
    """The mask for a culprit; None if it has one CPU only."""
    try:
        job = set().union(*(os.sched_getaffinity(one.pid) for one in scene.case.family if scene.living(one)))
    except OSError:
        return None
    allowed = scene.groups.cpus(target.pid)
    cpus = allowed - job or {max(allowed, default=0)}
    return Change("cpu-mask", ",".join(map(str, sorted(cpus))), target) if len(allowed) > 1 else None


INTERVENTION = Intervention(NAME, ("cpu-contention", "straggler-rank"), _make)
