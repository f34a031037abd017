"""straggler-rank: one rank of a training is slower than its peers, and they wait for it in each collective.

Threshold: `intensity.PEER` more of the time than its peers (TraceML: straggler from 10 %, critical from 20 % of the step).
"""

from __future__ import annotations

from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.model import Culprit
from gputop.diagnosis.model import Evidence
from gputop.diagnosis.model import Fix
from gputop.diagnosis.verdicts import Claims
from gputop.diagnosis.verdicts import Finding
from gputop.diagnosis.verdicts import Judge


def _claim(job: JobFacts, _facts: Facts) -> Claims:
    return dict.fromkeys(job.pools, 1.0) if job.straggler is not None else {}


def _tell(job: JobFacts, facts: Facts) -> Finding:
    slow = job.straggler if job.straggler is not None else job.trainer
    own = next((other for other in facts.jobs if other.trainer is slow), job)
    fractions = {word: share for word, share in slow.state.fractions.items() if word != "waiting-gpu"}
    word = max(fractions, key=fractions.__getitem__, default="computing")
    share = 100 * fractions.get(word, 0.0)
    waiting = [other for other in facts.jobs if other.straggler is slow and other is not own]
    detail = f"{slow.role.label} ({slow.pid}) is {word} {share:.0f}% of the time, while {len(waiting)} other rank(s) wait for it"
    evidence = (
        Evidence(
            "straggler_idle_pct", round(100 * (own.idle or 0.0), 1), "%", f"of the time the GPU of {slow.role.label} has nothing to do"
        ),
        Evidence("straggler_state_pct", round(share, 1), "%", f"of the time its main thread is {word}"),
        *(
            Evidence("peer_idle_pct", round(100 * (other.idle or 0.0), 1), "%", f"the same of {other.trainer.role.label}")
            for other in waiting[:4]
        ),
    )
    fixes = (Fix(f"See what {slow.role.label} does that the others do not", f"gputop stacks {slow.pid}"),)
    culprit = Culprit(slow.pid, slow.role.label.partition(" rank")[0], round(slow.cpu_s, 3))
    return Finding(detail, evidence, fixes, (culprit,), tuple(other.trainer.pid for other in waiting))


JUDGE = Judge("straggler-rank", "straggler", 5, ("",), _claim, _tell, needs="RANK and WORLD_SIZE of the trainers, utilization of each GPU")
