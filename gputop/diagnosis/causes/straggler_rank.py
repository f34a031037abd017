"""straggler-rank: one rank of a training is slower than its peers, and they wait for it in each collective.

Threshold: its GPU idles for `intensity.PEER` more of the time than its peers' (TraceML: straggler from 10 %, critical from 20 % of the
step), or is used `intensity.WORKED` more than theirs, which spin. Not where these lose `intensity.LIKE_OTHERS` of that by themselves. Or
one is not there any more, and they stand (see `absent`).
"""

from __future__ import annotations

from collections import Counter

from gputop.diagnosis import shell
from gputop.diagnosis.capacity import capacity
from gputop.diagnosis.causes import Claims, Finding, Judge, Rule, gpu_throttle
from gputop.diagnosis.causes.cpu_contention import blames_others, culprits
from gputop.diagnosis.causes.pause import waits_for_first
from gputop.diagnosis.facts import Facts, JobFacts, Taker
from gputop.diagnosis.feeders import with_workers
from gputop.diagnosis.intensity import PEER, late_job, slowed_by, used
from gputop.diagnosis.model import Culprit, Evidence, Fix
from gputop.diagnosis.proc import ProcFacts
from gputop.diagnosis.takers import blame, names_of
from gputop.system.text import counted

FLAT_OUT = 0.7  # share of the window that workers run which cannot keep up
KEPT = 0.3  # share of the window that one of the straggler's processes is runnable and does not run, from which it is told who does


def _claim(job: JobFacts, facts: Facts) -> Claims:
    if job.absent_ranks:
        return dict.fromkeys(job.pools, 1.0)
    if job.straggler is None or waits_for_first(job, facts):
        return {}
    return dict.fromkeys(job.pools, 1.0)


def _tell(job: JobFacts, facts: Facts) -> Finding:
    if job.absent_ranks:
        return _tell_of_absent(job)
    own = late_job(job, facts)
    slow = own.trainer
    waiting = [other for other in facts.jobs if other.straggler is slow and other is not own]
    late = _late_gpu if (own.idle or 0.0) < PEER else _late_host
    detail, evidence, fixes = late(own, waiting)
    culprit = Culprit(slow.pid, slow.role.label.partition(" rank")[0], round(slow.cpu_s, 3))
    victims, takers = tuple(other.trainer.pid for other in waiting), _takers(own, facts)
    if takers:
        detail += f"; {', '.join(names_of(takers))} took {sum(taker.cores for taker in takers):.1f} CPUs meanwhile"
        fixes = (*shell.fixes(takers, slow.info, own.cgroup_version, facts.host.autogroup), *fixes)
    return Finding(detail, evidence, fixes, (culprit, *blame(takers, facts.seconds)), victims)


def _tell_of_absent(job: JobFacts) -> Finding:
    ranks, waiting = ", ".join(map(str, job.absent_ranks[:8])), len(job.kin) or 1
    gone = f"rank {ranks} of its training has" if len(job.absent_ranks) == 1 else f"ranks {ranks} of its training have"
    stand = f"{counted(waiting, 'other')} {'stands' if waiting == 1 else 'stand'}"
    detail = f"{gone} no process on this host any more, and {stand} in a collective that needs all"
    evidence = Evidence("absent_ranks", float(len(job.absent_ranks)), "", "ranks that their launcher told of and that have no process")
    fixes = (
        Fix("Restart the training from its last checkpoint: they will wait until the collective's timeout"),
        Fix("Was it killed, or out of memory?", "dmesg | grep -i 'killed process'"),
        Fix("Have a launcher end all ranks as one of them ends", "torchrun --nproc-per-node=..."),
    )
    return Finding(detail, (evidence,), fixes, (), (job.trainer.pid,))


def _takers(own: JobFacts, facts: Facts) -> list[Taker]:
    """Who runs while it, or most of its workers' time, is runnable; nobody where it is late by itself."""
    kept = [proc.runnable for proc in (*own.workers, own.trainer)]
    return culprits(own, facts) if max(kept) >= KEPT and blames_others(capacity(own, facts)) else []


_Late = tuple[str, tuple[Evidence, ...], tuple[Fix, ...]]


def _late_host(own: JobFacts, waiting: list[JobFacts]) -> _Late:
    """Its GPU has nothing to do: what keeps its main thread?"""
    slow = own.trainer
    fractions = {word: share for word, share in slow.state.fractions.items() if word != "waiting-gpu"}
    word = max(fractions, key=fractions.__getitem__, default="computing")
    share = 100 * fractions.get(word, 0.0)
    waits = own.workers if word == "waiting-data" else []
    seems = "seems to be" if waits and slow.state.inferred else "is"
    late = f"{slow.role.label} ({slow.pid}) {seems} {word} {share:.0f}% of the time{_workers(waits)}"
    detail = f"{late}, with {counted(len(waiting), 'other rank')} waiting for it"
    evidence = (
        _percent("straggler_idle_pct", own.idle, f"of the time the GPU of {slow.role.label} has nothing to do"),
        _percent("straggler_state_pct", fractions.get(word, 0.0), f"of the time its main thread is {word}"),
        *(_percent("peer_idle_pct", other.idle, f"the same of {other.trainer.role.label}") for other in waiting[:4]),
    )
    pids = " ".join(str(proc.pid) for proc in (slow, *waits))
    look = Fix(f"See what {slow.role.label} does that the others do not", f"gputop stacks {pids}")
    return detail, evidence, (*_more_workers(own, waits), look)


def _more_workers(own: JobFacts, workers: list[ProcFacts]) -> tuple[Fix, ...]:
    if not workers or not all(worker.state.fractions.get("running", 0.0) >= FLAT_OUT for worker in workers):
        return ()
    text = f"Give {own.trainer.role.label} more workers (where CPUs are left), or even out what its samples cost"
    return (Fix(text, with_workers(own, len(workers) + 1)),)


def _workers(workers: list[ProcFacts]) -> str:
    """What those do for which it waits; empty for none."""
    did: Counter[str] = Counter()
    for worker in workers:
        did.update({word: share for word, share in worker.state.fractions.items() if word != "ahead"})
    if not did:
        return ""
    word, share = did.most_common(1)[0]
    verb = "is" if len(workers) == 1 else "are"
    return f" (its {counted(len(workers), 'worker')} {verb} {word} {100 * share / len(workers):.0f}%)"


def _late_gpu(own: JobFacts, waiting: list[JobFacts]) -> _Late:
    """Its GPU is busy all the time, and the others' are done before it."""
    slow, index = own.trainer, own.gpus[0].index
    spin = all((other.idle or 0.0) < PEER for other in waiting)
    others = f"those of {counted(len(waiting), 'other rank')} {'spin' if spin else 'idle'} until it is done"
    detail = f"the GPU of {slow.role.label} ({slow.pid}) works without a pause, while {others}"
    evidence = (
        _percent("straggler_used_pct", used(own), f"of GPU {own.gpus[0].name} is used by kernels of {slow.role.label}"),
        *(_percent("peer_used_pct", used(other), f"the same of {other.trainer.role.label}") for other in waiting[:4]),
    )
    slowed = [gpu for gpu in own.gpus if slowed_by(gpu)]
    if slowed:
        return f"{detail}; {', '.join(map(gpu_throttle.held, slowed))}", evidence, tuple(gpu_throttle.fixes(slowed[0]))
    fixes = (
        Fix("See whether that GPU is slower than the others", f"nvidia-smi -i {index} -q -d CLOCK,PERFORMANCE,TEMPERATURE"),
        Fix("If it is not, its rank has more to do: even out the batches (by tokens rather than by samples)"),
    )
    return detail, evidence, fixes


def _percent(name: str, share: float | None, what: str) -> Evidence:
    return Evidence(name, None if share is None else round(100 * share, 1), "%", what)


JUDGE = Judge(
    "straggler-rank", "straggler", _tell, rule=Rule(5, ("",), _claim),
    needs="RANK and WORLD_SIZE of the trainers, utilization of each GPU",
)  # fmt: skip
