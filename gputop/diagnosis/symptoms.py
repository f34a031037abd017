"""Verdicts from a job's pools: the symptom of its GPU, and the cause that holds most of the loss. Also: hosts without a job."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from msgspec import Struct, field
from msgspec.structs import replace

from gputop.diagnosis import hangs
from gputop.diagnosis.causes import Finding, Judge, gpu_lost, traced, unexplained
from gputop.diagnosis.causes.h2d_transfer import copies_back
from gputop.diagnosis.causes.main_thread_preprocessing import asks_programs
from gputop.diagnosis.causes.output_blocked import logging
from gputop.diagnosis.causes.undersized_work import work_apart
from gputop.diagnosis.facts import feeders
from gputop.diagnosis.facts.facts import GpuFacts
from gputop.diagnosis.facts.intensity import is_in_slow_part
from gputop.diagnosis.facts.kinds import LEARNT, kind_of
from gputop.diagnosis.facts.life import has_peers, in_kernel
from gputop.diagnosis.graph import starting
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.states import host_side_loss
from gputop.diagnosis.graph.walk import of_hang, walk
from gputop.diagnosis.phases import Phase, Seen, phase_of
from gputop.diagnosis.requests import requests_of
from gputop.findings import parts, policy
from gputop.findings.nexttest import Doubt, next_test
from gputop.findings.path import certainty, confidence
from gputop.findings.sentence import filled
from gputop.findings.verdict import BOOKED, GPU_LOST, HELD, LOOKING, Evidence, Fix, PathStep, Verdict, Victim, of_gpus, speedup_max
from gputop.model.fields import CLOCKS_IDLE

_SLIGHT = ("info", "low")  # severities


class Standing(Struct, dict=True):
    """A job's standing in this window: figures for the ledger and the incidents, and on request the verdict in words."""

    job: WalkedJob
    facts: WalkedFacts
    phase: Phase
    symptom: str
    cause: str = "none"
    judge: Judge | None = None
    shares: dict[str, float] = field(default_factory=dict)  # cause -> share of the loss; what is missing to 1 is unexplained
    lost_s: float | None = None  # GPU seconds lost among those booked with this feed; None if no GPU is measured
    whole_s: float = 0.0  # GPU seconds booked with this feed, lost or not
    booked: list[tuple[int, float, float]] = field(default_factory=list)
    """(t_ns, GPU seconds, lost GPU seconds) booked with this feed; seconds of a shared GPU are divided among its trainers."""

    @property
    def troubled(self) -> bool:
        """True if something is wrong, or at least worth an entry."""
        return self.cause != "none"

    @property
    def fault(self) -> bool:
        """True if the trouble calls for action."""
        return self.culpable > 0.0

    @property
    def culpable(self) -> float:
        """Upper bound of the share of time lost by a fault. A pause counts only as far as it repeats; of unexplained loss, light kernels do
        not count, for they may be all that there is to do."""
        if not self.troubled:
            return 0.0
        if self.cause == "unexplained" and "light" in self.job.gpu_use.waste:
            return idle if (idle := self.job.idle or 0.0) >= policy.LOST else 0.0
        if self.judge is None or self.judge.fault:
            return 1.0
        return self.job.pauses.repeated.share if self.cause == "pause" and self.job.pauses.repeated is not None else 0.0

    @property
    def unexplained(self) -> float:
        """Share of the loss that no cause holds."""
        return max(0.0, 1.0 - sum(self.shares.values()))

    @property
    def margin(self) -> float:
        """Share of the loss by which the cause leads the next one, the unexplained part included."""
        others = [share for cause, share in self.shares.items() if cause != self.cause]
        return self.shares.get(self.cause, 0.0) - max(*others, self.unexplained, 0.0)

    @property
    def near(self) -> str | None:
        """The cause that holds nearly as much of the loss, if there is one."""
        own = self.shares.get(self.cause, 0.0)
        found = max((one for one in self.shares if one != self.cause), key=self.shares.__getitem__, default="")
        return found if self.judge is not None and found and own - self.shares[found] < policy.NEAR else None

    @property
    def rival(self) -> str | None:
        """Second cause that it may be: `near`, or ``unexplained``; for an unexplained loss, the cause that holds most, or empty.
        None if the cause is clear."""
        if self.near is not None:
            return self.near
        if self.cause == "unexplained" and not self.hangs:
            return max((one for one in self.shares if one != self.cause), key=self.shares.__getitem__, default="")
        own = self.shares.get(self.cause, 0.0)
        return "unexplained" if self.judge is not None and not self.bereft and own - self.unexplained < policy.NEAR else None

    @property
    def hangs(self) -> bool:
        """True if nothing of the job moves and no phase explains that."""
        return self.job.hang is not None and not self.phase.headline

    @property
    def bereft(self) -> bool:
        """True if the job cannot go on because one of its GPUs, or one of its training's, is lost."""
        return self.cause == GPU_LOST

    @property
    def trainer_pid(self) -> int:
        """Pid of the trainer that the trouble belongs to. Peers that wait for a straggler have the straggler's; if that rank has ended, the
        lowest pid of the training."""
        if (hang := self.job.hang) is not None and self.judge is None:
            return (hang.late or hang.family)[0].trainer.pid
        if self.cause != "straggler-rank":
            return self.job.trainer.pid
        slow = self.job.ranks.straggler
        return slow.pid if slow is not None and not self.job.ranks.absent else min(self.job.ranks.kin or {self.job.trainer.pid})

    @property
    def lost_pct(self) -> float | None:
        return None if self.job.lost is None else round(100 * self.job.lost, 1)

    @cached_property
    def familiar(self) -> bool:
        """True if the rules were made with jobs of this kind."""
        return kind_of(self.job, self.facts) in LEARNT

    @property
    def clearness(self) -> float:
        """Confidence, 0 to 1, by the window's length; in trouble also by the states' confidence and the cause's share of the loss."""
        if self.phase.books == HELD:
            return 0.0
        if self.cause == "unexplained":
            return 0.3
        if self.hangs and self.job.hang is not None:
            return 0.9  # the standstill is measured; the awaited process is read from system calls
        held = self.job.trainer.state.confidence * min(1.0, 0.4 + self.shares.get(self.cause, 0.0)) if self.troubled else 1.0
        return round(held * min(1.0, self.facts.seconds / policy.FULL_S), 2)

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict in words, with evidence and fixes."""
        return _worded(self)


def promised(fixes: Iterable[Fix], familiar: bool, severity: str) -> tuple[Fix, ...]:
    """The fixes that may be given at a severity: a slight loss of an unfamiliar program is no reason to change anything, only to look."""
    return tuple(fix for fix in fixes if fix.look or familiar or severity not in _SLIGHT)


def judge_job(job: WalkedJob, facts: WalkedFacts, before: Phase | None) -> Standing:
    """The standing of a job after the phase ``before``. If the new phase is no verdict itself, it names the cause that holds most of the
    loss."""
    seen = Seen(job, facts)
    phase, named = phase_of(seen, before), seen.named
    shares = {claim.cause: claim.share for claim in job.claims} if phase.books == BOOKED else {}
    if gpu_lost.lost_of(job, facts):
        return Standing(job, facts, phase, gpu_lost.JUDGE.symptom, GPU_LOST, gpu_lost.JUDGE, {GPU_LOST: 1.0})
    if phase.headline:
        return Standing(job, facts, phase, phase.symptom, shares=shares)
    cause, symptom = "unexplained", "input-bound" if job.data >= policy.HALF * (job.idle or 1.0) else "wait-heavy"
    if job.gpu_use.waste.get("light", 0.0) > (job.idle or 0.0):
        symptom = "comm-bound" if _all_in_collectives(job, facts) else "busy-not-working"
    elif has_peers(job) and job.pools.get("main.network", 0.0) >= policy.HALF:  # unexplained: for its ranks, without a late one
        symptom = "comm-bound"
    if (hang := job.hang) is not None:
        if named is None or not (named.explains_hangs and hang.cause == "hung-worker" and len(hang.family) == 1):
            named = seen.strongest if job.ranks.absent else None  # otherwise a judge is more precise
        cause = hang.cause if named is None else named.cause
        symptom = "straggler" if cause == "straggler-rank" else "input-bound" if job.workers else "wait-heavy"
        shares = {cause: 1.0}
    if named is None:
        return Standing(job, facts, phase, symptom, cause, shares=shares)
    return Standing(job, facts, phase, named.felt(job) if named.felt else named.symptom, named.cause, named, shares)


def _all_in_collectives(job: WalkedJob, facts: WalkedFacts) -> bool:
    """True if the GPUs of all ranks here run kernels on few SMs without a pause, as that of a collective does until its data have come."""
    ranks = [one for one in facts.jobs if one is job or one.trainer.pid in job.ranks.kin]
    return all(in_kernel(one) and one.ranks.straggler is None for one in ranks)


def _worded(one: Standing) -> Verdict:
    job = one.job
    gpu = _worst(job)
    if one.judge is not None:
        finding = one.judge.tell(job, one.facts)
    elif one.hangs and job.hang is not None:
        finding = hangs.tell(job.hang, one.facts)
    else:
        finding = unexplained.tell(job) if one.troubled else Finding("")
    finding = finding if one.near is None else _with_near(one, one.near, finding)
    finding = traced.checked(finding, job, one.cause, one.symptom) if one.troubled else finding
    why = one.phase.headline or _why(one)
    headline = one.phase.headline or _headline(one, gpu, why)
    victims = _victims(job, one.facts, finding) if one.troubled else ()
    path = _path(one, finding) if one.troubled else ()
    regain = None if job.lost is None or one.cause in ("none", "unexplained") else job.lost * one.shares.get(one.cause, 0.0)
    return Verdict(
        symptom=one.symptom, cause=one.cause, gpu=None if gpu is None else gpu.index, lost_pct=one.lost_pct, headline=headline,
        detail=finding.detail, severity=_loudness(one), confidence=_confidence(one, path), evidence=finding.evidence,
        fixes=promised(finding.fixes, one.familiar, _loudness(one)), near=one.near,
        next_test=_next_test(one),
        culprits=finding.culprits, victims=victims, trainer_pid=one.trainer_pid, why=why, path=path,
        regain_gpu_s=None if regain is None else round(regain * one.facts.seconds * len(job.gpus), 3),
        speedup_max=None if regain is None else speedup_max(regain + (job.lost or 0.0) * one.unexplained, 1.0),
        requests=requests_of(job, one.facts, one.cause, path, finding.culprits),
    )  # fmt: skip


def _with_near(one: Standing, near: str, finding: Finding) -> Finding:
    """The finding, with the cause that holds nearly as much."""
    own, other = one.shares.get(one.cause, 0.0), one.shares[near]
    detail = filled(
        "{}; or {}, which holds {:.0f}% of the loss, and {} {:.0f}%", finding.detail, near, 100 * other, one.cause, 100 * own
    )
    return replace(finding, detail=detail)


def _next_test(one: Standing) -> Fix | None:
    """The next test, where another cause holds nearly as much of the loss, or nearly as much of it is unexplained."""
    if (rival := one.rival) is None:
        return None
    return next_test(Doubt(one.cause, rival, one.job.trainer.pid, one.facts.probed, one.facts.watched_s, one.job.trace is not None))


def _path(one: Standing, finding: Finding) -> tuple[PathStep, ...]:
    """The walk to the cause; for an unexplained loss, the way with most of the loss."""
    job, facts = one.job, one.facts
    if one.bereft:
        return gpu_lost.path_of(gpu_lost.lost_of(job, facts)[0])
    if one.judge is None and one.hangs and job.hang is not None:
        return of_hang(job.hang)
    return walk(job, facts, "" if one.judge is None else one.cause, finding.culprits)


def _confidence(one: Standing, path: tuple[PathStep, ...]) -> float:
    """The value of `Verdict.confidence`."""
    if not path or one.cause == "unexplained":
        return one.clearness
    sure = 1.0
    if one.judge is not None and not one.bereft:
        sure = certainty(one.margin) * (1.0 if one.familiar else policy.UNLEARNT)
    measured = confidence(path) * sure
    check = None if one.job.trace is None else one.job.trace.check_of(one.cause, one.symptom)
    if check is not None:  # torch measured the same share from within
        measured = 1.0 - policy.DOUBT_LEFT * (1.0 - measured) if check.agrees else policy.DOUBT_LEFT * measured
    return round(measured * min(1.0, one.facts.seconds / policy.FULL_S), 2)


def _loudness(one: Standing) -> str:
    """Severity of the moment; an incident's own severity counts the seconds lost."""
    if one.bereft or one.hangs:
        return "high"
    if not one.fault:
        return "info"
    lost = min(one.job.lost or 0.0, one.culpable)
    return "high" if lost >= policy.HALF else "medium" if lost >= policy.QUARTER else "low"


_WHY = {
    "input-bound": "waits for its data",
    "idle": "pauses",
    "transfer-bound": "copies to the GPU",
    "wait-heavy": "waits",
    "straggler": "waits for a slower rank",
    "comm-bound": "waits for other ranks, of which none is late",
    "compute-bound": "is limited by the GPU's clocks",
    "busy-not-working": "keeps the GPU busy with little work",
}

_OWN_DOING = ("main-thread-preprocessing", "gil-contention", "slow-transform")
"""Causes within the trainer itself; in other input-bound causes something else keeps its main thread."""


def _headline(one: Standing, gpu: GpuFacts | None, why: str) -> str:
    job, facts = one.job, one.facts
    if gpu is None or job.lost is None:
        loss = host_side_loss(job)
        share = job.data if job.data >= policy.HALF * loss else loss
        return filled("{} {:.0f}% of the time (no GPU is measured: host side only)", why, 100 * share)
    apart = gpu.lost is not None and gpu.lost - job.lost >= policy.TENTH
    worst = filled(" (GPU {}: {:.0f}%)", gpu.name, 100 * (gpu.lost or 0.0)) if apart else ""
    return filled(
        "{} lost {:.0f}%{} of the last {:.0f} s: {}", of_gpus({one.name for one in job.gpus}), 100 * job.lost, worst, facts.seconds, why
    )


def _why(one: Standing) -> str:
    """Words for the trainer and its effect on its GPU, or the GPU's loss on it."""
    if one.hangs and one.job.hang is not None and not one.job.ranks.absent and not one.bereft:
        return hangs.told(one.job.hang, one.facts.t_ns)
    return filled("{} ({}) {}", one.job.trainer.role.label, one.job.trainer.pid, _does(one))


def _does_among_ranks(job: WalkedJob) -> str:
    """Words for a rank that is late, or waits for one that has ended; empty for another one."""
    ranks = job.ranks
    if ranks.absent:
        return "waits for a rank that has ended"
    if ranks.part is not None and ranks.parallel is not None and is_in_slow_part(job):
        return filled("computes {}, which takes longer than the others", parts.name_of(ranks.part, ranks.parallel))
    if ranks.straggler is job.trainer:
        return "is late now, as other ranks are by turns" if ranks.by_turns else "is slower than the other ranks, which wait for it"
    return ""


def _does(one: Standing) -> str:
    job, idle = one.job, one.job.idle or 0.0
    if one.bereft:
        return filled("cannot go on, for another rank's {}", gpu_lost.told(gpu_lost.lost_of(job, one.facts)[0]))
    if one.symptom == "straggler" and (does := _does_among_ranks(job)):
        return does
    if one.cause == "small-kernels" and idle >= policy.SOME:
        return "launches its kernels too slowly to keep it busy"
    if one.phase.loads_ns:
        return filled("makes no steps yet: {}", starting.loading(job, one.facts))
    if one.cause in ("slow-wire", "comm-fallback"):
        return "waits for data on their way between its ranks"
    if one.cause == "gpu-shared":
        return "waits while others' kernels run on its GPU"
    if one.symptom == "comm-bound" and one.cause == "unexplained" and "light" in job.gpu_use.waste:
        return "seems to wait for other ranks, in kernels that use few SMs"
    if one.cause == "host-optimizer":
        return "updates on the CPU what its GPU waits for"
    if one.cause == "output-blocked":
        return "waits for its server, whose log is not read" if logging(job) is not None else "waits until its output is read"
    if one.cause in _OWN_DOING and job.is_supplied:
        return _feels(one) if _waits_for_others(one) else "itself keeps it waiting"
    if one.cause == "undersized-work" and one.symptom == "wait-heavy":
        return "works them one after the other" if work_apart(job) else "leaves some without work while others compute"
    if one.cause == "pause" and job.pauses.repeated is not None:
        return filled("{} again and again", _feels(one))
    if one.symptom == "input-bound" and one.cause not in ("hung-worker", "unexplained") and job.is_supplied and not job.feeders.pids:
        return "feeds it too slowly"
    if one.cause == "unexplained" and one.symptom not in ("comm-bound", "busy-not-working"):
        return "waits for an unknown reason"
    return _feels(one)


def _feels(one: Standing) -> str:
    """The symptom as a verb; a wait for data is marked as inferred if its object cannot be read."""
    if one.symptom == "transfer-bound" and copies_back(one.job):
        return "copies from the GPU"
    guessed = one.symptom == "input-bound" and one.job.trainer.state.inferred
    return "probably waits for its data" if guessed else _WHY[one.symptom]


def _waits_for_others(one: Standing) -> bool:
    """True if the main thread waits for input of other processes that are neither workers nor programs that it asks between steps."""
    pools = {pool: share for pool, share in one.job.pools.items() if pool.startswith("main.")}
    fed = pools.get("main.pipe", 0.0) + pools.get("main.poll", 0.0)
    through = 2 * fed > sum(pools.values()) and not feeders.threads_at_work(one.job) and not asks_programs(one.job)
    return one.cause != "gil-contention" and (through or bool(feeders.at_work_for(one.job, one.facts)))


def _victims(job: WalkedJob, facts: WalkedFacts, finding: Finding) -> tuple[Victim, ...]:
    """Processes of the job that suffered; in a training of several ranks also the other ranks, although the late one is named."""
    starving = {worker.pid for worker in job.workers if worker.state.starving} or {job.trainer.pid}
    chosen = starving if finding.victims is None else set(finding.victims)
    jobs = [job, *(other for other in facts.jobs if other is not job and other.trainer.pid in job.ranks.kin)]
    procs = [proc for one in jobs for proc in (one.trainer, *one.workers) if proc.pid in chosen]
    return tuple(Victim(proc.pid, proc.role.kind, proc.role.label) for proc in procs)


def _worst(job: WalkedJob) -> GpuFacts | None:
    """The GPU that lost most (the first one without readings); None without a GPU."""
    return max(job.gpus, key=lambda gpu: -1.0 if gpu.lost is None else gpu.lost, default=None)


def without_job(facts: WalkedFacts) -> Verdict:
    """Verdict for a host without a training, from GPUs and host."""
    busiest = max(facts.unseen, key=lambda gpu: gpu.util or 0.0, default=None)
    if busiest is not None and (busiest.util or 0.0) >= policy.TENTH:
        return _for_unseen(busiest, facts)
    if facts.gpus:
        return Verdict("idle", "none", headline="No training process on this host")
    if facts.unanswered:
        return Verdict(headline="The NVIDIA driver has not answered yet: which GPUs there are is not known")
    busy = sum(facts.host.busy.values())
    used = filled("; the host uses {:.1f} of {} CPUs", busy, facts.host.cpus) if facts.host.busy else ""
    return Verdict("idle", "none", headline=filled("No GPU and no training process{}", used))


def _for_unseen(gpu: GpuFacts, facts: WalkedFacts) -> Verdict:
    """Verdict for a busy GPU without a visible training (a container without ``--pid=host``, say). Hidden processes are not judged, but a
    GPU that draws no more power than at rest while it is busy is reported."""
    reason, remedy = facts.hidden
    listed = ", ".join(map(str, sorted(gpu.pids)[:3]))
    here = filled("the driver lists {}, of which none is here", listed) if listed else "the driver lists none of them"
    ask = Fix(remedy) if remedy else Fix("See which processes hold the GPUs' device files", "sudo fuser -v /dev/nvidia*", look=True)
    detail, share = filled("{} ({})", remedy, reason) if remedy else filled("{} names them; {}", ask.command, here), 100 * (gpu.util or 0.0)
    if not _is_at_rest(gpu):
        headline = filled("GPU {} works {:.0f}% of the time for processes that cannot be seen from here", gpu.index, share)
        return Verdict(LOOKING, "none", gpu.index, headline=headline, detail=detail, fixes=(ask,))
    drawn = filled(" ({:.0f} W)", gpu.power_w) if gpu.power_w is not None else ""
    reset = Fix("Reset it if no process holds it", filled("sudo nvidia-smi --gpu-reset -i {:d}", gpu.index))
    evidence = (
        Evidence("gpu_busy_share", round(gpu.util or 0.0, 3), "", "share of the window in which the driver calls it busy"),
        Evidence("power_w", None if gpu.power_w is None else round(gpu.power_w, 1), "W", "drawn"),
    )
    return Verdict(
        "busy-not-working", "none", gpu.index, severity="low", evidence=evidence, detail=detail,
        headline=filled("GPU {} is busy {:.0f}% of the time by the driver, and draws no more than at rest{}: no work is seen on it",
                        gpu.index, share, drawn),
        fixes=(ask,) if remedy or listed else (ask, reset),
    )  # fmt: skip


def _is_at_rest(gpu: GpuFacts) -> bool:
    """True if the GPU draws no more power than without work, or its driver lowers the clocks because nothing runs. SM activity of GPM takes
    precedence."""
    if gpu.sm_active is not None:
        return gpu.sm_active < policy.HARDLY
    by_power = gpu.power_w is not None and bool(gpu.power_limit_w) and gpu.power_w <= policy.IDLE_POWER * (gpu.power_limit_w or 0.0)
    return by_power or bool(gpu.throttle_mask & CLOCKS_IDLE)
