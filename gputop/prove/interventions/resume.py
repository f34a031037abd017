"""Change: stopped processes of the job, or of its feeders, go on (SIGCONT; hung-worker, pause).

May be kept: yes.
Right needed: the same user.
Undo: they are stopped again, as they were found.
"""

from __future__ import annotations

from gputop.prove.change import RUNNING, Case, Change, Plan, Refusal, named
from gputop.prove.interventions import Intervention
from gputop.prove.scene import Scene

NAME = "continue"
STOPPED, TRACED = "T", "t"  # states in /proc/PID/stat: by a signal; by a debugger, from which no signal wakes


def _make(case: Case, scene: Scene) -> Plan | Refusal | None:
    job = scene.job()
    if isinstance(job, Refusal):
        return job
    pids = sorted(scene.pids_of([*job, *scene.culprits]))
    traced = next((scene.target(scene.table[pid]) for pid in pids if scene.table[pid].state == TRACED), None)
    stopped = [scene.target(scene.table[pid]) for pid in pids if scene.table[pid].state == STOPPED]
    if stopped:
        says = f"{named(stopped)} {'goes' if len(stopped) == 1 else 'go'} on"
        return scene.planned(Plan(NAME, says, tuple(Change("state", RUNNING, one) for one in stopped), may_keep=True))
    if traced is not None:
        return Refusal(f"{traced} is held by a debugger (TracerPid in /proc/{traced.pid}/status): only that lets it go on")
    if case.cause == "pause":
        return Refusal("the job pauses by itself (checkpoint, evaluation): nothing can be switched off")
    return Refusal("no process is stopped, and no experiment revives a dead or hung one: gputop stacks shows where it waits")


INTERVENTION = Intervention(NAME, ("hung-worker", "pause"), _make)
