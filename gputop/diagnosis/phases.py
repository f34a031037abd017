"""Phases: whether a trainer is starting, training, pausing, ending or idle, and whether its GPU's idle time is a loss.

Each trainer has one state machine, wholly in `TABLE`. The next phase is given by the first row that may follow the last phase and has a
true condition. The row also decides on the GPU seconds not worked: `BOOKED` as lost to a cause, `DROPPED` (the GPU was not meant to work),
or `HELD` until a later window decides. A row with a headline is the whole verdict; the others leave it to the cause in `WalkedJob.claims`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import inf
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct

from gputop.diagnosis.causes import Judge, gpu_lost, judge_of
from gputop.diagnosis.causes.cpu_contention import keeps_from_starting
from gputop.diagnosis.facts import feeders, waits
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.graph import starting
from gputop.diagnosis.graph.asked import is_asked_through_front, is_left_alone, lacks_requests, waits_for_others
from gputop.diagnosis.graph.edges import PACED
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.pausing import breaks_s, is_ahead, paused
from gputop.diagnosis.graph.states import host_side_loss
from gputop.diagnosis.graph.stuck import all_are_dead, all_others_are_ahead, killed
from gputop.findings import policy
from gputop.findings.policy import WINDOW_NS
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import ANY, BOOKED, DROPPED, ENDING, HELD, IDLE, LOOKING, PAUSING, SAME, STARTING, TRAINING
from gputop.model.roles import TORCH_WORKER
from gputop.system.text import clean, counted

MOST_BESIDE = 3  # other trainers on the same GPU that are named


_RESTS = ("poll", "timer", "network", "lock", "pipe", "child", "unknown")  # kinds of sleep of a main thread that waits for requests
_ANSWERS = ("timer", "network", "pipe", "child")  # kinds among these of a wait for an answer to its own request, not for any client
_ANYBODY = ("poll", "network", "lock", "timer", "unknown")  # kinds among these of a server's wait, directly or through threads of its own
_LIKE_A_START = ("", "main-thread-preprocessing")  # its main thread computes, and its GPU has nothing to do
_TOLD_BY_CALLS = ("main-thread-preprocessing", "small-kernels", "sync-storm")  # indistinguishable until calls and launches are counted


class Phase(Struct, frozen=True):
    """The phase of a trainer."""

    word: str  # one of `ANY`
    since_ns: int  # CLOCK_MONOTONIC
    staffed_ns: int = 0  # when it last had workers
    loads_ns: int = 0  # since when it has read from storage before its first step; 0: it does not
    why: str = ""  # the condition that holds
    books: str = HELD
    headline: str = ""  # empty: the cause decides the verdict

    @property
    def symptom(self) -> str:
        """Symptom of a phase that is the whole verdict."""
        if self.loads_ns and self.word == STARTING:
            return "idle"
        return LOOKING if self.books == HELD else "idle" if self.word in (STARTING, IDLE) else "healthy"


class Seen:
    """One trainer in one window. The methods are the conditions and the headlines of `TABLE`."""

    def __init__(self, job: WalkedJob, facts: WalkedFacts) -> None:
        self.job, self.facts = job, facts
        self.name = filled("{} ({})", job.trainer.role.label, job.trainer.pid)
        self.staffed_ns = 0  # when it last had workers
        self.loads_ns = 0  # since when it has loaded; 0: it did not at the last look

    @property
    def strongest(self) -> Judge | None:
        """The cause that holds most of the loss; None without a cause."""
        return judge_of(max(self.job.claims, key=attrgetter("share")).cause) if self.job.claims else None

    @property
    def named(self) -> Judge | None:
        """The cause that holds enough of the loss to be named, or None."""
        return self.strongest if any(claim.share >= policy.NAMED for claim in self.job.claims) else None

    @property
    def cause(self) -> str:
        return "" if self.named is None else self.named.cause

    @cached_property
    def is_early(self) -> bool:
        """True if the trainer does not train yet, or too much of the window lies before its training began."""
        return bool(self.job.gpus) and (self.job.life.before_s is None or self.job.life.before_s >= policy.LOST * self.facts.seconds)

    @cached_property
    def is_held(self) -> bool:
        """True if a process that the trainer needs is dead, stopped, kept from its CPU by others, or still: a start does not explain
        that."""
        job = self.job
        return (
            all_others_are_ahead(job) or all_are_dead(job) or keeps_from_starting(job, self.facts)
            or killed(job) or bool(job.programs.stopped or job.programs.mute or job.output.unheard)
            or any(proc.newer.state in waits.STOPPED_STATES for proc in (job.trainer, *job.workers))
        )  # fmt: skip

    @property
    def is_fed(self) -> bool:
        """True if threads or programs work for the trainer, or it is a network client that waits for answers, and steps are made now and
        then."""
        job = self.job
        by_threads = not feeders.serves(job) and bool(feeders.threads_wait(job, job.trainer) or feeders.threads_at_work(job))
        by_programs = bool(feeders.programs_wait(job, self.facts)) or feeders.programs_at_work(job, self.facts)
        return ((job.idle or 0.0) < policy.AT_END or self.makes_steps) and (by_threads or by_programs or feeders.asks_others(job))

    @property
    def makes_steps(self) -> bool:
        """True if the GPU works again and again, however little."""
        return any(gpu.makes_steps for gpu in self.job.gpus)

    @property
    def can_be_asked(self) -> bool:
        """True if requests may come to the main thread: it listens, or its parent writes to it. If its sockets are unreadable, sleeps that
        can only be for its own requests decide."""
        job, own = self.job, {kind: self.job.pools.get(f"main.{kind}", 0.0) for kind in _ANSWERS}
        if own["pipe"] >= policy.HALF:
            return feeders.is_asked_by_parent(job)
        if job.trainer.info.sockets == feeders.LISTENING:
            return own["timer"] < policy.HALF or (job.trainer.sleeps_per_s or 0.0) <= policy.ASKS_PER_S
        return not job.trainer.info.sockets and sum(own.values()) < policy.HALF

    def has_lost_a_gpu(self) -> bool:
        return any(gpu.gone for gpu in self.job.gpus)

    def was_seen_too_shortly(self) -> bool:
        return not self.facts.settled

    def hangs(self) -> bool:
        return self.job.hang is not None

    def stands_at_a_prompt(self) -> bool:
        return self.is_early and self.job.life.still_s >= policy.NAPPED_S and is_ahead(self.job) and not killed(self.job)

    def has_just_begun(self) -> bool:
        return self.is_starting() and self.job.life.before_s is not None and not self.job.life.unbegun_s

    def is_starting(self) -> bool:
        return self.is_early and not self.is_held

    @cached_property
    def reads(self) -> bool:
        """True if the trainer mostly waits for storage or the network before its first step: an engine that loads its weights."""
        waits_for = starting.fetching(self.job)
        rests = all((gpu.util_now or 0.0) < policy.HALF for gpu in self.job.gpus)
        return self.is_early and rests and (self.job.idle or 0.0) >= policy.HALF and waits_for >= policy.HALF

    def loads_for_long(self) -> bool:
        return self.reads and 0 < self.loads_ns <= self.facts.t_ns - policy.LOADS_NS

    def loads(self) -> bool:
        return self.reads

    def has_loaded(self) -> bool:
        """True if it has just ended to load, soon enough to be a start as any."""
        return self.is_early and self.loads_ns > self.facts.t_ns - policy.LOADS_NS

    def gives_no_reading(self) -> bool:
        return bool(self.job.gpus) and self.job.idle is None and not self.job.host_only

    def loses_little(self) -> bool:
        return (self.job.lost if self.job.lost is not None else host_side_loss(self.job)) < policy.LOST

    def waits_to_be_asked(self) -> bool:
        """True if the trainer is a server between requests, a notebook, or holds an open context: no process loads data for it, and its
        main thread waits for any request."""
        job, idle = self.job, self.job.idle or 0.0
        stands = job.programs.stopped or job.programs.mute or job.ranks.absent
        server = self.facts.servers.get(job.trainer.pid)
        has_requests = server is not None and (server.running or server.waiting)
        if job.loader.births or stands or job.host_only or idle < policy.HALF or self.is_fed or has_requests:
            return False
        if self.named is not None and self.named.fault and (is_asked_through_front(job, self.facts) or feeders.is_thread_full(job)):
            return False  # the walk ended at who keeps requests: its front, through which all come, or a thread of its own
        if job.workers:
            rests = job.trainer.kinds.get(waits.POLL, 0.0) >= policy.MOST and all(map(_is_idle_helper, job.workers))
        else:
            polls = job.pools.get("main.poll", 0.0) >= policy.HALF
            anybody = polls or (idle >= policy.NEARLY_ALL and (self.can_be_asked or not self.makes_steps))
            rests = anybody and sum(job.pools.get(f"main.{kind}", 0.0) for kind in _RESTS) >= policy.MOST
        return rests and (self.strongest is None or self.strongest.fault or feeders.serves(job))

    def rests_between_bursts(self) -> bool:
        """True if the trainer is a server with a GPU that rests between bursts of work, longer than within any step, while its main thread
        waits for any client: no pause of its own."""
        job = self.job
        if job.workers or job.loader.births or feeders.threads_at_work(job) or feeders.programs_at_work(job, self.facts):
            return False
        asked = job.trainer.info.sockets == feeders.LISTENING or feeders.is_asked_by_parent(job)
        waited = sum(job.pools.get(f"main.{kind}", 0.0) for kind in (*_ANYBODY, *(["pipe"] if feeders.is_asked_by_parent(job) else [])))
        return asked and waited >= policy.MOST and 0.0 < paused(job, self.facts) < inf

    def rests_unasked(self) -> bool:
        """True if the trainer has no requests: its server's own metrics have none; or its GPU rests after steady work, or its main thread
        does, longer than within any step, while that thread waits for others, and all others wait for requests themselves."""
        job, server = self.job, self.facts.servers.get(self.job.trainer.pid)
        if server is not None and (server.rests or server.waiting):
            return server.rests
        if job.loader.births or job.programs.stopped or job.programs.mute or job.ranks.absent or job.host_only:
            return False
        rests = max(breaks_s(job), job.trainer.rest_s) >= policy.PAUSE_S and job.pools.get("main.unasked", 0.0) >= policy.HALF
        return (rests or 0.0 < paused(job, self.facts) < inf) and is_left_alone(job)

    def has_few_requests(self) -> bool:
        """True if an inference engine lacks requests most of the time that its GPU rests, and loses little besides."""
        unasked = self.job.pools.get("main.unasked", 0.0)
        few = lacks_requests(self.job, self.facts.servers.get(self.job.trainer.pid)) and unasked >= policy.HALF
        return few and (1.0 - unasked) * (self.job.idle or 0.0) < policy.QUARTER

    def works_for_all_requests(self) -> bool:
        """Like `has_few_requests`, of an engine whose GPU works for half of the time or more."""
        return (self.job.idle or 0.0) <= policy.HALF and self.has_few_requests()

    def may_keep_pace(self) -> bool:
        """True if the main thread waits for a source whose own pace is not known yet."""
        return any(one.paced is None for one in self.job.members) and waits_for_others(self.job) >= policy.MOST

    def keeps_pace(self) -> bool:
        """True if the main thread has the input as fast as it comes: its source delivers by a clock, or is sent it by others unasked, and
        no sooner for anything here."""
        return not self.job.host_only and self.job.pools.get(f"main.{PACED}", 0.0) >= policy.MOST

    def has_not_worked_yet(self) -> bool:
        return 0.0 < self.job.life.unbegun_s < policy.BEGINS_S and self.job.idle is not None

    def has_worked(self) -> bool:
        return not self.has_not_worked_yet()

    def looks_like_a_start(self) -> bool:
        return self.has_not_worked_yet() and self.cause in _LIKE_A_START

    def shows_no_loss(self) -> bool:
        return self.job.host_only and not self.cause

    def is_watched_too_shortly(self) -> bool:
        """True if no cause has shown yet, or causes that only calls distinguish are still mixed: the probes have not counted yet, or
        samples have not yet covered the spinning for long enough."""
        job, facts = self.job, self.facts
        if facts.watched_s * 1e9 >= WINDOW_NS or self.cause not in ("", *_TOLD_BY_CALLS):
            return False
        is_counted = job.cuda.calls is not None and job.cuda.launches_per_s is not None
        spins = job.cuda.sampled is not None and job.cuda.sampled.sync >= policy.TENTH and self.cause != "sync-storm"
        return not self.cause or (bool(job.gpus) and (spins or ((facts.probed or facts.probes_load) and not is_counted)))

    def has_let_its_workers_go(self) -> bool:
        """True if the workers ended lately and the GPUs rest: an end, the next epoch and an evaluation all begin so, and the window still
        covers the time before."""
        lately = self.facts.t_ns - self.staffed_ns < policy.YOUNG_NS and not (self.job.workers or self.job.loader.births)
        return lately and all((gpu.util_now or 0.0) < policy.LITTLE for gpu in self.job.gpus)

    def pauses(self) -> bool:
        return self.cause == "pause"

    def lost_text(self) -> str:
        return filled("{}; {} cannot go on", gpu_lost.told(next(gpu for gpu in self.job.gpus if gpu.gone)), self.name)

    def too_little_text(self) -> str:
        """Headline for too little data. A single look (``--once``) may last long, but takes only two readings."""
        seconds, feeds = self.facts.seconds, self.facts.feeds
        little = (
            filled("for {:.1f} s, too short", seconds)
            if seconds < policy.WATCHED_S
            else filled("{} times in {:.1f} s, too seldom", feeds, seconds)
        )
        return filled("{} has been looked at {} to judge", self.name, little)

    def starting_text(self) -> str:
        """Headline for a start. The start is a guess, for its GPU may have worked before the first look; starving workers are seen."""
        since = filled(" for {:.0f} s now", self.job.life.unbegun_s) if self.job.life.unbegun_s >= policy.WARM_UP_NS / 1e9 else ""
        starving = sum(bool(worker.state.starving) for worker in self.job.workers)
        of_all = filled("{} of {} starve{}", starving, counted(len(self.job.workers), "worker"), "s" * (starving == 1))
        activity = starting.activity(self.job, self.facts)
        does = filled(": {}", activity) if activity else ""
        return filled("{} is starting{}{}", self.name, since, filled(", or held up: {}", of_all) if starving else does)

    def loading_text(self) -> str:
        return filled("{} is starting: {}", self.name, starting.loading(self.job, self.facts))

    def paced_text(self) -> str:
        paced = [one for one in self.job.members if one.paced]
        sources = joined(", ", (filled("{} ({})", clean(one.name), one.pid) for one in paced))
        if all(one.by_senders for one in paced):
            return filled("{} has all the input there is: {} hands on what others send unasked, as it comes", self.name, sources)
        return filled("{} has all the input there is: {} sends it at a pace of its own, by a timer", self.name, sources)

    def working_text(self) -> str:
        """Headline for work without much loss. A shared GPU works for each trainer only a part of the time, so the others are named; where
        the driver counts the time of each process, it is the job's own."""
        job = self.job
        if job.lost is None:
            computing = 100 * job.trainer.state.fractions.get("computing", 0.0)
            return filled("{} computes {:.0f}% of the time; no GPU is measured (host side only)", self.name, computing)
        if any(gpu.neighbours for gpu in job.gpus):
            worked = [(gpu.own, gpu.util) for gpu in job.gpus if gpu.util is not None]
            share = sum(util if own is None else min(own, util) for own, util in worked) / max(1, len(worked))
            return filled("{} works its GPU {:.0f}% of the time, and lacks none of it", self.name, 100 * share)
        own, working = {gpu.place for gpu in job.gpus}, filled("{:.0f}% of the time", 100 * (1 - job.lost))
        others = [other.trainer for other in self.facts.jobs if other is not job and any(gpu.place in own for gpu in other.gpus)]
        names = joined(", ", (filled("{} ({})", trainer.role.label, trainer.pid) for trainer in others[:MOST_BESIDE]))
        if others:
            return filled("{} shares its GPU, which works {}, with {}", self.name, working, names)
        return filled("{} keeps its GPU working {}", self.name, working)


def _is_idle_helper(worker: ProcFacts) -> bool:
    """True if the worker is a server's own idle child, such as a tokenizer: a loader's workers have torch's name or wait on a queue, and it
    is not stopped."""
    asleep = worker.run + worker.runnable < policy.HARDLY and not {waits.QUEUE, waits.STOPPED, waits.DISK} & worker.kinds.keys()
    return asleep and worker.info.comm != TORCH_WORKER


class Transition(NamedTuple):
    """One transition."""

    before: tuple[str, ...]
    to: str
    when: Callable[[Seen], bool]
    books: str
    says: Callable[[Seen], str] | str = ""  # headline, or its part after the trainer's name; empty: the cause decides the verdict


TABLE = (
    Transition(ANY, IDLE, Seen.has_lost_a_gpu, BOOKED, Seen.lost_text),
    Transition(ANY, SAME, Seen.was_seen_too_shortly, HELD, Seen.too_little_text),
    Transition((STARTING,), STARTING, Seen.hangs, BOOKED),
    Transition(ANY, TRAINING, Seen.hangs, BOOKED),
    Transition(ANY, IDLE, Seen.stands_at_a_prompt, DROPPED, " stands still: it takes none of the batches that are ready"),
    Transition(ANY, STARTING, Seen.loads_for_long, BOOKED),
    Transition(ANY, STARTING, Seen.loads, HELD, Seen.loading_text),
    Transition(ANY, STARTING, Seen.has_loaded, DROPPED, Seen.starting_text),
    Transition(ANY, TRAINING, Seen.has_just_begun, HELD, " has just begun to work its GPU"),
    Transition(ANY, STARTING, Seen.is_starting, DROPPED, Seen.starting_text),
    Transition(ANY, SAME, Seen.gives_no_reading, HELD, ": no fresh reading of its GPU"),
    Transition(ANY, TRAINING, Seen.loses_little, BOOKED, Seen.working_text),
    Transition(ANY, IDLE, Seen.waits_to_be_asked, DROPPED, " has no work for its GPU: it waits to be asked"),
    Transition(ANY, IDLE, Seen.rests_between_bursts, DROPPED, " has no work for its GPU between bursts of requests"),
    Transition(ANY, IDLE, Seen.rests_unasked, DROPPED, " has no work for its GPU: no requests reach it"),
    Transition(ANY, TRAINING, Seen.works_for_all_requests, DROPPED, " works its GPU for all requests that reach it"),
    Transition(ANY, IDLE, Seen.has_few_requests, DROPPED, " has no work for its GPU between requests: few reach it"),
    Transition(ANY, IDLE, Seen.keeps_pace, DROPPED, Seen.paced_text),
    Transition(ANY, SAME, Seen.may_keep_pace, HELD, ": whether its input comes at a pace of its own has not shown yet"),
    Transition(ANY, STARTING, Seen.looks_like_a_start, DROPPED, Seen.starting_text),
    Transition(ANY, IDLE, Seen.shows_no_loss, BOOKED, Seen.working_text),
    Transition(ANY, SAME, Seen.is_watched_too_shortly, HELD, ": what its time is lost to has not shown yet"),
    Transition((TRAINING, PAUSING, ENDING, IDLE), ENDING, Seen.has_let_its_workers_go, HELD,
        " has let its workers go: it ends, or turns to something else"),
    Transition(ANY, PAUSING, Seen.pauses, BOOKED),
    Transition(ANY, STARTING, Seen.has_not_worked_yet, BOOKED),
    Transition(ANY, TRAINING, Seen.has_worked, BOOKED),
)  # fmt: skip


def phase_of(seen: Seen, before: Phase | None) -> Phase:
    """The phase that follows ``before`` (None for a new trainer)."""
    t_ns = seen.facts.t_ns
    if before is None:
        before = Phase(STARTING if seen.has_not_worked_yet() else TRAINING, t_ns - int(seen.job.life.unbegun_s * 1e9))
    seen.staffed_ns, seen.loads_ns = t_ns if seen.job.workers else before.staffed_ns, before.loads_ns
    row = next(row for row in TABLE if before.word in row.before and row.when(seen))
    word, why = row.to or before.word, row.when.__name__.replace("_", " ")
    says = row.says(seen) if callable(row.says) else row.says and seen.name + row.says
    loads_ns = (before.loads_ns or t_ns) if word == STARTING and seen.reads else 0
    return Phase(word, before.since_ns if word == before.word else t_ns, seen.staffed_ns, loads_ns, why, row.books, says)
