"""From a job's pools to its verdict: what the GPU experiences, and which cause holds most of the loss."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace

from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import GpuFacts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.model import Verdict
from gputop.diagnosis.model import Victim
from gputop.diagnosis.verdicts import Finding
from gputop.diagnosis.verdicts import Judge
from gputop.diagnosis.verdicts import judges

LOST = 0.15
"""Share of the window lost from which something is said to be wrong (TraceML: input wait warns from 10 %, critical from 20 %)."""
NAMED = 0.35
"""Share of the loss that a cause must hold to be named."""
WARM_UP_S = 30.0
"""A trainer this young whose GPU has not worked yet is starting, which is no fault."""


@dataclass(slots=True)
class Standing:
    """A job's verdict in this window, with what the ledger and the incidents need."""

    verdict: Verdict
    shares: dict[str, float]
    """Cause -> share of the loss; what is missing to 1 is unexplained."""
    fault: bool = True
    warming_up: bool = False
    lost_s: float | None = None
    """GPU seconds lost since the last feed, None where no GPU is measured."""

    @property
    def troubled(self) -> bool:
        """Something is wrong, or at least worth an entry."""
        return self.verdict.cause != "none"


def judge_job(job: JobFacts, facts: Facts) -> Standing:
    """Let every judge claim its part, then name the strongest."""
    claims = _claims(job, facts)
    shares = {judge.cause: share for judge, share in claims}
    if _warming_up(job):
        return Standing(_quiet(job, "idle", f"{job.trainer.role.label} ({job.trainer.pid}) is starting"), {}, False, True)
    if not facts.settled:
        return Standing(_quiet(job, "idle", f"{job.trainer.role.label} ({job.trainer.pid}): looking"), {}, False)
    if job.gpus and job.idle is None and not job.host_only:
        return Standing(_quiet(job, "idle", f"{job.trainer.role.label} ({job.trainer.pid}): no fresh reading of its GPU"), {}, False)
    suffers = job.lost if job.lost is not None else 1.0 - job.trainer.state.fractions.get("computing", 0.0)
    if suffers < LOST:
        return Standing(_healthy(job), shares, False)
    judge, share = max(claims, key=_share, default=(None, 0.0))
    if judge is None or share < NAMED:
        return Standing(_unexplained(job), shares)
    return Standing(_verdict(job, facts, judge, share), shares, judge.fault)


def _claims(job: JobFacts, facts: Facts) -> list[tuple[Judge, float]]:
    """(judge, share of the loss), each pool given out at most once."""
    left = dict(job.pools)
    found = []
    for judge in judges():
        held = 0.0
        for pool, part in judge.claim(job, facts).items():
            taken = left.get(pool, 0.0) * part
            left[pool] = left.get(pool, 0.0) - taken
            held += taken
        if held > 0.0:
            found.append((judge, held))
    return found


def _share(pair: tuple[Judge, float]) -> float:
    return pair[1]


def _warming_up(job: JobFacts) -> bool:
    return bool(job.gpus) and not any(gpu.worked_before for gpu in job.gpus) and job.age_s < WARM_UP_S


def _verdict(job: JobFacts, facts: Facts, judge: Judge, share: float) -> Verdict:
    finding = judge.tell(job, facts)
    gpu = _worst(job)
    lost = job.lost
    confidence = job.trainer.state.confidence * min(1.0, 0.4 + share) * min(1.0, facts.seconds / 2.0)
    return Verdict(
        judge.symptom, judge.cause, None if gpu is None else gpu.index, None if lost is None else round(100 * lost, 1),
        _headline(job, judge.symptom, facts), finding.detail, "medium" if judge.fault else "info", round(confidence, 2),
        finding.evidence, finding.fixes, finding.culprits, _victims(job, finding), job.trainer.pid, job.steps_per_s,
    )  # fmt: skip


_WHY = {
    "input-bound": "waits for its data",
    "idle": "pauses",
    "transfer-bound": "copies to the GPU",
    "wait-heavy": "waits",
    "straggler": "waits for a slower rank",
    "compute-bound": "is limited by the GPU's clocks",
    "busy-not-working": "keeps the GPU busy with little work",
}


def _headline(job: JobFacts, symptom: str, facts: Facts) -> str:
    trainer = f"{job.trainer.role.label} ({job.trainer.pid})"
    gpu = _worst(job)
    if gpu is None or job.lost is None:
        return f"{trainer} {_WHY.get(symptom, symptom)} {100 * job.data:.0f}% of the time (no GPU is measured: host side only)"
    return f"GPU {gpu.index} lost {100 * (gpu.lost or 0.0):.0f}% of the last {facts.seconds:.0f} s: {trainer} {_WHY.get(symptom, symptom)}"


def _victims(job: JobFacts, finding: Finding) -> tuple[Victim, ...]:
    starving = {worker.pid for worker in job.workers if worker.state.starving}
    chosen = starving if finding.victims is None else set(finding.victims)
    procs = [proc for proc in (job.trainer, *job.workers) if proc.pid in chosen]
    return tuple(Victim(proc.pid, proc.role.kind, proc.role.label) for proc in procs)


def _worst(job: JobFacts) -> GpuFacts | None:
    return max((gpu for gpu in job.gpus if gpu.lost is not None), key=_lost_of, default=None)


def _lost_of(gpu: GpuFacts) -> float:
    return gpu.lost or 0.0


def _quiet(job: JobFacts, symptom: str, headline: str) -> Verdict:
    gpu = _worst(job) or next(iter(job.gpus), None)
    lost = None if job.lost is None else round(100 * job.lost, 1)
    return Verdict(
        symptom, "none", None if gpu is None else gpu.index, lost, headline, confidence=job.trainer.state.confidence,
        trainer_pid=job.trainer.pid, steps_per_s=job.steps_per_s,
    )  # fmt: skip


def _healthy(job: JobFacts) -> Verdict:
    trainer = f"{job.trainer.role.label} ({job.trainer.pid})"
    if job.lost is None:
        return _quiet(job, "healthy", f"{trainer} computes; no GPU is measured (host side only)")
    return _quiet(job, "healthy", f"{trainer} keeps its GPU working {100 * (1 - job.lost):.0f}% of the time")


def _unexplained(job: JobFacts) -> Verdict:
    trainer = f"{job.trainer.role.label} ({job.trainer.pid})"
    symptom = "input-bound" if job.data >= 0.5 * (job.lost or 1.0) else "wait-heavy"
    verdict = _quiet(job, symptom, f"{trainer}: GPU time is lost, and what was measured does not say why")
    return replace(verdict, cause="unexplained", severity="low", confidence=0.3)


def without_job(facts: Facts) -> Verdict:
    """Nobody trains here: say what can be said, of GPU and host."""
    if facts.gpus:
        return Verdict("idle", "none", headline="No training process on this host")
    busy = sum(facts.host.busy.values())
    return Verdict("idle", "none", headline=f"No GPU and no training process; the host uses {busy:.1f} of {facts.host.cpus} CPUs")
