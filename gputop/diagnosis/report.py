"""What was found in a stretch of time: the objects that `gputop explain --json` prints, `gputop.open` gives, and recordings keep.

They are made of the engine's findings by `explanation`, rounded to ms. Also: sentences in less room (`brief`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from gputop.diagnosis import policy
from gputop.diagnosis.measure.points import WINDOW_NS
from gputop.diagnosis.model import (
    CAUSES,
    GROWTHS,
    LOOKING,
    SEVERITIES,
    Culprit,
    Evidence,
    Fix,
    Incident,
    Ledger,
    PathStep,
    Regain,
    Step,
    Verdict,
    Victim,
    WhatIf,
)
from gputop.model.frame import Header, ProcInfo
from gputop.model.identity import identity_of
from gputop.model.roles import Role

SCHEMA = 1
MOST_TRAINED = 64  # trainers that an explanation names, 1 KB each; a choice

Severity = Annotated[str, Meta(pattern=rf"\A({'|'.join(SEVERITIES)})\Z")]
"""One of `SEVERITIES`: whoever reads an explanation from a file may rely on it."""


class StepMs(Struct, frozen=True):
    """A step's milliseconds, by what the trainer's main thread spends them on."""

    input_wait: float
    transfer: float
    compute: float
    gpu_wait: float
    other: float


class Said(Struct, frozen=True):
    """The verdict on the whole stretch, in words of `gputop.diagnosis.model`; the step is the mean of all that was looked at."""

    symptom: str | None  # None: nothing could be judged; the headline says why
    cause: str
    headline: str
    detail: str
    steps_per_s: float | None
    step_ms: StepMs | None  # what a step is made of
    path: list[PathStep]  # to the cause, of its worst incident; empty where nothing is wrong
    regain_gpu_s: float | None  # GPU seconds that would come back without the cause, of all that was looked at
    speedup_max: float | None  # upper bound of how much faster the work gets without it; None: not known, or hardly any work was done


class Booked(Struct, frozen=True):
    """GPU seconds observed and lost, and the lost ones by cause. None: no GPU was measured."""

    gpu_total_s: float | None
    gpu_lost_s: float | None
    by_cause: dict[str, float]
    regain: list[Regain]  # each cause but ``unexplained``, most first
    speedup_max: float | None  # without all of these: their seconds add up, their factors must not be multiplied

    @property
    def lost_share(self) -> float | None:
        """Lost share of the GPU time, 0 to 1; None where no GPU was measured."""
        return None if not self.gpu_total_s or self.gpu_lost_s is None else self.gpu_lost_s / self.gpu_total_s

    @property
    def cause_shares(self) -> dict[str, float]:
        """Cause -> lost share of the GPU time; empty where no GPU was measured."""
        total = self.gpu_total_s
        return {cause: seconds / total for cause, seconds in self.by_cause.items() if seconds} if total else {}


class Episode(Struct, frozen=True):
    """An incident."""

    id: int
    start_unix_s: float
    end_unix_s: float | None  # None: it lasts
    symptom: str
    cause: str
    severity: Severity
    confidence: float  # how much of the path was measured: see `gputop.diagnosis.path.confidence`
    trainer_pid: int | None
    gpu: int | None
    gpu_lost_s: float
    regain_gpu_s: float | None  # the same, where several train on a GPU divided among them; None: no GPU measured, or unexplained
    speedup_max: float | None  # as in `Said`, over the incident's own time
    headline: str
    detail: str
    victims: list[Victim]
    culprits: list[Culprit]
    evidence: list[Evidence]
    fixes: list[Fix]
    path: list[PathStep]  # of the moment that the headline tells of


class Account(Struct, frozen=True):
    """GPU seconds of one trainer; those of all sum to `Booked`."""

    gpu_total_s: float
    gpu_lost_s: float
    by_cause: dict[str, float]


class Trained(Struct, frozen=True):
    """A trainer, one that has ended too."""

    pid: int
    name: str  # as on the screen: ``train.py rank 3``
    rank: int | None
    identity: dict[str, str | dict[str, str] | None]  # as `gputop.model.identity.Identity`: container, pod, Slurm job, training …
    ledger: Account | UnsetType | None = UNSET  # None: no GPU is measured; unset: of a part of what was looked at it is not known


class Explanation(Struct, frozen=True):
    """All that was found: what `gputop explain --json` prints."""

    schema: int
    verdict: Said
    ledger: Booked
    workers: dict[str, float]  # share of all workers' time in each of `WORKER_STATES`, most first; empty where there were none
    incidents: list[Episode]
    what_if: list[WhatIf]  # of the verdict's trainer, those that bring most first; empty where it was not seen to train
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
    return Explanation(
        schema=SCHEMA, verdict=_verdict(verdict, ledger, worst), ledger=booked(ledger),
        workers={word: round(share, 4) for word, share in shares(workers).items()},
        incidents=[episode(incident, header) for incident in incidents], what_if=[*what_if(verdict if worst is None else worst)],
        trainers=[_trained(role, info, header.host, own) for role, info, own in trainers],
    )  # fmt: skip


def _trained(role: Role, info: ProcInfo, host: str, own: Ledger | None) -> Trained:
    return Trained(info.pid, role.label, role.rank, asdict(identity_of(info, host)), UNSET if own is None else account(own))


def account(own: Ledger) -> Account | None:
    """A trainer's ledger; None where no GPU is measured."""
    if not own.gpu_total_s:
        return None
    by_cause = {cause: round(lost_s, 3) for cause, lost_s in own.by_cause.items()}
    return Account(round(own.gpu_total_s, 3), round(own.gpu_lost_s, 3), by_cause)


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
    told = verdict if worst is None else worst
    symptom, cause, headline, detail, path = told.symptom, told.cause, told.headline, told.detail, [*told.path]
    if worst is None and of_the_end and total_s > 0.0 and lost_s < 2 * policy.LOST * total_s:
        symptom, cause, path = "healthy", "none", []
        headline, detail = f"The GPU worked {100 - 100 * lost_s / total_s:.0f}% of the time", "no trouble lasted"
    regain = next((one for one in ledger.regains() if one.cause == cause), None)
    return Said(
        None if symptom == LOOKING else symptom, cause, headline, detail,
        None if verdict.step is None else round(verdict.step.per_s, 2), _step_ms(verdict.step), path,
        *((None, None) if regain is None else (round(regain.regain_gpu_s, 3), regain.speedup_max)),
    )  # fmt: skip


def _has_ended(verdict: Verdict) -> bool:
    """Whether nobody trains any more, and nothing is wrong with that: it says nothing of those who did."""
    return verdict.symptom == "idle" and verdict.trainer_pid is None and verdict.severity == "info"


def _step_ms(step: Step | None) -> StepMs | None:
    parts = () if step is None else (step.input_wait_ms, step.transfer_ms, step.compute_ms, step.gpu_wait_ms, step.other_ms)
    return StepMs(*(round(ms, 2) for ms in parts)) if parts else None


def booked(ledger: Ledger) -> Booked:
    """The ledger, rounded to ms."""
    if ledger.gpu_total_s == 0.0:
        return Booked(None, None, {}, [], None)
    order = {cause: i for i, cause in enumerate(CAUSES)}
    parts = {cause: round(ledger.by_cause[cause], 3) for cause in sorted(ledger.by_cause, key=lambda cause: order.get(cause, len(order)))}
    regain = [Regain(one.cause, round(one.regain_gpu_s, 3), one.speedup_max) for one in ledger.regains()]
    return Booked(round(ledger.gpu_total_s, 3), round(sum(parts.values()), 3), parts, regain, ledger.speedup_of_all())


def episode(incident: Incident, header: Header) -> Episode:
    """An incident, rounded to ms."""
    ends = (None if t_ns is None else round(header.unix_ns_of(t_ns) / 1e9, 3) for t_ns in (incident.start_ns, incident.end_ns))
    regain_s = incident.regain_gpu_s
    told = {name: getattr(incident, name) for name in Episode.__struct_fields__ if hasattr(incident, name)}
    lists = {name: [*told[name]] for name in ("victims", "culprits", "evidence", "fixes", "path")}
    start_unix_s, end_unix_s = ends
    return Episode(**told | lists | {
        "start_unix_s": start_unix_s, "end_unix_s": end_unix_s, "gpu_lost_s": round(incident.lost_s, 3),
        "regain_gpu_s": None if regain_s is None else round(regain_s, 3),
    })  # fmt: skip


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
