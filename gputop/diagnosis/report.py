"""What an engine found, as plain JSON-ready data: the contract of `gputop explain --json`; and its sentences in less room."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, TypedDict

from msgspec import Meta
from msgspec.structs import asdict

from gputop.diagnosis import policy
from gputop.diagnosis.measure.points import WINDOW_NS
from gputop.diagnosis.model import CAUSES, GROWTHS, LOOKING, SEVERITIES, Incident, Ledger, PathStep, Step, Verdict, WhatIf
from gputop.model.frame import Header, ProcInfo
from gputop.model.identity import identity_of
from gputop.model.roles import Role

SCHEMA = 1
MOST_TRAINED = 64  # trainers that an explanation names, 1 KB each; a choice

Severity = Annotated[str, Meta(pattern=rf"\A({'|'.join(SEVERITIES)})\Z")]
"""One of `SEVERITIES`: whoever reads an explanation from a file may rely on it."""


class Parts(TypedDict):
    """A step's milliseconds, by what the trainer's main thread spends them on."""

    input_wait: float
    transfer: float
    compute: float
    gpu_wait: float
    other: float


class StepOfPath(TypedDict):
    """One step of the walk from lost GPU time to its cause, as `gputop.diagnosis.model.PathStep` says."""

    pid: int | None
    name: str
    share: float  # of the step before it; of the first step, of the window
    state: str
    on: str
    measured: bool


class Said(TypedDict):
    """A verdict in words of `gputop.diagnosis.model`; the step is the mean of all that was looked at."""

    symptom: str | None  # none where nothing could be judged; the headline says why
    cause: str
    headline: str
    detail: str
    steps_per_s: float | None
    step_ms: Parts | None  # what a step is made of
    path: list[StepOfPath]  # to the cause, of its worst incident; empty where nothing is wrong
    regain_gpu_s: float | None  # GPU seconds that would come back without the cause, of all that was looked at
    speedup_max: float | None  # upper bound of how much faster the work gets without it; null: not known, or hardly any work was done


class Regained(TypedDict):
    """What would come back without a cause."""

    cause: str
    regain_gpu_s: float
    speedup_max: float | None  # as in `Said`


class Booked(TypedDict):
    """The ledger."""

    gpu_total_s: float | None
    gpu_lost_s: float | None
    by_cause: dict[str, float]
    regain: list[Regained]  # each cause but ``unexplained``, most first
    speedup_max: float | None  # without all of these: their seconds add up, their factors must not be multiplied


class Victim(TypedDict):
    """Who suffered."""

    pid: int
    role: str
    name: str


class Culprit(TypedDict):
    """Who is to blame."""

    pid: int
    name: str
    cpu_s: float | None


class Evidence(TypedDict):
    """What was measured."""

    metric: str
    value: float | None
    unit: str
    text: str


class Fix(TypedDict):
    """What to do."""

    text: str
    command: str


class Episode(TypedDict):
    """An incident."""

    id: int
    start_unix_s: float
    end_unix_s: float | None
    symptom: str
    cause: str
    severity: Severity
    confidence: float  # how much of the path was measured: see `gputop.diagnosis.path.confidence`
    trainer_pid: int | None
    gpu: int | None
    gpu_lost_s: float
    regain_gpu_s: float | None  # the same, where several train on a GPU divided among them; null: no GPU measured, or unexplained
    speedup_max: float | None  # as in `Said`, over the incident's own time
    headline: str
    detail: str
    victims: list[Victim]
    culprits: list[Culprit]
    evidence: list[Evidence]
    fixes: list[Fix]
    path: list[StepOfPath]  # of the moment that the headline tells of


class Prediction(TypedDict):
    """What a change would bring, as `gputop.diagnosis.model.WhatIf` says."""

    change: str
    factor: float | None
    low: float | None
    high: float | None
    assumes: str


class Account(TypedDict):
    """GPU seconds of one trainer; those of all sum to `Booked`."""

    gpu_total_s: float
    gpu_lost_s: float
    by_cause: dict[str, float]


class TrainedBefore(TypedDict):
    """What every recorder has told of a trainer."""

    pid: int
    name: str  # as on the screen: ``train.py rank 3``
    rank: int | None
    identity: dict[str, str | dict[str, str] | None]  # as `gputop.model.identity.Identity`: container, pod, Slurm job, training …


class Trained(TrainedBefore, total=False):
    """A trainer, those that have ended too."""

    ledger: Account | None  # null: no GPU is measured; absent: of a part of what was looked at it is not known


class Explanation(TypedDict):
    """What `gputop explain --json` prints."""

    schema: int
    verdict: Said
    ledger: Booked
    workers: dict[str, float]  # share of all workers' time in each of `WORKER_STATES`, most first; empty where there were none
    incidents: list[Episode]
    what_if: list[Prediction]  # of the verdict's trainer, those that bring most first; empty where it was not seen to train
    trainers: list[Trained]  # the last `MOST_TRAINED` that were seen, in their order


def explanation(
    verdict: Verdict,
    ledger: Ledger,
    incidents: list[Incident],
    workers: Mapping[str, float],
    header: Header,
    now_ns: int,
    what_if: Callable[[Verdict | Incident], Sequence[WhatIf]],
    trainers: Iterable[tuple[Role, ProcInfo, Ledger | None]] = (),
) -> Explanation:
    """The whole of it. The verdict is the cause that cost most over the stream, or lasted longest where no GPU is measured; where none
    cost enough, that nothing did."""
    worst = _dearest([one for one in incidents if one.cause not in GROWTHS], ledger, now_ns)
    return {
        "schema": SCHEMA,
        "verdict": _verdict(verdict, ledger, worst),
        "ledger": booked(ledger),
        "workers": {word: round(share, 4) for word, share in shares(workers).items()},
        "incidents": [episode(incident, header) for incident in incidents],
        "what_if": [_prediction(one) for one in what_if(verdict if worst is None else worst)],
        "trainers": [_trained(role, info, header.host, own) for role, info, own in trainers],
    }


def _trained(role: Role, info: ProcInfo, host: str, own: Ledger | None) -> Trained:
    told: Trained = {"pid": info.pid, "name": role.label, "rank": role.rank, "identity": asdict(identity_of(info, host))}
    if own is not None:
        told["ledger"] = account(own)
    return told


def account(own: Ledger) -> Account | None:
    """A trainer's ledger; None where no GPU is measured."""
    if not own.gpu_total_s:
        return None
    by_cause = {cause: round(lost_s, 3) for cause, lost_s in own.by_cause.items()}
    return {"gpu_total_s": round(own.gpu_total_s, 3), "gpu_lost_s": round(own.gpu_lost_s, 3), "by_cause": by_cause}


def shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Parts of the whole, most first."""
    total = sum(seconds.values())
    most_first = sorted(seconds.items(), key=lambda item: -item[1])
    return {word: part / total for word, part in most_first if part > 0.0}


def _dearest(incidents: list[Incident], ledger: Ledger, now_ns: int) -> Incident | None:
    """The worst incident of the cause that cost most in all; None where that is little and all losses together are not much."""
    costs: dict[str, float] = {}
    lasted: dict[str, float] = {}
    for incident in incidents:
        costs[incident.cause] = costs.get(incident.cause, 0.0) + incident.lost_s
        lasted[incident.cause] = lasted.get(incident.cause, 0.0) + _span_s(incident, now_ns)
    booked = {cause: ledger.by_cause.get(cause, 0.0) for cause in costs}
    cause = max(costs, key=lambda one: (booked[one], costs[one], lasted[one]), default="")
    found = [incident for incident in incidents if incident.cause == cause]
    counts = any(incident.severity in ("medium", "high") for incident in found) or _lasts(found, ledger, now_ns)
    total_s = ledger.gpu_total_s
    if not costs or (total_s > 0.0 and not counts and _is_little(costs[cause], ledger)):
        return None
    return max(found, key=lambda incident: (incident.lost_s, _span_s(incident, now_ns)))


def _lasts(incidents: list[Incident], ledger: Ledger, now_ns: int) -> bool:
    """Whether they were felt for a window and a good part of the time, however little the GPU lost before and after: that is what a screen
    would have shown."""
    span_s = sum(_span_s(incident, now_ns) for incident in incidents)
    cost_s = sum(incident.lost_s for incident in incidents)
    return span_s >= max(WINDOW_NS / 1e9, policy.QUARTER * ledger.gpu_total_s) and cost_s >= policy.LOST / 2 * span_s


def _is_little(cost_s: float, ledger: Ledger) -> bool:
    """Whether a cause is not worth naming: neither it nor all losses are much, nor is it most of a loss that is felt."""
    total_s, lost_s = ledger.gpu_total_s, ledger.gpu_lost_s
    most_of_it = lost_s >= policy.LOST * total_s and cost_s >= policy.HALF * lost_s
    return cost_s < policy.LOST * total_s and lost_s < 2 * policy.LOST * total_s and not most_of_it


def _span_s(incident: Incident, now_ns: int) -> float:
    return ((incident.end_ns or now_ns) - incident.start_ns) / 1e9


def _verdict(verdict: Verdict, ledger: Ledger, worst: Incident | None) -> Said:
    total_s, lost_s = ledger.gpu_total_s, ledger.gpu_lost_s
    of_the_end = verdict.cause != "none" or (total_s >= WINDOW_NS / 1e9 and (verdict.symptom == LOOKING or _has_ended(verdict)))
    if worst is not None:
        words, path = (worst.symptom, worst.cause, worst.headline, worst.detail), worst.path
    elif of_the_end and total_s > 0.0 and lost_s < 2 * policy.LOST * total_s:
        words, path = ("healthy", "none", f"The GPU worked {100 - 100 * lost_s / total_s:.0f}% of the time", "no trouble lasted"), ()
    else:
        words, path = (verdict.symptom, verdict.cause, verdict.headline, verdict.detail), verdict.path
    symptom, cause, headline, detail = words
    regain = next((one for one in ledger.regains() if one.cause == cause), None)
    pace = None if verdict.step is None else round(verdict.step.per_s, 2)
    return {
        "symptom": None if symptom == LOOKING else symptom, "cause": cause, "headline": headline, "detail": detail,
        "steps_per_s": pace, "step_ms": _parts(verdict.step), "path": _steps(path),
        "regain_gpu_s": None if regain is None else round(regain.gpu_s, 3), "speedup_max": None if regain is None else regain.speedup_max,
    }  # fmt: skip


def _has_ended(verdict: Verdict) -> bool:
    """Whether nobody trains any more, and nothing is wrong with that: it says nothing of those who did."""
    return verdict.symptom == "idle" and verdict.trainer_pid is None and verdict.severity == "info"


def _parts(step: Step | None) -> Parts | None:
    if step is None:
        return None
    return {
        "input_wait": round(step.input_wait_ms, 2), "transfer": round(step.transfer_ms, 2), "compute": round(step.compute_ms, 2),
        "gpu_wait": round(step.gpu_wait_ms, 2), "other": round(step.other_ms, 2),
    }  # fmt: skip


def _steps(path: Iterable[PathStep]) -> list[StepOfPath]:
    return [
        {"pid": one.pid, "name": one.name, "share": one.share, "state": one.state, "on": one.on, "measured": one.measured} for one in path
    ]


def _prediction(one: WhatIf) -> Prediction:
    return {"change": one.change, "factor": one.factor, "low": one.low, "high": one.high, "assumes": one.assumes}


def booked(ledger: Ledger) -> Booked:
    """The ledger, rounded to ms."""
    if ledger.gpu_total_s == 0.0:
        return {"gpu_total_s": None, "gpu_lost_s": None, "by_cause": {}, "regain": [], "speedup_max": None}
    order = {cause: i for i, cause in enumerate(CAUSES)}
    causes = sorted(ledger.by_cause, key=lambda cause: order.get(cause, len(order)))
    parts = {cause: round(ledger.by_cause[cause], 3) for cause in causes}
    return {
        "gpu_total_s": round(ledger.gpu_total_s, 3), "gpu_lost_s": round(sum(parts.values()), 3), "by_cause": parts,
        "regain": [
            {"cause": one.cause, "regain_gpu_s": round(one.gpu_s, 3), "speedup_max": one.speedup_max} for one in ledger.regains()
        ],
        "speedup_max": ledger.speedup_of_all(),
    }  # fmt: skip


def episode(incident: Incident, header: Header) -> Episode:
    """An incident, rounded to ms."""
    end_ns = incident.end_ns
    return {
        "id": incident.id,
        "start_unix_s": round(header.unix_ns_of(incident.start_ns) / 1e9, 3),
        "end_unix_s": None if end_ns is None else round(header.unix_ns_of(end_ns) / 1e9, 3),
        "symptom": incident.symptom,
        "cause": incident.cause,
        "severity": incident.severity,
        "confidence": incident.confidence,
        "trainer_pid": incident.trainer_pid,
        "gpu": incident.gpu,
        "gpu_lost_s": round(incident.lost_s, 3),
        "regain_gpu_s": None if incident.regain_gpu_s is None else round(incident.regain_gpu_s, 3),
        "speedup_max": incident.speedup_max,
        "headline": incident.headline,
        "detail": incident.detail,
        "victims": [{"pid": one.pid, "role": one.role, "name": one.name} for one in incident.victims],
        "culprits": [{"pid": one.pid, "name": one.name, "cpu_s": one.cpu_s} for one in incident.culprits],
        "evidence": [{"metric": one.metric, "value": one.value, "unit": one.unit, "text": one.text} for one in incident.evidence],
        "fixes": [{"text": one.text, "command": one.command} for one in incident.fixes],
        "path": _steps(incident.path),
    }


_PIDS = re.compile(r"\((\d+)((?:, \d+)+)(?: and (\d+) more)?\)")
_STARTS = r"(?: and (?:the [^,;()]+|what) (?:it starts|they start))?"
_NAMES = re.compile(rf"(\w[^,;()]* \(\d[^()]*\){_STARTS})((?:, (?:[^,;()]+ \(\d[^()]*\){_STARTS}|others|short-lived processes))+)")
_WORDS = re.compile(r" but not running| of the time| of the last \d+ s|(?<= for) its(?= data)")
_PID = re.compile(r" \(\d+(?: and \d+ more)?\)")  # a process's own, or how many more


def brief(text: str, room: int) -> str:
    """A sentence that is longer than ``room`` characters with what it can spare left out: further pids, further names, set phrases."""
    for pattern, instead in ((_PIDS, _fewer_pids), (_NAMES, _fewer_names), (_WORDS, lambda _: "")):
        if len(text) > room:
            text = pattern.sub(instead, text)
    return text


def without_pids(text: str) -> str:
    """The names alone."""
    return _PID.sub("", text)


def _fewer_pids(found: re.Match[str]) -> str:
    return f"({found[1]} and {found[2].count(',') + int(found[3] or 0)} more)"


def _fewer_names(found: re.Match[str]) -> str:
    count = len(_PID.findall(found[2]))
    return f"{found[1]} and {f'{count} more' if count == found[2].count(', ') else 'others'}"
