"""Hangs: no process of a job moves (`facts.life`), and its main thread waits for a part of the job itself.

The awaited part decides. Its own threads, loaders or a disk: these hang, and the job with them (hung-worker). Other ranks, in a collective:
the ranks that are not in it cause the hang, whatever they wait for (straggler-rank), unless their loaders hang. The world outside (a
request, a prompt, a timer): the job is idle. Ranks on other hosts cannot be seen, so jobs that may wait for them get more time.

Ranks without a process count too: `life.absent_ranks` finds them by the environment that a launcher gives each rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from gputop.diagnosis.causes import Finding, advice
from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.family import INPUT, has_thread_outside
from gputop.diagnosis.facts.feeders import LISTENING
from gputop.diagnosis.facts.life import has_peers, in_kernel, ranks, sees_gpus
from gputop.diagnosis.facts.proc import WATCHERS, ProcFacts
from gputop.diagnosis.graph.asked import all_wait_to_be_asked
from gputop.diagnosis.graph.job import Hang, WalkedFacts, WalkedJob
from gputop.findings import policy
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import Culprit, Evidence, Fix
from gputop.system.text import counted

STDIN = 0  # a trainer that reads standard input is at a prompt, or fed by its parent
_AWAITED = (waits.LOCK, waits.NETWORK)  # kinds of wait of a rank in a collective on the host (gloo, MPI)
_PAUSES = (waits.TIMER, waits.CHILD)  # kinds of wait in which a worker may stay for a while before its first batch
_OUTSIDE = (waits.POLL, waits.NETWORK)
_WORDS = {
    waits.LOCK: "stands at a lock or an empty queue", waits.QUEUE: "waits for a batch", waits.DISK: "stands in a call to a file system",
    waits.PIPE: "stands at a pipe", waits.NETWORK: "stands at a socket", waits.POLL: "stands in a poll", waits.TIMER: "sleeps",
    waits.CHILD: "waits for a program", waits.STOPPED: "is stopped", waits.DRIVER: "waits for its GPU", waits.ONCPU: "spins",
}  # fmt: skip
_MOST = 8  # ranks that are described one by one


def with_hangs(facts: WalkedFacts) -> list[WalkedJob]:
    """The jobs of the window, each with its ``hang``."""
    found = dict[int, Hang | None]()
    for job in facts.jobs:
        if job.trainer.pid not in found:
            family = [other for other in facts.jobs if other.trainer.pid in job.ranks.kin] or [job]
            together = _of_ranks(family, facts) if has_peers(job) else None
            found |= {other.trainer.pid: together or _of_one(other, facts) for other in family}
    return [replace(job, hang=hang) if (hang := found[job.trainer.pid]) else job for job in facts.jobs]


def _of_one(job: WalkedJob, facts: WalkedFacts) -> Hang | None:
    """The hang of a single job with a main thread that waits for its own threads or loaders, or for a disk, or None."""
    kind = _kind(job.trainer)
    unknown = not sees_gpus(job) and kind != waits.QUEUE  # the wait may be a long step
    pauses = bool(job.life.unbegun_s) and any(_kind(worker) in _PAUSES for worker in job.workers)
    if job.life.still_s < (policy.FAR_S if unknown or pauses else policy.HUNG_S) or in_kernel(job):
        return None
    if kind == waits.LOCK:  # a rank's lock may belong to a collective
        asked = _may_be_asked(job.trainer) or (all_wait_to_be_asked(job) and has_thread_outside(job.trainer, INPUT))
        inside = not has_peers(job) and (job.loader.is_torchs or not asked)
    elif kind == waits.PIPE:
        inside = job.output.unheard or (bool(job.workers) and job.trainer.newer.syscall_arg != STDIN)
    else:
        inside = kind in (waits.QUEUE, waits.DISK)
    return _hang("hung-worker", (job,), (job,), facts) if inside else None


def _of_ranks(family: list[WalkedJob], facts: WalkedFacts) -> Hang | None:
    """The hang of ranks that all stand still; None without one. Ranks in a collective wait for the others, or, if all are in it, for each
    other or for ranks on other hosts."""
    absent, size = any(job.ranks.absent for job in family), max(map(ranks, family))
    least_s = policy.FAR_S if size > len(family) and not absent else policy.HUNG_S
    if any(job.life.still_s < least_s for job in family) or (all(job.life.may_spin for job in family) and not absent):
        return None
    waiting = [job for job in family if in_kernel(job)] or [job for job in family if _kind(job.trainer) in _AWAITED]
    late = [job for job in family if job not in waiting]
    if not waiting or any(_serves(job) for job in late):
        return None
    held = [job for job in late if job.workers and _of_one(job, facts) is not None]
    return _hang("hung-worker" if held else "straggler-rank", family, held or late, facts)


def _hang(cause: str, family: Sequence[WalkedJob], late: Sequence[WalkedJob], facts: WalkedFacts) -> Hang:
    since_ns = facts.t_ns - int(1e9 * min(job.life.still_s for job in family))
    return Hang(cause, since_ns, all(job.life.from_the_first for job in family), tuple(family), tuple(late))


def _kind(proc: ProcFacts) -> str:
    """Kind of wait in which the main thread spends at least half its time, else empty."""
    kind = max(proc.kinds, key=proc.kinds.__getitem__, default="")
    return kind if proc.kinds.get(kind, 0.0) >= policy.HALF else ""


def _may_be_asked(trainer: ProcFacts) -> bool:
    """True if another thread waits for the world outside, as in a server with a main thread that only waits for its end."""
    watchers = {thread.tid for thread in trainer.info.threads if thread.comm.startswith(WATCHERS)}
    return has_thread_outside(trainer, _OUTSIDE, watchers)


def _serves(job: WalkedJob) -> bool:
    """True if the job waits for requests: its other ranks stand in a collective until one comes."""
    return job.trainer.info.sockets == LISTENING and _kind(job.trainer) == waits.POLL


def told(hang: Hang, t_ns: int) -> str:
    """The headline: the hanging job or ranks, and for how long."""
    first, seconds = hang.family[0].trainer, (t_ns - hang.since_ns) / 1e9
    name = filled("{} ({})", first.role.label, first.pid) if len(hang.family) == 1 else first.role.label.partition(" rank")[0]
    who = "nothing of it" if len(hang.family) == 1 else filled("none of its {} ranks", len(hang.family))
    longer = ", since gputop looks, or longer" if hang.from_the_first else ""
    return filled("{} hangs: {} has moved for {:.0f} s{}", name, who, seconds, longer)


def tell(hang: Hang, facts: WalkedFacts) -> Finding:
    """The finding: where each rank stands, evidence and fixes."""
    alone = len(hang.family) == 1
    parts = [_stands(job, alone, hang) for job in hang.family[:_MOST]]
    if not hang.late:
        far = max(map(ranks, hang.family)) > len(hang.family)
        parts.append(filled("they wait for each other, {}", "or for ranks on other hosts" if far else "in different calls"))
    seconds = round((facts.t_ns - hang.since_ns) / 1e9, 1)
    evidence = Evidence("still_s", seconds, "s", "no step, no work of a CPU, nothing read or written, no process that begins or ends")
    pids = [proc.pid for job in hang.family[:_MOST] for proc in (job.trainer, *job.workers)]
    fixes = [Fix("See where each stands, and send that to its author", filled("gputop stacks {:pids}", pids), look=True)]
    first = hang.family[0]
    fixes += advice.fixes(advice.loading(first, facts).endless if alone else advice.computing(first, facts).endless_ranks)
    late = hang.late if hang.cause == "straggler-rank" else ()
    culprits = tuple(Culprit(job.trainer.pid, job.trainer.role.label.partition(" rank")[0], None) for job in late)
    victims = tuple(job.trainer.pid for job in hang.family if job not in late)
    return Finding(joined("; ", parts), (evidence,), tuple(fixes), culprits, victims)


def _stands(job: WalkedJob, alone: bool, hang: Hang) -> str:
    trainer, kind = job.trainer, _kind(job.trainer)
    name = "its main thread" if alone else filled("{} ({})", trainer.role.label, trainer.pid)
    stands = "waits for its GPU, which runs the kernel of a collective" if in_kernel(job) else _WORDS.get(kind, "stands")
    if not alone and hang.late:
        stands = filled("is not in the collective: it {}", stands) if job in hang.late else stands
    return filled("{} {}{}", name, stands, _workers(job))


def _workers(job: WalkedJob) -> str:
    """Words for the workers' activity in that time; empty without workers."""
    if not job.workers:
        return ""
    met = Counter("has nothing to do" if worker.ahead >= policy.HALF else _WORDS.get(_kind(worker), "stands") for worker in job.workers)
    of_all = counted(len(job.workers), "worker")
    words = joined(", ", (filled("{} of {}, which {}", count, of_all, does) for does, count in met.most_common()))
    all_ahead = met["has nothing to do"] == len(job.workers)
    takes = "; what takes their batches in its own process, such as a pin-memory thread, stands or has died" if all_ahead else ""
    return filled(", with {}{}", words, takes)
