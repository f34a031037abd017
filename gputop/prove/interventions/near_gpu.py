"""Change: all threads of the job may run only on the CPUs of its GPUs' NUMA node, as far as its cpuset has them (numa-remote). Memory stays
where it is: what is written anew lies near the GPU, and what was page-locked before shows no gain.

May be kept: yes.
Right needed: the same user.
Undo: each thread gets its old mask; one that began since gets its parent's.
"""

from __future__ import annotations

from gputop.diagnosis.graph.shell import spell_cpus
from gputop.prove.change import Case, Change, Plan, Refusal
from gputop.prove.interventions import Intervention
from gputop.prove.scene import Scene

NAME = "near-gpu"


def _make(case: Case, scene: Scene) -> Plan | Refusal | None:
    if not case.near_cpus:
        return Refusal("the NUMA node of its GPUs is not known: see nvidia-smi topo -m")
    job = scene.job()
    if isinstance(job, Refusal):
        return job
    changes, named = [], frozenset[int]()
    for target in job:
        cpus = scene.groups.cpus(target.pid) & case.near_cpus
        if not cpus:
            return Refusal(f"the cpuset of {target} has no CPU of its GPUs' NUMA node (CPUs {spell_cpus(case.near_cpus)}): ask for some")
        changes.append(Change("cpu-mask", ",".join(map(str, sorted(cpus))), target))
        named |= cpus
    says = f"{case.trainer} and its workers to CPUs {spell_cpus(named)}, beside the GPU"
    return scene.planned(Plan(NAME, says, tuple(changes), may_keep=True))


INTERVENTION = Intervention(NAME, ("numa-remote",), _make)
