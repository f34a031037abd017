"""What it changes: culprits, with their threads and descendants, may only run on CPUs that the job may not use, or else on one CPU
(cpu-contention, straggler-rank): what is left without the right to take a priority back, so it shows a part of the gain.

Whether it may be kept: yes.
What right it needs: the same user.
How it is undone: each thread gets its old mask; who began meanwhile gets that of its parent.
"""

from __future__ import annotations

import os

from gputop.experiments.change import Case, Change, Plan, Told
from gputop.experiments.interventions import Intervention
from gputop.experiments.interventions.cpu_mask import given
from gputop.experiments.scene import Scene

NAME = "one-cpu"


def _make(case: Case, scene: Scene) -> Plan | Told | None:
    try:
        job = set().union(*(os.sched_getaffinity(one.pid) for one in case.family if scene.living(one)))
        changes, says = [], []
        for target in scene.culprits:
            allowed = given(scene, target.pid)
            cpus = allowed - job or {max(allowed)}
            if len(allowed) > 1:
                listed = ",".join(map(str, sorted(cpus)))
                changes.append(Change("cpu-mask", listed, target))
                says.append(f"{target} to CPU {listed} alone")
    except (OSError, ValueError):
        return None
    return scene.planned(Plan(NAME, ", ".join(says), tuple(changes), may_keep=True)) if changes else None


INTERVENTION = Intervention(NAME, ("cpu-contention", "straggler-rank"), _make)
