"""Change: culprits, with their descendants, are stopped for a second at a time (SIGSTOP; cpu-contention, disk-io,
straggler-rank, gpu-shared).
Only where the user allowed it (`gputop prove --stop`).

May be kept: no.
Right needed: the same user.
Undo: SIGCONT, for processes that were not stopped before. A third process, the fuse, sends it after 1.5 s whatever happens.
"""

from __future__ import annotations

from gputop.prove.change import STOPPED, Case, Change, Plan, Refusal, named
from gputop.prove.interventions import Intervention
from gputop.prove.scene import Scene

NAME = "stop"
PULSE_S = 1.0  # s that they are stopped at a stretch; `gputop.prove.fuse.BURNS_S` is longer


def _make(case: Case, scene: Scene) -> Plan | Refusal | None:
    del case
    if not scene.allow_stop or not scene.culprits:
        return None
    for target in scene.culprits:
        for proc in map(scene.table.__getitem__, scene.pids_of([target])):  # a shell's job is in the foreground, not the shell
            if proc.foreground == proc.group:
                return Refusal(f"{scene.target(proc)} is in the foreground of a terminal: stopping it would give that back to its shell")
    says = f"{named(scene.culprits)} stopped for {PULSE_S:g} s at a time"
    return scene.planned(Plan(NAME, says, tuple(Change("state", STOPPED, one) for one in scene.culprits), False, PULSE_S))


INTERVENTION = Intervention(NAME, ("cpu-contention", "disk-io", "straggler-rank", "gpu-shared"), _make)
