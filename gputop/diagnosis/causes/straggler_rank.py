"""straggler-rank: one rank of a training is slower than its peers, or has ended.

Costs: in each collective all others wait for it, with their GPUs idle or spinning.
Seen: row rank x late: all of each rank's loss, where `facts.intensity` finds a straggler: its GPU idles for `policy.FIFTH` more of the time
than its peers' (TraceML: straggler from 10 %, critical from 20 % of the step), or is used `policy.FIFTH` more than theirs, which spin; or
they sleep at one another, and it elsewhere. A main thread that spins in `sched_yield` waits, as in a barrier of MPI. Row rank x gone: a
rank that its launcher announced has no process, and the others stand still (`life.absent_ranks`). Where a command line has
the sizes of the training's groups, a rank is late only among the ranks of its own groups; and where all ranks of one part are late alike (a
stage of the pipeline, a replica, those with the same experts), the part is named, and no rank is to blame. Nor is one where now one rank is
late and now another. A rank whose GPU works on at the clocks of the others has more data.
Abstains: the others lose `policy.HALF` as much by themselves; the first rank saves or evaluates for all (pause).
"""

from __future__ import annotations

from collections import Counter

from gputop.diagnosis.causes import Finding, Judge, advice, gpu_shared, gpu_throttle, named, percent
from gputop.diagnosis.causes.cpu_contention import culprits
from gputop.diagnosis.facts import gpushares
from gputop.diagnosis.facts.capacity import capacity
from gputop.diagnosis.facts.facts import Taker
from gputop.diagnosis.facts.intensity import computes_more, is_in_slow_part, slowed_by, used
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.facts.takers import blame, names_of
from gputop.diagnosis.graph import owners, shell
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob, late_job
from gputop.findings import parts, policy
from gputop.findings.ranks import SlowPart
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import Culprit, Evidence, Fix
from gputop.model.parallel import CONTEXT, EXPERT, REPLICA, STAGE, Parallel
from gputop.system.text import counted

NAMED, PEERS = 8, 4  # ranks, and peers, that are listed one by one

_Late = tuple[str, tuple[Evidence, ...], tuple[Fix, ...]]


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    if job.ranks.absent:
        return _tell_of_absent(job, facts)
    own = late_job(job, facts)
    slow, waiting = own.trainer, [other for other in facts.jobs if other.ranks.straggler is own.trainer and other is not own]
    detail, evidence, fixes = (_late_gpu if (own.idle or 0.0) < policy.FIFTH else _late_host)(own, waiting, facts)
    evidence = (*evidence, *named.last_in(own, facts))
    takers = _takers(own, facts)
    part, parallel = job.ranks.part, job.ranks.parallel
    if part is not None and parallel is not None and not takers and not any(map(slowed_by, own.gpus)):
        return _tell_of_part(job, part, parallel, facts, evidence)
    if job.ranks.by_turns and not takers:
        return _tell_of_turns(job, facts, evidence)
    if takers:
        detail += filled("; {} took {:.1f} CPUs in that time", joined(", ", names_of(takers)), sum(taker.cores for taker in takers))
        fixes = (*shell.fixes(takers, slow.info, own.limits.cgroup_version, facts.host.autogroup), *fixes)
    culprit = Culprit(slow.pid, slow.role.label.partition(" rank")[0], round(slow.cpu_s, 3))
    others = [one for gpu, _ in gpushares.shared(own)[:1] for one in gpu_shared.culprits(gpu)]
    blamed = (culprit, *others, *blame(takers, facts.seconds))
    return Finding(detail, evidence, fixes, blamed, tuple(other.trainer.pid for other in waiting))


def _tell_of_absent(job: WalkedJob, facts: WalkedFacts) -> Finding:
    ranks, waiting = joined(", ", map(str, job.ranks.absent[:NAMED])), len(job.ranks.kin) or 1
    gone = filled("rank {} of its training has", ranks) if len(job.ranks.absent) == 1 else filled("ranks {} of its training have", ranks)
    stand = filled("{} {}", counted(waiting, "other"), "stands" if waiting == 1 else "stand")
    evidence = Evidence("absent_ranks", float(len(job.ranks.absent)), "", "ranks that their launcher announced and that have no process")
    fixes = (
        *advice.fixes(advice.computing(job, facts).again),
        Fix("Was it killed, or out of memory?", "dmesg | grep -i 'killed process'", look=True),
        *advice.fixes(advice.computing(job, facts).ranks),
    )
    detail = filled("{} no process on this host any more, and {} in a collective that needs all", gone, stand)
    return Finding(detail, (evidence,), fixes, (), (job.trainer.pid,))


def _tell_of_part(job: WalkedJob, part: SlowPart, parallel: Parallel, facts: WalkedFacts, evidence: tuple[Evidence, ...]) -> Finding:
    """The finding of a training whose parts have not equally much to do: no rank of the slow one is to blame."""
    family = [one for one in facts.jobs if one is job or one.trainer.pid in job.ranks.kin]
    slow = [one for one in family if is_in_slow_part(one)]
    numbers = sorted(one.trainer.role.rank or 0 for one in slow)
    ranks = filled("{} {}", "rank" if len(slow) == 1 else "ranks", joined(", ", map(str, numbers[:NAMED])))
    waiting = tuple(one.trainer.pid for one in family if one not in slow)
    return Finding(parts.words_of(part, parallel, ranks), evidence, _even_out(part), (), waiting)


def _even_out(part: SlowPart) -> tuple[Fix, ...]:
    if part.kind == STAGE:
        words = "Give stage {:d} fewer layers: the first stage also has the embedding, the last one the head and the loss"
        return (
            Fix(filled(words, part.number + 1)),
            Fix("Or cut the pipeline into more, smaller parts that take turns (interleaved stages)"),
        )
    if part.kind == REPLICA:
        return (Fix("Even out the batches over the replicas by tokens rather than by samples: sort by length, or pack sequences"),)
    if part.kind == EXPERT:
        return (Fix("Spread the tokens over the experts: a loss or bias of the router that balances them, a lower capacity factor"),)
    if part.kind == CONTEXT:
        return (Fix("Cut each sequence so that all parts cost alike: two chunks for each rank, one early and one late (zigzag)"),)
    return (Fix("Let each rank load its own part of the data, or have the first one do in a thread what it does for its group"),)


def _tell_of_turns(job: WalkedJob, facts: WalkedFacts, evidence: tuple[Evidence, ...]) -> Finding:
    """The finding of a training where now one rank is late and now another: no rank, GPU or host is slow."""
    family = [one for one in facts.jobs if one is job or one.trainer.pid in job.ranks.kin]
    numbers = sorted(one.trainer.role.rank or 0 for one in family if one.trainer.pid in job.ranks.by_turns)
    template = "now one rank is late, now another (ranks {}): their data are uneven, as sequences of many lengths, and no rank is to blame"
    detail = filled(template, joined(", ", map(str, numbers[:NAMED])))
    fixes = (Fix("Even out the batches over the ranks by tokens rather than by samples: sort by length, or pack sequences"),)
    return Finding(detail, evidence, fixes, (), tuple(sorted(one.trainer.pid for one in family)))


def _takers(own: WalkedJob, facts: WalkedFacts) -> list[Taker]:
    """Takers that run while the late rank, or one of its workers, is runnable; empty if the rank is late by itself."""
    kept = max(proc.runnable for proc in (*own.workers, own.trainer))
    return culprits(own, facts) if kept >= policy.SOME and owners.strangers_share(own, capacity(own, facts)) > 0.0 else []


def _late_host(own: WalkedJob, waiting: list[WalkedJob], facts: WalkedFacts) -> _Late:
    """(detail, evidence, fixes) for a rank with an idle GPU: the delays of its main thread."""
    slow, label = own.trainer, own.trainer.role.label
    fractions = {word: share for word, share in slow.state.fractions.items() if word != "waiting-gpu"}
    word = max(fractions, key=fractions.__getitem__, default="computing")
    share, loaders = fractions.get(word, 0.0), own.workers if word == "waiting-data" else []
    seems = "probably is" if loaders and slow.state.inferred else "is"
    evidence = (
        percent("straggler_idle_pct", own.idle, filled("of the time the GPU of {} has nothing to do", label)),
        percent("straggler_state_pct", share, filled("of the time its main thread is {}", word)),
        *(percent("peer_idle_pct", other.idle, filled("the same for {}", other.trainer.role.label)) for other in waiting[:PEERS]),
    )
    pids = [proc.pid for proc in (slow, *loaders)]
    fixes: tuple[Fix, ...] = (
        Fix(filled("See what {} does that the others do not", label), filled("gputop stacks {:pids}", pids), look=True),
    )
    if loaders and all(worker.state.fractions.get("running", 0.0) >= policy.MOST for worker in loaders):
        more = advice.fixes(advice.loading(own, facts).more, len(loaders) + 1) if advice.room(own, facts) else ()
        fixes = *more, Fix(filled("Even out what the inputs of {} cost", label)), *fixes
    elif not loaders and word != "stopped":
        text = "Have {} do between its steps what the others do: logs, measurements and saves of its own in a thread, or less often"
        fixes = Fix(filled(text, label)), *advice.fixes(advice.loading(own, facts).uneven), *fixes
    detail = filled("{} ({}) {} {} {:.0f}% of the time{}", label, slow.pid, seems, word, 100 * share, _do(loaders))
    return filled("{}, with {} waiting for it", detail, counted(len(waiting), "other rank")), evidence, fixes


def _do(workers: list[ProcFacts]) -> str:
    """Words for the workers' activity while the rank waits for them; empty without workers."""
    did: Counter[str] = Counter()
    for worker in workers:
        did.update({word: share for word, share in worker.state.fractions.items() if word != "ahead"})
    if not did:
        return ""
    word, share = did.most_common(1)[0]
    verb = "is" if len(workers) == 1 else "are"
    return filled(" (its {} {} {} {:.0f}%)", counted(len(workers), "worker"), verb, word, 100 * share / len(workers))


def _late_gpu(own: WalkedJob, waiting: list[WalkedJob], facts: WalkedFacts) -> _Late:
    """(detail, evidence, fixes) for a rank with a GPU that is busy all the time while the others' finish earlier."""
    label, spin = own.trainer.role.label, all((other.idle or 0.0) < policy.FIFTH for other in waiting)
    detail = filled(
        "the GPU of {} ({}) works without a pause, while those of {} ", label, own.trainer.pid, counted(len(waiting), "other rank")
    )
    detail += filled("{} until it is done", "spin" if spin else "idle")
    evidence = (
        percent("straggler_used_pct", used(own), filled("of GPU {} is used by kernels of {}", own.gpus[0].name, label)),
        *(percent("peer_used_pct", used(other), filled("the same for {}", other.trainer.role.label)) for other in waiting[:PEERS]),
    )
    if taken := gpushares.shared(own):
        return filled("{}; {}", detail, gpu_shared.held(taken[0][0])), evidence, tuple(gpu_shared.fixes(taken[0][0], own, facts))
    slowed = [gpu for gpu in own.gpus if slowed_by(gpu)]
    if slowed:
        return filled("{}; {}", detail, joined(", ", map(gpu_throttle.held, slowed))), evidence, gpu_throttle.fixes(slowed[0])
    look = filled("nvidia-smi -i {:d} -q -d CLOCK,PERFORMANCE,TEMPERATURE", own.gpus[0].index)
    fixes = (Fix("See whether that GPU is slower than the others", look, look=True), *advice.fixes(advice.loading(own, facts).uneven))
    if own.ranks.clocks_mhz is None:
        return detail, evidence, fixes
    clock, theirs = own.ranks.clocks_mhz
    evidence += (
        Evidence("straggler_sm_clock_mhz", clock, "MHz", filled("is the SM clock of {}", label)),
        Evidence("peer_sm_clock_mhz", theirs, "MHz", "is that of the other ranks' GPUs"),
    )
    if computes_more(own):
        detail += "; it is as fast as theirs, so its data are uneven: more samples, or longer sequences"
        return detail, evidence, fixes[::-1]
    return filled("{}; it runs at {:.0f} MHz, theirs at {:.0f}", detail, clock, theirs), evidence, fixes


JUDGE = Judge("straggler-rank", "straggler", _tell, rows=(("rank", "late"), ("rank", "gone")))
