"""Jobs over many nodes: ranks that belong together, the rank that the others wait for, and the cost for all.

Each node reports the state of its ranks (`gputop.fleet.summary`). Here they are joined by the key of their training, and the rule that
names the slowest rank of one host (`gputop.findings.ranks`) is applied to all. Its result overrules the waiting nodes' own verdicts: alone,
a node with a GPU that spins in a collective looks healthy. Pure functions, but for `Books`, which add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from gputop.findings import parts, policy
from gputop.findings.policy import WINDOW_NS
from gputop.findings.ranks import RankPace, SlowPart, find_late_rank, find_slow_part, find_slowest, waited_on_wire, waited_share
from gputop.findings.trouble import HUNG, PAUSE, STRAGGLER, is_fault, stops_job
from gputop.findings.verdict import ENDING, IDLE, LOOKING, PAUSING, STARTING, Culprit, Ledger
from gputop.fleet.summary import Rank, Summary
from gputop.fleet.wires import RankLink, WireEnd, find_links, slow_of, told
from gputop.model.parallel import REPLICA, Parallel
from gputop.stacks.nccl import NcclReport
from gputop.system.text import counted

STALE_S = 3.0  # s without a summary, after which a node's last one is out of date: three were missed
MOST_SKEW_S = 2.0  # s between clocks of a job's nodes, from which a verdict over them is marked (windows are 2.5 s; measured: 3 s smear)
MOST_SIZE = 1 << 16  # ranks of a job; a larger number in an environment is ignored
NAMED = 8  # ranks, and hosts, that are listed one by one
TURNS, TURNS_S = 3, 20  # ranks of which now one and now another is late, and s in which that is seen (guess)
MOST_LINKS = 16  # slow links of a job that are kept
SLOW_WIRE, FALLBACK = "slow-wire", "comm-fallback"
WORKS, WAITS, LATE, TROUBLED, UNKNOWN = "works", "waits", "late", "troubled", "unknown"
"""States of a rank. ``troubled``: it loses GPU time by itself, and no other rank is known to wait for it."""
_STARTS_OR_ENDS = (STARTING, ENDING, IDLE)
_NOT_ITS_OWN = ("none", "unexplained", STRAGGLER, PAUSE)  # causes that do not explain why a straggler is late


_Suspect = tuple[str, int] | None  # host and pid of a rank


class Sight(Struct, frozen=True):
    """State of a node now."""

    host: str  # by its link: what the node calls itself does not count
    summary: Summary | None = None  # its newest; None: none yet
    age_s: float = 0.0  # s since that came
    skew_s: float = 0.0  # s between its wall clock and ours
    problem: str = ""  # why nothing comes, in a line; empty while it answers
    since_s: float = 0.0  # s for which it has been as it is
    next_s: float | None = None  # s until the next try to reach it
    notes: tuple[str, ...] = ()  # ``judged by 0.3.1``: what its numbers need to be understood

    @property
    def is_seen(self) -> bool:
        """True if the node's summary is up to date."""
        return self.summary is not None and self.age_s <= STALE_S


class JobRank(Struct, frozen=True):
    """A rank of a job, with its host."""

    host: str
    rank: Rank
    cpus: int  # of the host
    does: str = WORKS
    lost: float | None = None  # share of its GPUs' time, with what it spins for another rank; None: not measured

    @property
    def number(self) -> int:
        """Number of the rank; 0 for a trainer that is alone."""
        return self.rank.rank or 0

    @property
    def place(self) -> str:
        """``node03 GPU 1``."""
        gpus = self.rank.gpus
        return f"{self.host} GPU {gpus[0]}" if len(gpus) == 1 else self.host


class Job(Struct, frozen=True):
    """One training, as far as it is seen."""

    key: str  # of its ranks; of one that is alone its host and pid
    name: str
    size: int  # ranks that it has, seen or not
    members: tuple[JobRank, ...]  # those seen, by their number
    symptom: str = "healthy"  # a word of `gputop.findings.verdict.SYMPTOMS`, or `LOOKING`
    cause: str = "none"
    severity: str = "info"
    headline: str = ""
    detail: str = ""
    late: tuple[JobRank, ...] = ()  # the rank that the others wait for; where a job hangs, all that are not in its collective
    culprits: tuple[Culprit, ...] = ()  # processes that took what the late rank lacks, on its host
    lost: float | None = None  # mean share of its GPUs' time that is lost now
    missing: tuple[tuple[int, int], ...] = ()  # (first, last) of the ranks that no node shows
    silent: tuple[str, ...] = ()  # hosts that do not answer: the missing may be there
    steps_per_s: float | None = None  # the median of its ranks
    apart: tuple[int, ...] = ()  # numbers of ranks that make more or fewer steps than that
    skewed: bool = False  # its nodes' clocks are more than `MOST_SKEW_S` apart
    hangs: bool = False  # no rank moves
    report: NcclReport | None = None  # NCCL's report, if the job hangs
    links: tuple[RankLink, ...] = ()  # those that the ranks wait for, the busiest first
    suspects: tuple[_Suspect, ...] = ()
    """The rank that the rule named in each of the last `TURNS_S` seconds, reported yet or not, the newest last; None: it named none."""

    @property
    def hosts(self) -> list[str]:
        """Hosts of its ranks, in the order of rank numbers."""
        return list(dict.fromkeys(member.host for member in self.members))

    @property
    def gpus(self) -> int:
        """Number of GPUs that its ranks use."""
        return sum(len(member.rank.gpus) for member in self.members)

    @property
    def identity(self) -> dict[str, str]:
        """User, Slurm job and so on, of its first rank."""
        return self.members[0].rank.identity

    @property
    def trainer_pid(self) -> int:
        """A trainer that its cause is about (see `gputop.findings.trouble`): that of its first rank."""
        return self.members[0].rank.pid

    @property
    def is_partial(self) -> bool:
        """True if some ranks of the job are not seen."""
        return bool(self.missing)


def find_jobs(sights: Sequence[Sight], before: Sequence[Job] | None = None) -> list[Job]:
    """The jobs on all nodes, each with its verdict; the worst first.

    ``before``: the jobs of a second ago. Summaries of different nodes are up to a second apart, so as a straggler begins, the rule may name
    another rank for a moment: with ``before`` a rank is reported once it is named twice in a row.
    """
    silent = tuple(sight.host for sight in sights if not sight.is_seen)
    skews = {sight.host: sight.skew_s for sight in sights}
    suspects = None if before is None else {job.key: job.suspects for job in before}
    jobs = [_judged(_joined(key, members), silent, skews, suspects) for key, members in _by_key(sights)]
    return sorted(jobs, key=_weight, reverse=True)


def _by_key(sights: Sequence[Sight]) -> list[tuple[str, list[JobRank]]]:
    """Key of a job -> its ranks; the ranks that two nodes claim are not joined: these are two jobs, or one of the nodes lies."""
    found: dict[str, list[JobRank]] = {}
    for sight in sights:
        if sight.summary is not None and sight.is_seen:
            for rank in sight.summary.ranks:
                member = JobRank(sight.host, rank, sight.summary.node.cpus, lost=rank.lost)
                found.setdefault(_key(member), []).append(member)
    split: list[tuple[str, list[JobRank]]] = []
    for key, members in found.items():
        if len(members) == len({member.number for member in members}) or not members[0].rank.job:
            split.append((key, members))
        else:
            hosts = dict.fromkeys(member.host for member in members)
            split += [(f"{key} on {host}", [member for member in members if member.host == host]) for host in hosts]
    return split


def _key(member: JobRank) -> str:
    """Key of the rank's job; if it has none, its host and the pid of the local rank that it waits for, else its own."""
    rank = member.rank
    return rank.job or f"{member.host}:{rank.waits_for or rank.pid}"


def _joined(key: str, members: list[JobRank]) -> Job:
    members.sort(key=lambda member: (member.number, member.host, member.rank.pid))
    sizes = Counter(member.rank.size for member in members if member.rank.job and member.rank.size and member.rank.size <= MOST_SIZE)
    size = max(len(members), sizes.most_common(1)[0][0] or 1 if sizes else 1)
    return Job(key, members[0].rank.program or "?", size, tuple(members))


def _judged(job: Job, silent: tuple[str, ...], skews: Mapping[str, float], suspects: Mapping[str, tuple[_Suspect, ...]] | None) -> Job:
    missing = tuple(_gaps(sorted(member.number for member in job.members), job.size)) if job.size > len(job.members) else ()
    paces = [member.rank.steps_per_s for member in job.members if member.rank.steps_per_s]
    pace = median(paces) if paces else None
    clocks = [skews.get(host, 0.0) for host in job.hosts]
    job = replace(
        job,
        missing=missing,
        silent=silent if missing else (),
        steps_per_s=pace,
        apart=tuple(member.number for member in job.members if pace and _differs(member.rank.steps_per_s, pace)),
        skewed=max(clocks) - min(clocks) > MOST_SKEW_S,
    )
    held = _straggler(job)
    if held is not None:
        past = () if suspects is None else suspects.get(job.key, ())
        now = held.suspects[-1:]
        job, held = (replace(one, suspects=(*past, *now)[-TURNS_S:]) for one in (job, held))
        if suspects is not None and past[-1:] != now:
            held = _by_turns(job)
    elif suspects is not None:
        job = replace(job, suspects=(*suspects.get(job.key, ()), None)[-TURNS_S:])
    return _bereft(job) or _hang(job) or _slow_wire(job) or held or _looking(job) or _own(job) or _with_loss(job)


def _gaps(numbers: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    """(first, last) of what is not among them, of 0 to ``size`` - 1: a size may be made up, so it is not counted through."""
    after = -1
    for number in [*(number for number in numbers if 0 <= number < size), size]:
        if number > after + 1:
            yield after + 1, number - 1
        after = number


def _differs(steps_per_s: float | None, pace: float) -> bool:
    return steps_per_s is not None and abs(steps_per_s - pace) > policy.LITTLE * pace


# what a job may have, the worst first


def _bereft(job: Job) -> Job | None:
    """A GPU of one of its ranks is lost, and the others cannot go on without that."""
    without = [member for member in job.members if stops_job(member.rank)]
    if not without:
        return None
    late = [replace(member, does=LATE if len(job.members) > 1 else TROUBLED, lost=_all_of(member)) for member in without]
    others = [member for member in job.members if member not in without and member.rank.still_s >= policy.HUNG_S]
    members = _merged(job, [*late, *(replace(member, does=WAITS, lost=_all_of(member)) for member in others)])
    places = ", ".join(dict.fromkeys(member.place for member in late[:NAMED]))
    which = f"{_ranks(_spans(member.number for member in late))} ({places}): " if job.size > 1 else ""
    return _with_loss(replace(
        job, members=members, symptom=late[0].rank.symptom or "idle", cause=late[0].rank.cause, severity="high",
        detail=f"{which}{late[0].rank.why}", late=tuple(late) if len(job.members) > 1 else (),
        headline=f"{job.name} cannot go on: a GPU of it is lost",
    ))  # fmt: skip


def _hang(job: Job) -> Job | None:
    """The job as hung, if none of its ranks moves: the ranks outside the collective hold it up. None if it does not hang."""
    least_s = policy.FAR_S if job.missing else policy.HUNG_S  # a rank that is not seen may be at work
    if len(job.members) < 2 or any(member.rank.still_s < least_s for member in job.members):
        return None
    late = [member for member in job.members if _in_collective(member) < policy.HALF]
    if len(late) == len(job.members):
        return None  # they meet in no collective
    seconds = min(member.rank.still_s for member in job.members)
    others = [replace(member, does=WAITS, lost=_all_of(member)) for member in job.members if member not in late]
    stuck = [replace(member, does=LATE, lost=_all_of(member)) for member in late]
    cause = HUNG if any(member.rank.cause == HUNG for member in stuck) else STRAGGLER
    if stuck:
        which = f"{_ranks(_spans(m.number for m in stuck))} ({', '.join(dict.fromkeys(m.place for m in stuck[:NAMED]))}) "
        detail = f"{which}{'is' if len(stuck) == 1 else 'are'} not in the collective{_because(stuck[0])}"
    elif job.missing:
        detail = f"{_gone(job)}, and the others stand in a collective that needs all"
    else:
        detail = "all ranks stand in a collective: they wait for each other, in different calls"
    return _with_loss(replace(
        job, members=_merged(job, [*others, *stuck]), symptom="straggler", cause=cause, severity="high", hangs=True,
        late=tuple(stuck), culprits=tuple(stuck[0].rank.culprits) if stuck else (), detail=detail,
        headline=f"{job.name} hangs: none of its {len(job.members)} ranks has moved for {seconds:.0f} s",
    ))  # fmt: skip


def with_report(job: Job, report: NcclReport | None) -> Job:
    """The job with NCCL's report, if it hangs. If all ranks stand in a collective, NCCL knows which ranks are in a different one."""
    if not job.hangs or report is None:
        return job
    apart = {member.number: why for member, why in _apart(job, report) if member is not None}
    if job.late or not apart:
        absent = next((why for member, why in _apart(job, report) if member is None and not job.late), "")
        return replace(job, report=report, detail=f"{job.detail}; NCCL: {absent}" if absent else job.detail)
    late = tuple(replace(member, does=LATE) for member in job.members if member.number in apart)
    first = late[0]
    others = f", and {counted(len(late) - 1, 'rank')} more" if len(late) > 1 else ""
    return replace(
        job, report=report, members=_merged(job, late), late=late,
        detail=f"NCCL: rank {first.number} ({first.place}) {apart[first.number]}{others}",
    )  # fmt: skip


def _apart(job: Job, report: NcclReport) -> Iterator[tuple[JobRank | None, str]]:
    """The job's ranks that NCCL finds apart, and why; None for one that is not seen. Ranks of a part of the job are known by their pid,
    where no two of its ranks have the same."""
    by_number = {member.number: member for member in job.members}
    pids = Counter(member.rank.pid for member in job.members)
    by_pid = {member.rank.pid: member for member in job.members if pids[member.rank.pid] == 1}
    for one in report.ranks:
        whole = one.size == job.size
        member = by_number.get(one.rank) if whole else by_pid.get(one.pid)
        yield member, one.why if member else f"rank {one.rank}{'' if whole else f' of {one.size}'} {one.why}"


def _all_of(member: JobRank) -> float | None:
    """Share of its GPUs' time that a hanging rank loses: 1; None without a GPU."""
    return 1.0 if member.rank.gpus else None


def _in_collective(member: JobRank) -> float:
    """Share of the window in which its main thread waited for its GPU, or for others on a lock or a socket."""
    states = member.rank.states
    return states.get("waiting-gpu", 0.0) + states.get("blocked", 0.0)


def divided(job: Job) -> Parallel | None:
    """Sizes of the groups of a job, as most of its ranks state them; None if they do not, or if that does not fit their number."""
    stated = Counter(member.rank.parallel for member in job.members if member.rank.parallel is not None)
    found = stated.most_common(1)[0][0] if stated else None
    fits = found is not None and found.is_sound and found.size == job.size and all(member.number < job.size for member in job.members)
    return found if fits else None


def _uneven(job: Job, measured: Sequence[tuple[JobRank, RankPace]], slow: Sequence[int], part: SlowPart, parallel: Parallel) -> Job:
    """The job with the part that takes longer than the others of its kind, and all of whose ranks (``slow``) are late alike."""
    pace, late = measured[slow[0]][1], [replace(measured[index][0], does=LATE) for index in slow]
    others = [(member, own, waited_share(own, pace)) for index, (member, own) in enumerate(measured) if index not in slow]
    waiting = [replace(member, does=WAITS, lost=min(1.0, max(member.lost or 0.0, own.idle + waited))) for member, own, waited in others]
    job = _with_loss(replace(job, members=_merged(job, [*late, *waiting]), suspects=((late[0].host, late[0].rank.pid),)))
    hosts = dict.fromkeys(member.host for member in late)
    apart = part.kind == REPLICA and hosts.keys().isdisjoint(member.host for member, _, _ in others)
    host = f", unless all of {', '.join([*hosts][:NAMED])} is slow" if apart else ""
    return replace(
        job, symptom="straggler", cause=STRAGGLER, severity=_severity(job.lost),
        headline=_seen(job) if job.lost is None else f"the job loses {100 * job.lost:.0f}% of its GPUs",
        detail=f"{parts.words_of(part, parallel, _ranks(_spans(member.number for member in late)))}{host}",
    )  # fmt: skip


def _by_turns(job: Job) -> Job | None:
    """The job where now one rank is late and now another: the data are uneven, and no host is sick. None while no `TURNS` ranks were."""
    named = [suspect for suspect in job.suspects if suspect is not None]
    counts = Counter(named)
    if len(counts) < TURNS or max(counts.values()) > policy.HALF * len(named):
        return None
    numbers = [member.number for member in job.members if (member.host, member.rank.pid) in counts]
    job = _with_loss(job)
    which = f"{_ranks(_spans(numbers))} in {len(job.suspects)} s"
    detail = f"now one rank is late, now another ({which}): their data are uneven, as sequences of many lengths"
    return replace(
        job, symptom="straggler", cause=STRAGGLER, severity=_severity(job.lost), detail=f"{detail}; no host is to blame",
        headline=_seen(job) if job.lost is None else f"the job loses {100 * job.lost:.0f}% of its GPUs",
    )  # fmt: skip


def _lost_in_collective(member: JobRank) -> float:
    """The part of `_in_collective` in which its GPUs did nothing, or little, if that is measured."""
    return min(_in_collective(member), 1.0 if member.lost is None else member.lost)


def _straggler(job: Job) -> Job | None:
    """The job with the rank that holds up all others; None if there is no such rank."""
    measured = [(member, pace) for member in job.members if (pace := member.rank.pace) is not None]
    paces, numbers, parallel = [pace for _, pace in measured], [member.number for member, _ in measured], divided(job)
    if parallel is None:
        at = find_slowest(paces)
    elif (part := find_slow_part(paces, numbers, parallel)) is not None:
        alike = [index for index, number in enumerate(numbers) if parallel.part_of(part.kind, number) == part.number]
        own = [index for index in alike if measured[index][0].rank.cause not in _NOT_ITS_OWN]
        if not own:
            return _uneven(job, measured, alike, part, parallel)
        at = max(own, key=lambda index: (paces[index].own_delay, paces[index].used or 0.0))
    else:
        at = find_late_rank(paces, numbers, parallel)
    if at is None or measured[at][0].rank.phase in _STARTS_OR_ENDS:
        return None
    slow, slowest = measured[at]
    late = replace(slow, does=LATE)
    members = [late]
    for member, pace in measured:
        if member is not slow:
            waited = waited_share(pace, slowest)
            members.append(replace(member, does=WAITS, lost=min(1.0, max(member.lost or 0.0, pace.idle + waited))))
    job = _with_loss(replace(job, members=_merged(job, members), late=(late,), suspects=((late.host, late.rank.pid),)))
    if late.number == 0 and (late.rank.phase == PAUSING or not is_fault(late.rank)):
        head = f"rank {late.number} saves or evaluates, and {counted(len(members) - 1, 'other')} wait{_s(len(members) - 1)}"
        return replace(job, symptom="idle", cause=PAUSE, headline=head)
    cause = STRAGGLER if late.rank.cause in _NOT_ITS_OWN else late.rank.cause
    share = "" if job.lost is None else f"the job loses {100 * job.lost:.0f}% of its GPUs"
    holds = f"rank {late.number} ({late.place}) holds {counted(len(members) - 1, 'other')}"
    return replace(
        job, symptom="straggler", cause=cause, severity=_severity(job.lost), culprits=tuple(late.rank.culprits),
        headline=f"{share or holds}{' (as far as seen)' if job.is_partial else ''}", detail=f"{holds}{_because(late)}",
    )  # fmt: skip


def _slow_wire(job: Job) -> Job | None:
    """The job with the links that all wait for: data are on these for half of the time in which the ranks wait for one another."""
    waited = median(map(_lost_in_collective, job.members)) if len(job.members) > 1 else 0.0
    ends = [WireEnd(member.host, member.number, member.rank.wire) for member in job.members if member.rank.wire is not None]
    links = find_links(ends)
    if waited < policy.FIFTH or waited_on_wire([link.sender.wire.busy for link in links], waited) < waited:
        return None
    waiting = [member for member in job.members if _lost_in_collective(member) >= policy.FIFTH]
    job = _with_loss(replace(job, members=_merged(job, [replace(member, does=WAITS) for member in waiting])))
    slow = slow_of(links)
    detail = f"{told(slow, links)}; {counted(len(waiting), 'rank')} wait{_s(len(waiting))} for {'it' if len(slow) == 1 else 'them'}"
    share = f"the job loses {100 * job.lost:.0f}% of its GPUs" if job.lost is not None else _seen(job)
    cause = FALLBACK if any(member.rank.cause == FALLBACK for member in waiting) else SLOW_WIRE
    return replace(
        job, symptom="comm-bound", cause=cause, severity=_severity(job.lost), links=tuple(slow[:MOST_LINKS]), headline=share, detail=detail
    )


def _looking(job: Job) -> Job | None:
    """The job while the rank that its ranks wait for may be one that is not seen; None if that is not the case.

    If all nodes answer, the missing ranks may be on hosts that were not named. Then only ranks that sleep in a collective count: a GPU that
    works lightly may do so by itself. A rank has ended if its own node misses it.
    """
    absent = sorted({number for member in job.members for number in member.rank.absent})
    waiting = [member for member in job.members if (_waits if job.silent or absent else _sleeps)(member.rank)]
    if not (job.missing or absent) or 2 * len(waiting) < len(job.members):
        return None
    job = _with_loss(replace(job, members=_merged(job, [replace(member, does=WAITS) for member in waiting])))
    if absent:
        gone = _spans(absent)
        detail = f"{_ranks(gone)} {'has' if len(absent) == 1 else 'have'} no process any more, and {counted(len(waiting), 'other')} wait"
        return replace(
            job, missing=job.missing or tuple(gone), symptom="straggler", cause=STRAGGLER, severity=_severity(job.lost),
            headline=_seen(job), detail=f"{detail}{_s(len(waiting))}",
        )  # fmt: skip
    where = f"no answer from {', '.join(job.silent[:NAMED])}" if job.silent else "on none of these hosts"
    return replace(job, symptom=LOOKING, headline=_seen(job), detail=f"its ranks wait, perhaps for {_ranks(job.missing)}; {where}")


def _own(job: Job) -> Job | None:
    """The job, if its ranks lose time by themselves, else None."""
    troubled = [member for member in job.members if member.rank.cause != "none" and not _at_others(job, member)]
    if not troubled:
        return None
    members = _merged(job, [replace(member, does=TROUBLED) for member in troubled if is_fault(member.rank)])
    job = _with_loss(replace(job, members=members))
    weights: Counter[str] = Counter()
    for member in troubled:
        weights[member.rank.cause] += round(1000 * (member.lost or 0.0)) + 1
    cause = weights.most_common(1)[0][0]
    alike = [member for member in troubled if member.rank.cause == cause]
    worst = max(alike, key=lambda member: member.lost or 0.0)
    whom = "" if len(job.members) == 1 else f"{len(alike)} of {len(job.members)} ranks: "
    share = "" if job.lost is None or not is_fault(worst.rank) else f"the job loses {100 * job.lost:.0f}% of its GPUs"
    return replace(
        job, symptom=worst.rank.symptom or "wait-heavy", cause=cause, severity=_severity(job.lost) if is_fault(worst.rank) else "info",
        culprits=tuple(worst.rank.culprits), headline=share or f"{whom}{worst.rank.why or cause}",
        detail=f"{whom}{worst.rank.why or cause}{_takers(worst)}",
    )  # fmt: skip


def _at_others(job: Job, member: JobRank) -> bool:
    """True if a node's own straggler verdict is to be ignored: it guesses about ranks on other hosts, which are seen here and are not
    late."""
    return len(job.members) > 1 and member.rank.cause == STRAGGLER and len({one.host for one in job.members}) > 1


def _with_loss(job: Job) -> Job:
    """The job with the mean loss of its GPUs (None: no rank's is known), and with the ranks that work but report nothing marked
    `UNKNOWN`."""
    parts = [(member.lost, len(member.rank.gpus)) for member in job.members if member.lost is not None and member.rank.gpus]
    lost = sum(share * gpus for share, gpus in parts) / sum(gpus for _, gpus in parts) if parts else None
    members = tuple(replace(one, does=UNKNOWN) if one.does == WORKS and _is_unknown(one.rank) else one for one in job.members)
    symptom = job.symptom
    if job.cause == "none" and members and all(member.does == UNKNOWN for member in members):
        symptom = LOOKING
    elif job.cause == "none" and all(member.rank.symptom == "idle" for member in members):
        symptom = "idle"
    return replace(job, members=members, lost=lost, symptom=symptom, headline=job.headline or _seen(job))


def _is_unknown(rank: Rank) -> bool:
    return not rank.symptom or rank.symptom == LOOKING


def _waits(rank: Rank) -> bool:
    """True if the rank seems to wait for other ranks: it sleeps in a collective, or its GPU spins with little work."""
    used = rank.pace.used if rank.pace is not None else None
    return _sleeps(rank) or (used is not None and used <= policy.LIGHT_SM) or rank.cause == STRAGGLER


def _sleeps(rank: Rank) -> bool:
    """True if the rank sleeps on a lock or a socket while its GPU is idle, as in a collective on the host (Gloo)."""
    awaited = rank.pace.awaited if rank.pace is not None else None
    return awaited is not None and 1.0 - awaited >= policy.FIFTH


def _merged(job: Job, changed: Iterable[JobRank]) -> tuple[JobRank, ...]:
    """The members, with the changed ones in place of the old."""
    new = {(member.host, member.rank.pid): member for member in changed}
    return tuple(new.get((member.host, member.rank.pid), member) for member in job.members)


def _severity(lost: float | None) -> str:
    return "low" if lost is None or lost < policy.QUARTER else "high" if lost >= policy.HALF else "medium"


def _weight(job: Job) -> tuple[bool, bool, float, int]:
    """Sort key, largest for the worst job: one that cannot go on, then a fault, then the number of GPUs lost."""
    is_troubled = (job.cause != "none" and is_fault(job)) or (job.symptom == LOOKING and bool(job.missing))
    return stops_job(job), is_troubled, (job.lost or 0.0) * max(1, job.gpus), len(job.members)


# words


def _s(count: int) -> str:
    return "s" if count == 1 else ""


def _seen(job: Job) -> str:
    return f"{len(job.members)} of {job.size} ranks seen" if job.is_partial else f"all {job.size} ranks seen" if job.size > 1 else ""


def _spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def _count(spans: Iterable[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in spans)


def _ranks(spans: Sequence[tuple[int, int]]) -> str:
    """``rank 17``, ``ranks 3, 4, 8–15``."""
    parts = [str(first) if first == last else f"{first}–{last}" for first, last in spans[:NAMED]]
    return f"rank{'s' * (_count(spans) != 1)} {', '.join(parts)}{' …' * (len(spans) > NAMED)}"


def _gone(job: Job) -> str:
    return f"{_ranks(job.missing)} {'has' if _count(job.missing) == 1 else 'have'} no process on any host seen"


def _because(member: JobRank) -> str:
    """``; fluent-bit (903) took 1.4 of 8 CPUs; waits for its data``: why a rank is late, from its own node; empty if the node has no
    reason."""
    rank = member.rank
    return f"{_takers(member)}{f'; {rank.why}' if rank.why and rank.cause not in _NOT_ITS_OWN else ''}"


def _takers(member: JobRank) -> str:
    """``; fluent-bit (903) took 1.4 of 8 CPUs``."""
    takers = [taker for taker in member.rank.culprits if taker.cpu_s and taker.pid != member.rank.pid]
    if not takers:
        return ""
    names = ", ".join(f"{taker.name} ({taker.pid})" for taker in takers)
    cpus = sum(taker.cpu_s or 0.0 for taker in takers) / (WINDOW_NS / 1e9)
    return f"; {names} took {cpus:.1f}{f' of {member.cpus}' if member.cpus else ''} CPUs"


# the account of GPU seconds


class Books:
    """Lost GPU seconds of each job since it was first seen, by cause. What all victims lose is booked under the straggler's cause."""

    def __init__(self) -> None:
        self.ledgers: dict[str, Ledger] = {}
        self._read: dict[tuple[str, str, int], tuple[float, float, dict[str, float]]] = {}

    def note(self, jobs: Iterable[Job]) -> None:
        """Book the loss since the last call, from the nodes' cumulative counters: a second that did not arrive is in the next one."""
        read: dict[tuple[str, str, int], tuple[float, float, dict[str, float]]] = {}
        for job in jobs:
            ledger = self.ledgers.setdefault(job.key, Ledger())
            for member in job.members:
                row = member.rank.ledger
                at = job.key, member.host, member.rank.pid
                read[at] = row.gpu_total_s, row.gpu_lost_s, row.by_cause
                before = self._read.get(at, read[at])
                if row.gpu_total_s > before[0]:
                    _book(ledger, job, member, read[at], before)
        self._read = read
        self.ledgers = {key: ledger for key, ledger in self.ledgers.items() if key in {at[0] for at in read}}


def _book(
    ledger: Ledger, job: Job, member: JobRank, now: tuple[float, float, dict[str, float]], before: tuple[float, float, dict[str, float]]
) -> None:
    total_s, lost_s = now[0] - before[0], max(0.0, now[1] - before[1])
    if job.late or job.links:
        ledger.add(total_s, min(total_s, max(lost_s, (member.lost or 0.0) * total_s)), {job.cause: 1.0})
        return
    grown = {cause: max(0.0, seconds - before[2].get(cause, 0.0)) for cause, seconds in now[2].items()}
    ledger.add(total_s, lost_s, {cause: seconds / lost_s for cause, seconds in grown.items()} if lost_s > 0.0 else {})
