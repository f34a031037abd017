"""True if a job has requests: the last step of the walk, from its main thread to the processes at its other ends."""

from __future__ import annotations

from collections import Counter

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.facts import Member
from gputop.diagnosis.facts.family import INPUT, has_thread_outside
from gputop.diagnosis.facts.feeders import LISTENING
from gputop.diagnosis.facts.kinds import is_engines
from gputop.diagnosis.facts.serving import ServerFacts
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings import policy
from gputop.findings.verdict import FEEDS, READS, SERVES


def is_left_alone(job: WalkedJob) -> bool:
    """True if the job has no requests: its main thread waits for input from others, and all possible senders wait for requests themselves.

    The processes at its other ends wait at sockets and pipes of their own. The ones behind them do not work, wait for a disk or stand
    stopped: a process that people ask may sleep as long as it likes.
    """
    return waits_for_others(job) >= policy.MOST and all_wait_to_be_asked(job)


def all_wait_to_be_asked(job: WalkedJob) -> bool:
    """The part of `is_left_alone` about the other processes."""
    near = [one for one in job.members if one.near and one.part != READS]
    most = policy.TENTH + 1.0 - (job.idle or 0.0)  # what they run for the work that its GPU has had
    rest = all(one.cores <= most and not _stands(one) for one in job.members)
    return bool(near) and not job.workers and rest and all(_waits_to_be_asked(one, is_client(one, job)) for one in near)


def lacks_requests(job: WalkedJob, server: ServerFacts | None) -> bool:
    """True if an inference engine has no request for half of the time that its GPU rests or more, by its server's own metrics, and nobody
    keeps one from it: no process that requests go through is at a full core, late for want of one, or stands."""
    if server is None or server.empty is None or server.is_slow or not job.idle or server.empty < policy.HALF * job.idle:
        return False
    parts = {one.pid: one for one in server.parts if one.pid not in server.engine_pids}  # an engine's own may spin while there is none
    near = [one for one in job.members if one.part != READS and one.pid not in server.engine_pids]
    late = any(one.is_full or _is_late(one.cores, one.ready) for one in parts.values())
    others = [(one.cores, one.ready) for one in near if one.pid not in parts]
    late = late or any(cores + ready >= policy.NEARLY_ALL or _is_late(cores, ready) for cores, ready in others)
    late = late or any(_stands(one) or one.locked_out[1] >= policy.QUARTER for one in near)
    return not late and job.trainer.others_run < policy.HALF and not (job.programs.stopped or job.programs.mute)


def is_asked_through_front(job: WalkedJob, facts: WalkedFacts) -> bool:
    """True if an engine's requests come from a process of its server alone, whatever listens: a part of that server or, where its page is
    not read, a process that it exchanges data with and that serves."""
    if (server := facts.servers.get(job.trainer.pid)) is not None:
        return server.front is not None
    return bool(_serving(job)) and is_engines(job.trainer.info)


def spins_unread(job: WalkedJob, facts: WalkedFacts) -> bool:
    """True if an engine whose server's page is not read, and whose main thread never sleeps, looks for requests: its GPU does nothing at
    all, or a process that they come from is at a full core."""
    if job.trainer.pid in facts.servers or job.trainer.run < policy.HALF or not is_asked_through_front(job, facts):
        return False
    return (job.idle or 0.0) >= policy.AT_END or any(one.cores + one.ready >= policy.NEARLY_ALL for one in _serving(job))


def _serving(job: WalkedJob) -> list[Member]:
    """The processes that the trainer exchanges data with, and that serve others."""
    return [one for one in job.members if one.near and one.part == SERVES]


def _is_late(cores: float, ready: float) -> bool:
    """True if a process wants a CPU most of the time, and often has none: it may have requests that have not come further."""
    return ready >= policy.LOST and cores + ready >= policy.MOST


def waits_for_others(job: WalkedJob) -> float:
    """Share of the loss in which the main thread waits for what other processes send: itself, or until a thread that does hands it on."""
    kinds = ("unasked", *INPUT, *([waits.LOCK, waits.UNKNOWN] if has_thread_outside(job.trainer, INPUT) else []))
    return sum(job.pools.get(f"main.{kind}", 0.0) for kind in kinds)


def is_client(one: Member, job: WalkedJob) -> bool:
    """True if a member asks the job: it does not listen, so it made its connection to the job, which does, and it reads the answers. While
    it sleeps by its clock it wants nothing."""
    return job.trainer.info.sockets == LISTENING and one.near and one.part == FEEDS and job.trainer.pid in one.asks


def _waits_to_be_asked(one: Member, asks: bool) -> bool:
    asleep = Counter({kind: times for kind, times in one.met.items() if kind != waits.ONCPU})
    for_input = sum(asleep[kind] for kind in INPUT)
    if one.part == SERVES:  # its threads wait for clients, and its main thread for its end
        for_input += asleep[waits.LOCK] + asleep[waits.TIMER]
    elif asks:
        for_input += asleep[waits.TIMER]
    return for_input >= policy.MOST * asleep.total() > 0.0


def _stands(one: Member) -> bool:
    """True if a member waits for a disk or until its log is read, is stopped, or has an answer under way from another host."""
    stands = sum(one.met[kind] for kind in (waits.DISK, waits.OUTPUT, waits.STOPPED))
    return one.arriving >= policy.HALF or stands >= policy.QUARTER * one.met.total() > 0.0
