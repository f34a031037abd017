"""sync-storm: the trainer waits for the GPU after every few operations (.item(), print, nonzero).

Costs: the two take turns. While the host waits it launches nothing, and once it goes on the GPU has run dry.
Seen: row turn x main, by its price (`gpuside.turns`): the main thread's own time, at most `policy.TURN_S` for each wait, less
`policy.LAUNCH_COST_S` for each launch; at most `policy.SHORT_TURN_S` for each call that waits, however shortly. Without probed calls: it
spins in them in `policy.TENTH` of the samples, or they are its sleeps while the GPU works, at half the price.
Abstains: many kernels run between two waits, for then launching delays the host; links are busy (h2d-transfer); it sleeps so often because
of batches, its own threads or writes.
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, advice, percent, traced
from gputop.diagnosis.graph.gpuside import calls_per_s, spins_per_s, waits_per_s
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings.sentence import filled
from gputop.findings.verdict import Evidence, Fix


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    calls, sampled = job.cuda.calls, job.cuda.sampled if spins_per_s(job) is not None else None
    rate = waits_per_s(job) if calls is None else calls_per_s(calls)
    often = filled("{:,.0f} sleeps of the main thread, as many as synchronizing calls make, per second", rate)
    if calls is not None:
        often = filled("{:,.0f} synchronizing calls per second", rate)
    elif sampled is not None:
        often = filled("{:,.0f} waits per second and more, in which its main thread spins", sampled.seen_per_s)
    named, by_trace = traced.waits(job)
    inside, counted = calls or sampled, "" if calls is None else calls.counted_in
    evidence = (
        Evidence("syncs_per_s", None if calls is None else round(rate, 1), "/s", filled("synchronizing calls{}", counted)),
        percent("sync_pct", None if inside is None else inside.sync, "of the trainer's time inside them"),
        Evidence("launches_per_s", None if calls is None else job.cuda.launches_per_s, "/s", "kernels launched, counted now and then"),
        Evidence("sleeps_per_s", round(job.trainer.sleeps_per_s or 0.0, 1), "/s", "voluntary switches of the main thread"),
        *by_trace,
    )
    find = Fix("See which call waits, by line", filled("gputop stacks {:pid} --duration 10", job.trainer.pid), look=True)
    fixes = (*advice.fixes(advice.computing(job, facts).waits), find)
    return Finding(filled("{}: GPU and host take turns instead of overlapping{}", often, named), evidence, fixes, (), (job.trainer.pid,))


JUDGE = Judge("sync-storm", "wait-heavy", _tell, rows=(("turn", "main"),))
