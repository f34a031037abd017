"""output-blocked: the main thread, or a worker, waits until its output is read.

Costs: a pipe or a socket holds 64 kB to some MB; once it is full, each `print`, log line or answer takes as long as its reader.
Seen: rows reader x main and reader x worker: a sleep in a write to a pipe, a socket or a terminal. The reader holds the other end and, by
the probe, ended these sleeps. Likewise of a server that the main thread waits for: until its log is read.
Abstains: no process has the other end (hung-worker).
"""

from __future__ import annotations

from collections import Counter

from gputop.diagnosis.causes import Finding, Judge, advice, percent
from gputop.diagnosis.facts.facts import Member, OutputReader
from gputop.diagnosis.facts.feeders import LISTENING
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.facts.waits import PIPE
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.states import host_side_loss
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import READS, Culprit, Fix


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    trainer, reader = job.trainer, next(iter(job.output.readers), None)
    loss = job.lost if job.lost is not None else host_side_loss(job)
    share = loss * sum(claim.share for claim in job.claims if claim.cause == JUDGE.cause)
    ways = advice.fixes(advice.loading(job, facts).unread)
    evidence = percent("main_waits_pct", share, "of the main thread's time asleep until its output is read")
    if (server := logging(job)) is not None:
        return _tell_of_log(job, server, share)
    who = filled("the main thread of {} ({}) waits {:.0f}% of the time until ", trainer.role.label, trainer.pid, 100 * share)
    if reader is None:
        look = Fix("See what should read it: a terminal that is slow or held (Ctrl-S), a pager, a logger", lists_ends(trainer), look=True)
        return Finding(who + "its output is read: no reader is fast enough", (evidence,), (*ways, look), (), (trainer.pid,))
    fixes = (*ways, Fix("See what the reader does", filled("gputop stacks {:pids}", [trainer.pid, reader.pid]), look=True))
    culprit = Culprit(reader.pid, reader.name, None if reader.cores is None else round(reader.cores * facts.seconds, 3))
    return Finding(who + _reads(reader), (evidence,), fixes, (culprit,), (trainer.pid,))


def logging(job: WalkedJob) -> Member | None:
    """The server of the job's family at which the walk ended, for its log is not read."""
    ends = {claim.way.trail[-1].pid for claim in job.claims if claim.cause == JUDGE.cause and claim.way.trail}
    return next((one for one in job.members if one.pid in ends), None)


def _tell_of_log(job: WalkedJob, server: Member, share: float) -> Finding:
    detail = filled(
        "{} ({}) waits until its log is read, and the main thread of {} ({}) {:.0f}% of the time for it",
        server.name, server.pid, job.trainer.role.label, job.trainer.pid, 100 * share,
    )  # fmt: skip
    fixes = (
        Fix("Write its log to a file, or less of it: no line for each request"),
        Fix(
            "See what should read it: a terminal that is held (Ctrl-S), a container's log driver, a log shipper",
            filled("lsof +E -a -p {:pid} -d 1,2", server.pid), look=True,
        ),
    )  # fmt: skip
    evidence = percent("main_waits_pct", share, filled("of the main thread's time until {} could go on", server.name))
    return Finding(detail, (evidence,), fixes, (), (job.trainer.pid,))


def _reads(reader: OutputReader) -> str:
    """Words for the reader and its pace."""
    text = filled("{} ({}){} reads what it writes", reader.name, reader.pid, ", which it started," if reader.is_child else "")
    if reader.cores is None:
        return text
    slow = filled("runs on {:.1f} CPUs and is too slow", reader.cores) if reader.cores >= policy.AT_WORK else "hardly runs"
    return text + filled(": that one {}", slow)


def lists_ends(trainer: ProcFacts) -> str:
    """Command that lists the other ends of the descriptor on which samples met the main thread most often, or of all descriptors."""
    at_pipes = [one for one in trainer.samples if trainer.kind_of(one.state, one.syscall, one.syscall_arg, one.wchan) == PIPE]
    met = Counter(one.syscall_arg for one in at_pipes)
    number = next((arg for arg, _ in met.most_common(1) if arg is not None), None)
    if number is None:
        return filled("lsof +E -a -p {:pid} -d 0-1023", trainer.pid)
    return filled("lsof +E -a -p {:pid} -d {:d}", trainer.pid, number)


def _felt(job: WalkedJob) -> str:
    """The symptom: a job that others ask or feed is one stage of several, and goes at their pace. The reader of a training's log is no
    part of the training."""
    asked = job.trainer.info.sockets == LISTENING or bool(job.feeders.pids)
    return "input-bound" if asked or any(one.part != READS for one in job.members) else "wait-heavy"


JUDGE = Judge("output-blocked", "wait-heavy", _tell, rows=(("reader", "main"), ("reader", "worker")), felt=_felt)
