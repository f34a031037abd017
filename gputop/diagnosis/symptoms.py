"""From a job's pools to its verdict: what the GPU experiences, which cause holds most of the loss. Also: ends, and hosts without a job."""

from __future__ import annotations

from functools import cached_property

from msgspec import Struct, field

from gputop.diagnosis import feeders, hangs, policy, waits
from gputop.diagnosis.causes import Claim, Finding, Judge, unexplained
from gputop.diagnosis.causes.cpu_contention import keeps_from_starting
from gputop.diagnosis.causes.h2d_transfer import copies_back
from gputop.diagnosis.causes.hung_worker import all_are_dead, all_others_are_ahead, killed, replacing
from gputop.diagnosis.causes.main_thread_preprocessing import asks_programs, is_held_up
from gputop.diagnosis.causes.pause import asks_for_nothing
from gputop.diagnosis.facts import SHORT_S, Facts, GpuFacts, JobFacts
from gputop.diagnosis.model import LOOKING, Fix, PathStep, Verdict, Victim, of_gpus, speedup_max
from gputop.diagnosis.path import confidence
from gputop.diagnosis.proc import ProcFacts
from gputop.diagnosis.states import host_side_loss
from gputop.diagnosis.stepclock import NOTHING
from gputop.diagnosis.walk import of_hang, walk
from gputop.model.roles import TORCH_WORKER
from gputop.system.text import counted

LOST = 0.12  # share of the window lost from which something is said to be wrong (TraceML: input wait warns from 10 %, critical from 20 %)
NAMED = 0.35  # share of the loss that a cause must hold to be named
FULL_S = 2.0  # s; a shorter window makes a verdict less sure (guess)
BEGINS_S, LONG_S = 300.0, 30.0
"""A start may take so long: imports, weights, compiling. From the latter on it is told for how long it has lasted."""
_OF_STARTS = ("main-thread-preprocessing",)
"""What a start looks like that is no start: its main thread computes, and its GPU has nothing to do."""
_TOLD_BY_CALLS, COUNTED_S = ("main-thread-preprocessing", "small-kernels", "sync-storm"), 2.5
"""Main threads that compute, launch or spin look alike until calls and launches are counted, which takes so long at most."""
RESTING, ASLEEP, MOSTLY, POLLED = 0.5, 0.9, 0.7, 0.4
"""Share of the window without work for the GPU, and of that the main thread's own rest, of a process that merely waits to be asked;
and the share in which it polls, needed until its GPU is all but asleep."""
ASLEEP_RUN = 0.02  # share of the window up to which a process that wakes up by a timer of its own hardly runs
_RESTS = ("poll", "timer", "network", "lock", "pipe", "child", "unknown")
MOST_BESIDE = 3  # others on the same GPU that are told


class Standing(Struct, dict=True):
    """Where a job stands in this window: what the ledger and the incidents need, and the verdict in words for who asks."""

    job: JobFacts
    facts: Facts
    symptom: str
    cause: str = "none"
    headline: str = ""  # of a job in no trouble
    judge: Judge | None = None
    shares: dict[str, float] = field(default_factory=dict)  # cause -> share of the loss; what is missing to 1 is unexplained
    warming_up: bool = False
    at_rest: bool = False  # it does not want its GPU to work now
    bereft: bool = False  # a GPU of its is lost
    hangs: bool = False  # nothing of it moves any more, and somebody should look at it now
    leaves: bool = False  # it may be about to end: see `gputop.diagnosis.symptoms`
    lost_s: float | None = None  # GPU seconds lost, of those booked with this feed; None where no GPU is measured
    whole_s: float = 0.0  # those booked, lost or not
    booked: list[tuple[int, float, float]] = field(default_factory=list)
    """(t_ns, GPU seconds, those lost) that are booked with this feed; where several train on a GPU, divided among them."""

    @property
    def troubled(self) -> bool:
        """Something is wrong, or at least worth an entry."""
        return self.cause != "none"

    @property
    def fault(self) -> bool:
        """Somebody should do something about it."""
        return self.culpable > 0.0

    @property
    def culpable(self) -> float:
        """Share of its time, at most, that is lost by a fault: of what is none by itself what it takes where it comes again and again."""
        if not self.troubled:
            return 0.0
        if self.judge is None or self.judge.fault:
            return 1.0
        return self.job.repeated.share if self.job.repeated is not None else 0.0

    @property
    def unexplained(self) -> float:
        """Share of the loss that no cause holds."""
        return max(0.0, 1.0 - sum(self.shares.values()))

    @property
    def unbooked(self) -> bool:
        """What its GPU does not work is no loss."""
        return self.warming_up or self.at_rest

    @property
    def judged(self) -> bool:
        """Enough was seen of it."""
        return self.symptom != LOOKING

    @property
    def trainer_pid(self) -> int:
        """Whose trouble it is: a straggler's waiting peers have the straggler's; where that is not there any more, the first of them."""
        if (hang := self.job.hang) is not None and self.judge is None:
            return (hang.late or hang.family)[0].trainer.pid
        if self.cause != "straggler-rank":
            return self.job.trainer.pid
        slow = self.job.straggler
        return slow.pid if slow is not None and not self.job.absent_ranks else min(self.job.kin or {self.job.trainer.pid})

    @property
    def lost_pct(self) -> float | None:
        return None if self.job.lost is None else round(100 * self.job.lost, 1)

    @property
    def clearness(self) -> float:
        """How well the moment shows it, 0 to 1: by how long the window is; in trouble also by the states, and by how much of the loss the
        cause holds."""
        if not self.judged:
            return 0.0
        if self.cause == "unexplained":
            return 0.3
        if self.hangs and self.job.hang is not None:
            return 0.9  # that nothing moves is measured; whom it waits for is read from system calls
        held = self.job.trainer.state.confidence * min(1.0, 0.4 + self.shares.get(self.cause, 0.0)) if self.troubled else 1.0
        return round(held * min(1.0, self.facts.seconds / FULL_S), 2)

    @cached_property
    def verdict(self) -> Verdict:
        """In words, with evidence and fixes."""
        return _worded(self)


def judge_job(job: JobFacts, facts: Facts) -> Standing:
    """Let every judge claim its part, then name the strongest."""
    trainer = f"{job.trainer.role.label} ({job.trainer.pid})"
    if (found := _too_soon(job, facts, trainer) or _hung(job, facts) or _without_judging(job, facts, trainer)) is not None:
        return found
    shares = {claim.judge.cause: claim.share for claim in job.claims}
    suffers = job.lost if job.lost is not None else host_side_loss(job)
    if suffers < LOST:
        return Standing(job, facts, "healthy", headline=_well(job, trainer, _beside(job, facts)), shares=shares)
    judge, share = _strongest(job)
    if _is_at_rest(job, facts) and (judge is None or judge.fault or feeders.serves(job)):
        return Standing(job, facts, "idle", headline=f"{trainer} has no work for its GPU: it waits to be asked", at_rest=True)
    if 0.0 < job.unbegun_s < BEGINS_S and job.idle is not None and (judge is None or share < NAMED or judge.cause in _OF_STARTS):
        return _starting(job, facts, trainer)
    if judge is None or share < NAMED:
        if job.host_only:
            return Standing(job, facts, "idle", headline=_well(job, trainer, []), shares=shares)
        if facts.watched_s < COUNTED_S:
            return Standing(job, facts, LOOKING, headline=f"{trainer}: what it waits for has not shown yet")
        symptom = "input-bound" if job.data >= 0.5 * (job.idle or 1.0) else "wait-heavy"
        return Standing(job, facts, symptom, "unexplained", shares=shares)
    if judge.cause in _TOLD_BY_CALLS and _is_to_be_counted(job, facts, judge.cause):
        return Standing(job, facts, LOOKING, headline=f"{trainer}: its CUDA calls are not counted yet")
    return Standing(job, facts, judge.felt(job) if judge.felt else judge.symptom, judge.cause, judge=judge, shares=shares)


def _too_soon(job: JobFacts, facts: Facts, trainer: str) -> Standing | None:
    """Of one whose GPU is lost, or that was seen too shortly; None of all others."""
    gone = next((gpu.index for gpu in job.gpus if gpu.gone), None)
    if gone is not None:
        headline = f"GPU {gone} is lost: {trainer} cannot go on; sudo dmesg tells why (Xid)"
        return Standing(job, facts, "idle", headline=headline, bereft=True)
    if not facts.settled:
        return Standing(job, facts, LOOKING, headline=f"{trainer} has been looked at {_how_little(facts)} to judge")
    return None


def _hung(job: JobFacts, facts: Facts) -> Standing | None:
    """Of one of which nothing moves any more: what the judge of hung workers, or of ranks that are gone, has to say is more precise."""
    hang = job.hang
    if hang is None:
        return None
    judge, share = _strongest(job)
    if judge is not None and share >= NAMED and judge.cause == "hung-worker" == hang.cause and len(hang.family) == 1:
        symptom = judge.felt(job) if judge.felt else judge.symptom
        return Standing(job, facts, symptom, judge.cause, judge=judge, shares={judge.cause: 1.0}, hangs=True)
    if judge is not None and job.absent_ranks:
        return Standing(job, facts, judge.symptom, judge.cause, judge=judge, shares={judge.cause: 1.0}, hangs=True)
    symptom = "straggler" if hang.cause == "straggler-rank" else "input-bound" if job.workers else "wait-heavy"
    return Standing(job, facts, symptom, hang.cause, shares={hang.cause: 1.0}, hangs=True)


def _without_judging(job: JobFacts, facts: Facts, trainer: str) -> Standing | None:
    """Of one that is starting, or whose GPU does not answer; None of all others."""
    starts = bool(job.gpus) and (job.before_s is None or job.before_s >= LOST * facts.seconds)
    if starts and asks_for_nothing(job) and not killed(job):
        return Standing(job, facts, "idle", headline=f"{trainer} stands still: it takes none of the batches that are ready", at_rest=True)
    if starts and not _is_held(job, facts):  # as no start is
        return _starting(job, facts, trainer)
    if job.gpus and job.idle is None and not job.host_only:
        return Standing(job, facts, LOOKING, headline=f"{trainer}: no fresh reading of its GPU")
    return None


def _is_to_be_counted(job: JobFacts, facts: Facts, cause: str) -> bool:
    """The probes have found its libcuda only now, or not yet: what its main thread does on a CPU they will tell in a moment. Or samples
    meet it spinning, and have not for long enough to say how often."""
    if not job.gpus or facts.watched_s >= COUNTED_S:
        return False
    counted = job.calls is not None and job.launches_per_s is not None
    spins = job.sampled is not None and job.sampled.sync >= policy.SPINS and cause != "sync-storm"
    return spins or ((facts.probed or facts.probes_load) and not counted)


def _starting(job: JobFacts, facts: Facts, trainer: str) -> Standing:
    if job.before_s is None or job.unbegun_s:
        since = f" for {job.unbegun_s:.0f} s now" if job.unbegun_s >= LONG_S else ""
        return Standing(job, facts, "idle", headline=f"{trainer} is starting{since}{_though_starving(job)}", warming_up=True)
    return Standing(job, facts, LOOKING, headline=f"{trainer} has just begun to work its GPU")


def _how_little(facts: Facts) -> str:
    """A single look (``--once``) may last long, but takes two readings only."""
    short = facts.seconds < SHORT_S
    return f"for {facts.seconds:.1f} s, too short" if short else f"{facts.feeds} times in {facts.seconds:.1f} s, too seldom"


def _though_starving(job: JobFacts) -> str:
    """That it starts is a guess: its GPU may have worked before anybody watched. Who starves is seen."""
    starving = sum(bool(worker.state.starving) for worker in job.workers)
    verb = "starves" if starving == 1 else "starve"
    return f", or held up: {starving} of {counted(len(job.workers), 'worker')} {verb}" if starving else ""


def _is_held(job: JobFacts, facts: Facts) -> bool:
    """Somebody whom it needs was stopped, is kept from his CPU by others, or does not stir: no start takes that."""
    return (
        all_others_are_ahead(job)
        or all_are_dead(job)
        or keeps_from_starting(job, facts)
        or bool(job.stopped or job.mute or job.unheard or replacing(job) or killed(job))
        or any(proc.newer.state in waits.STOPPED_STATES for proc in (job.trainer, *job.workers))
    )


def _is_at_rest(job: JobFacts, facts: Facts) -> bool:
    """A server between requests, a notebook, a context kept open: nobody loads data for it, and its main thread waits for anybody.

    Where its GPU does next to nothing, any sleep is such a wait.
    """
    if job.births or job.stopped or job.mute or job.absent_ranks or job.host_only or (job.idle or 0.0) < RESTING or _is_fed(job, facts):
        return False
    if job.workers:
        return job.trainer.kinds.get(waits.POLL, 0.0) >= MOSTLY and all(_is_idle_helper(worker) for worker in job.workers)
    rest = sum(job.pools.get(f"main.{kind}", 0.0) for kind in _RESTS)
    polled = job.pools.get("main.poll", 0.0) >= POLLED or (job.idle or 0.0) >= ASLEEP
    return polled and rest >= MOSTLY


def _is_fed(job: JobFacts, facts: Facts) -> bool:
    """Somebody is at work for it, or was asked by one whom nobody can ask, and now and then a step is made."""
    by_threads = not feeders.serves(job) and bool(feeders.threads_wait(job, job.trainer) or feeders.threads_at_work(job))
    by_programs = bool(feeders.programs_wait(job, facts)) or feeders.programs_at_work(job, facts)
    return (job.idle or 0.0) < NOTHING and (by_threads or by_programs or feeders.asks_others(job))


def _is_idle_helper(worker: ProcFacts) -> bool:
    """A server's own child beside it, such as a tokenizer: no loader's, for these are named or wait on a queue, and nobody stopped it."""
    asleep = worker.run + worker.runnable < ASLEEP_RUN and not {waits.QUEUE, waits.STOPPED, waits.DISK} & worker.kinds.keys()
    return asleep and worker.info.comm != TORCH_WORKER


def _strongest(job: JobFacts) -> tuple[Judge | None, float]:
    most: Claim | None = max(job.claims, key=lambda claim: claim.share, default=None)
    return (most.judge, most.share) if most is not None else (None, 0.0)


def _worded(one: Standing) -> Verdict:
    job = one.job
    gpu = _worst(job)
    finding = _finding(one)
    why = one.headline or _why(one)
    headline = one.headline or _headline(one, why)
    victims = _victims(job, finding) if one.troubled else ()
    path = _path(one, finding) if one.troubled else ()
    regain = None if job.lost is None or one.cause in ("none", "unexplained") else job.lost * one.shares.get(one.cause, 0.0)
    return Verdict(
        symptom=one.symptom, cause=one.cause, gpu=None if gpu is None else gpu.index, lost_pct=one.lost_pct, headline=headline,
        detail=finding.detail, severity=_loudness(one), confidence=_confidence(one, path), evidence=finding.evidence, fixes=finding.fixes,
        culprits=finding.culprits, victims=victims, trainer_pid=one.trainer_pid, why=why, path=path,
        regain_gpu_s=None if regain is None else round(regain * one.facts.seconds * len(job.gpus), 3),
        speedup_max=None if regain is None else speedup_max(regain + (job.lost or 0.0) * one.unexplained, 1.0),
    )  # fmt: skip


def _path(one: Standing, finding: Finding) -> tuple[PathStep, ...]:
    """The walk to its cause; of what nobody explains, along the way on which most was lost."""
    job, facts = one.job, one.facts
    if one.judge is None and one.hangs and job.hang is not None:
        return of_hang(job.hang)
    return walk(job, facts, "" if one.judge is None else one.cause, finding.culprits)


def _confidence(one: Standing, path: tuple[PathStep, ...]) -> float:
    """See `Verdict.confidence`."""
    if not path or one.cause == "unexplained":
        return one.clearness
    return round(confidence(path) * min(1.0, one.facts.seconds / FULL_S), 2)


def _finding(one: Standing) -> Finding:
    if one.judge is not None:
        return one.judge.tell(one.job, one.facts)
    if one.job.hang is not None and one.hangs:
        return hangs.tell(one.job.hang, one.facts.t_ns)
    return unexplained.tell(one.job) if one.troubled else Finding("")


MEDIUM_SHARE, HIGH_SHARE = 0.25, 0.5  # share of its time that a GPU lost, from which that is of medium and high severity


def _loudness(one: Standing) -> str:
    """Of the moment; an incident's own severity counts the seconds lost."""
    if one.bereft or one.hangs:
        return "high"
    if not one.fault:
        return "info"
    lost = min(one.job.lost or 0.0, one.culpable)
    return "high" if lost >= HIGH_SHARE else "medium" if lost >= MEDIUM_SHARE else "low"


UNEVEN = 0.1  # more of the window that the worst of several GPUs lost than all of them, from which it is named
SLOW_LAUNCHES = 0.3  # share of the window without work for the GPU
_WHY = {
    "input-bound": "waits for its data",
    "idle": "pauses",
    "transfer-bound": "copies to the GPU",
    "wait-heavy": "waits",
    "straggler": "waits for a slower rank",
    "compute-bound": "is limited by the GPU's clocks",
    "busy-not-working": "keeps the GPU busy with little work",
}

_OWN_DOING = ("main-thread-preprocessing", "gil-contention", "slow-transform")
"""What a trainer does to itself; of the rest of the input-bound causes somebody or something else keeps its main thread."""


def _headline(one: Standing, why: str) -> str:
    job, facts, gpu = one.job, one.facts, _worst(one.job)
    if gpu is None or job.lost is None:
        loss = host_side_loss(job)
        share = job.data if job.data >= 0.5 * loss else loss
        return f"{why} {100 * share:.0f}% of the time (no GPU is measured: host side only)"
    apart = gpu.lost is not None and gpu.lost - job.lost >= UNEVEN
    worst = f" (GPU {gpu.name}: {100 * (gpu.lost or 0.0):.0f}%)" if apart else ""
    return f"{of_gpus({one.name for one in job.gpus})} lost {100 * job.lost:.0f}%{worst} of the last {facts.seconds:.0f} s: {why}"


def _why(one: Standing) -> str:
    """Who trains, and what that does to its GPU, or has done to it."""
    if one.hangs and one.job.hang is not None and not one.job.absent_ranks:
        return hangs.told(one.job.hang, one.facts.t_ns)
    return f"{one.job.trainer.role.label} ({one.job.trainer.pid}) {_does(one)}"


def _does(one: Standing) -> str:
    job, idle = one.job, one.job.idle or 0.0
    if job.absent_ranks and one.symptom == "straggler":
        return "waits for a rank that is gone"
    if job.straggler is job.trainer and one.symptom == "straggler":
        return "is slower than the other ranks, which wait for it"
    if one.cause == "small-kernels" and idle >= SLOW_LAUNCHES:
        return "launches its kernels too slowly to keep it busy"
    if one.cause == "main-thread-preprocessing" and is_held_up(job):
        return "waits until somebody reads what it writes"
    if one.cause in _OWN_DOING and job.is_supplied:
        return _feels(one) if _waits_for_others(one) else "itself keeps it waiting"
    if one.cause == "undersized-work" and one.symptom == "wait-heavy":
        return "works them one after the other"
    if job.repeated is not None:
        return f"{_feels(one)} again and again"
    if one.symptom == "input-bound" and one.cause not in ("hung-worker", "unexplained") and job.is_supplied and not job.fed_by:
        return "cannot give it work in time"
    return _feels(one) if one.cause != "unexplained" else "waits, and what was measured does not say for what"


def _feels(one: Standing) -> str:
    """Its symptom as a verb; that it waits for its data is owned to be inferred where what it waits for cannot be read."""
    if one.symptom == "transfer-bound" and copies_back(one.job):
        return "copies from the GPU"
    guessed = one.symptom == "input-bound" and one.job.trainer.state.inferred
    return "seems to wait for its data" if guessed else _WHY[one.symptom]


def _waits_for_others(one: Standing) -> bool:
    """Its main thread waits for what other processes give it, though they are no workers, nor programs that it asks between the steps."""
    pools = {pool: share for pool, share in one.job.pools.items() if pool.startswith("main.")}
    fed = pools.get("main.pipe", 0.0) + pools.get("main.poll", 0.0)
    through = 2 * fed > sum(pools.values()) and not feeders.threads_at_work(one.job) and not asks_programs(one.job)
    return one.cause != "gil-contention" and (through or bool(feeders.elsewhere(one.job, one.facts)))


def _victims(job: JobFacts, finding: Finding) -> tuple[Victim, ...]:
    starving = {worker.pid for worker in job.workers if worker.state.starving} or {job.trainer.pid}
    chosen = starving if finding.victims is None else set(finding.victims)
    procs = [proc for proc in (job.trainer, *job.workers) if proc.pid in chosen]
    return tuple(Victim(proc.pid, proc.role.kind, proc.role.label) for proc in procs)


def _worst(job: JobFacts) -> GpuFacts | None:
    """The GPU that lost most; without readings the first."""
    return max(job.gpus, key=_lost_of, default=None)


def _lost_of(gpu: GpuFacts) -> float:
    return gpu.lost if gpu.lost is not None else -1.0


def _beside(job: JobFacts, facts: Facts) -> list[JobFacts]:
    """Others that compute on a GPU of its, which then works for each of them a part of the time only."""
    own = {gpu.place for gpu in job.gpus}
    return [other for other in facts.jobs if other is not job and any(gpu.place in own for gpu in other.gpus)]


def _well(job: JobFacts, trainer: str, beside: list[JobFacts]) -> str:
    if job.lost is None:
        computing = job.trainer.state.fractions.get("computing", 0.0)
        return f"{trainer} computes {100 * computing:.0f}% of the time; no GPU is measured (host side only)"
    if beside:
        others = ", ".join(f"{other.trainer.role.label} ({other.trainer.pid})" for other in beside[:MOST_BESIDE])
        return f"{trainer} shares its GPU, which works {100 * (1 - job.lost):.0f}% of the time, with {others}"
    return f"{trainer} keeps its GPU working {100 * (1 - job.lost):.0f}% of the time"


LEAVES_NS = 2_000_000_000  # so long after its workers are gone nothing is said of a trainer that does not work its GPU
RESTING_UTIL = 0.05  # utilization of a GPU that rests


def leaving(one: Standing, staffed_ns: int) -> Standing:
    """How a job stands that is in trouble since its workers were gone, last seen at ``staffed_ns``: an end, the next epoch and an
    evaluation begin like that, and the window still tells of what was before. All others stand as they do."""
    job, facts = one.job, one.facts
    lately = facts.t_ns - staffed_ns < LEAVES_NS and not (job.workers or job.births)
    if not (lately and one.troubled and all((gpu.util_now or 0.0) < RESTING_UTIL for gpu in job.gpus)):
        return one
    headline = f"{job.trainer.role.label} ({job.trainer.pid}) has let its workers go: it ends, or turns to something else"
    return Standing(job, facts, LOOKING, headline=headline, leaves=True)


WORKS = 0.1  # share of the window from which a GPU is said to work for somebody who is not seen


def without_job(facts: Facts) -> Verdict:
    """Nobody trains here: say what can be said, of GPU and host."""
    worked = [gpu for gpu in facts.unseen if _util_of(gpu) >= WORKS]
    if worked:
        return _for_unseen(max(worked, key=_util_of), facts)
    gone = next((gpu.index for gpu in facts.gpus if gpu.gone), None)
    if gone is not None:
        return Verdict("idle", "none", gone, headline=f"GPU {gone} is lost; sudo dmesg tells why (Xid)", severity="high")
    if facts.unread:
        names = ", ".join(facts.unread[:MOST_BESIDE])
        return Verdict(headline=f"What {names} wait{'s' * (len(facts.unread) == 1)} for was not measured", detail=facts.hidden[0])
    if facts.gpus:
        return Verdict("idle", "none", headline="No training process on this host")
    busy = sum(facts.host.busy.values())
    used = f"; the host uses {busy:.1f} of {facts.host.cpus} CPUs" if facts.host.busy else ""
    return Verdict("idle", "none", headline=f"No GPU and no training process{used}")


def _for_unseen(gpu: GpuFacts, facts: Facts) -> Verdict:
    """No idle GPU, though nobody trains here as far as is seen: a container without ``--pid=host``, say."""
    reason, remedy = facts.hidden
    listed = ", ".join(map(str, sorted(gpu.pids)[:3]))
    here = f"the driver lists {listed}, of which none is here" if listed else "the driver lists none of them"
    ask = Fix(remedy) if remedy else Fix("See who holds the GPUs' device files", "sudo fuser -v /dev/nvidia*")
    headline = f"GPU {gpu.index} works {100 * _util_of(gpu):.0f}% of the time for processes that cannot be seen from here"
    return Verdict(
        "healthy", "none", gpu.index, headline=headline,
        detail=f"{remedy} ({reason})" if remedy else f"{ask.command} names them; {here}", fixes=(ask,),
    )  # fmt: skip


def _util_of(gpu: GpuFacts) -> float:
    return gpu.util or 0.0
