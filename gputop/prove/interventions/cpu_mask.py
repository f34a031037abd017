"""Change: all threads of the job may run on all CPUs of its cpuset (affinity).

May be kept: yes.
Right needed: the same user.
Undo: each thread gets its old mask; one that began since gets its parent's.
"""

from __future__ import annotations

import os

from gputop.prove.change import Case, Change, Plan, Refusal
from gputop.prove.groups import path_of
from gputop.prove.interventions import Intervention
from gputop.prove.processes import read_threads
from gputop.prove.scene import Scene
from gputop.system.text import counted

NAME = "cpu-mask"


def _make(case: Case, scene: Scene) -> Plan | Refusal | None:
    job = scene.job()
    if isinstance(job, Refusal):
        return job
    changes = []
    for target in job:
        allowed = scene.groups.cpus(target.pid)
        pids = scene.pids_of([target])
        if any(allowed - _mask(thread.pid) for pid in pids for thread in read_threads(pid)):
            changes.append(Change("cpu-mask", ",".join(map(str, sorted(allowed))), target))
    if not changes and scene.groups.cpus(case.trainer.pid) >= scene.groups.online:
        return Refusal(f"no mask holds the job: it may use all {counted(len(scene.groups.online), 'CPU')} of this machine")
    if not changes:
        place = scene.groups.place(case.trainer.pid, "cpuset")
        where = path_of(place, place.folders[0]) if place is not None else "that it runs in"
        return Refusal(f"the job may use all CPUs of its cpuset already: what holds it is the cpuset of cgroup {where}")
    return scene.planned(Plan(NAME, f"{case.trainer} and its workers to all {len(changes[0].new.split(','))} CPUs", tuple(changes), True))


def _mask(tid: int) -> set[int]:
    try:
        return os.sched_getaffinity(tid)
    except OSError:
        return set(range(os.cpu_count() or 1))


INTERVENTION = Intervention(NAME, ("affinity",), _make)
