"""Which machines to look at: those of a list, of a Slurm job, or the pods of a selector."""

from __future__ import annotations

from collections.abc import Sequence

from gputop.fleet.reach import Target, kubectl, srun


def targets(
    *, hosts: Sequence[str] = (), job: str | None = None, pods: str | None = None, namespace: str = "", way: str = ""
) -> list[Target]:
    """``job``: its number, empty for the one that this runs in. ``way``: ``ssh`` or ``srun``, for a job. UserError where there are none."""
    if pods is not None:
        return [Target(pod, "kubectl", namespace) for pod in kubectl.pods(pods, namespace)]
    if job is not None:
        number = srun.number_of(job)
        return [Target(node, way or "srun", number if way != "ssh" else "") for node in srun.nodes(number)]
    return [Target(host, way or "ssh") for host in hosts]
