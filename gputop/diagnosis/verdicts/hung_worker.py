"""hung-worker: a worker is stopped, dead, or does not move while its trainer waits and the GPU does nothing.

Threshold: stopped or zombie in /proc; or neither run nor switched for `STUCK_S`, with the GPU idle for `IDLE_S`: a slow but living
worker wakes up many times in that span.
"""

from __future__ import annotations

from gputop.diagnosis import waits
from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.facts import ProcFacts
from gputop.diagnosis.model import Evidence
from gputop.diagnosis.model import Fix
from gputop.diagnosis.verdicts import Claims
from gputop.diagnosis.verdicts import Finding
from gputop.diagnosis.verdicts import Judge

STUCK_S, IDLE_S = 2.0, 1.5
_STILL = ("data.lock", "data.network", "data.pipe", "data.timer", "data.poll", "data.unknown", "data.disk", "data.child", "data.driver")


def _claim(job: JobFacts, _facts: Facts) -> Claims:
    claims = {"data.stopped": 1.0}
    idle = not job.gpus or all(gpu.idle_s >= IDLE_S for gpu in job.gpus)
    if idle and any(stuck(worker) for worker in job.workers):
        claims |= dict.fromkeys(_STILL, 1.0)
    return claims


def stuck(worker: ProcFacts) -> bool:
    """Asleep for long, and not on its queue."""
    fractions = worker.state.fractions
    return worker.still_s >= STUCK_S and fractions.get("blocked", 0.0) + fractions.get("disk", 0.0) > 0.5


def _hung(job: JobFacts) -> list[ProcFacts]:
    return [worker for worker in job.workers if worker.kinds.get(waits.STOPPED, 0.0) > 0.3 or stuck(worker)]


def _how(worker: ProcFacts) -> str:
    if worker.kinds.get(waits.STOPPED, 0.0) > 0.3:
        return "dead" if not worker.info.cmdline else "stopped"
    kind = max(worker.state.waits, key=worker.state.waits.__getitem__, default=waits.UNKNOWN)
    return {"lock": "waiting for a lock", "network": "waiting for the network", "unknown": "asleep"}.get(kind, f"waiting ({kind})")


def _tell(job: JobFacts, _facts: Facts) -> Finding:
    hung = _hung(job)
    names = ", ".join(f"{worker.role.label} ({worker.pid}) is {_how(worker)}" for worker in hung)
    evidence = tuple(
        Evidence("still_s", round(worker.still_s, 1), "s", f"{worker.role.label} has neither run nor switched")
        for worker in hung
    )
    return Finding(
        f"{names}; the others cannot deliver in its place", evidence, tuple(_fixes(hung)), (), tuple(worker.pid for worker in hung)
    )


def _fixes(hung: list[ProcFacts]) -> list[Fix]:
    fixes = []
    for worker in hung:
        how = _how(worker)
        if how == "stopped":
            fixes.append(Fix(f"Let {worker.role.label} go on", f"kill -CONT {worker.pid}"))
        elif how == "dead":
            fixes.append(
                Fix(f"{worker.role.label} has died (out of memory?): the training must be restarted", "dmesg | grep -i 'killed process'")
            )
        else:
            fixes.append(Fix(f"See where {worker.role.label} stands", f"gputop stacks {worker.pid}"))
    return fixes


JUDGE = Judge("hung-worker", "input-bound", 10, ("data.stopped", *_STILL), _claim, _tell, needs="/proc/PID/stat; status for the switches")
