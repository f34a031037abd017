"""True if a job has requests: the last step of the walk, from its main thread to the processes at its other ends."""

from __future__ import annotations

from collections import Counter

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.facts import Member
from gputop.diagnosis.facts.family import INPUT, has_thread_outside
from gputop.diagnosis.graph.job import WalkedJob
from gputop.findings import policy
from gputop.findings.verdict import READS, SERVES


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
    rest = all(one.cores <= most and not _stands(one) for one in job.members) and all(_waits_to_be_asked(one) for one in near)
    return bool(near) and not job.workers and rest


def waits_for_others(job: WalkedJob) -> float:
    """Share of the loss in which the main thread waits for what other processes send: itself, or until a thread that does hands it on."""
    kinds = ("unasked", *INPUT, *([waits.LOCK, waits.UNKNOWN] if has_thread_outside(job.trainer, INPUT) else []))
    return sum(job.pools.get(f"main.{kind}", 0.0) for kind in kinds)


def _waits_to_be_asked(one: Member) -> bool:
    asleep = Counter({kind: times for kind, times in one.met.items() if kind != waits.ONCPU})
    for_input = sum(asleep[kind] for kind in INPUT)
    if one.part == SERVES:  # its threads wait for clients, and its main thread for its end
        for_input += asleep[waits.LOCK] + asleep[waits.TIMER]
    return for_input >= policy.MOST * asleep.total() > 0.0


def _stands(one: Member) -> bool:
    """True if a member waits for a disk, is stopped, or receives an answer piece by piece."""
    return one.arriving >= policy.HALF or one.met[waits.DISK] + one.met[waits.STOPPED] >= policy.QUARTER * one.met.total() > 0.0
