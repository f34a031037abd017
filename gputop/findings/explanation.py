"""Findings in a stretch of time: the objects that `gputop explain --json` prints, `gputop.open` returns, and recordings keep.

`explanation` makes them from the engine's findings, rounded to ms. Also: shorter sentences (`brief`).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict, replace

from gputop.findings import policy, runs
from gputop.findings.policy import WINDOW_NS
from gputop.findings.runs import Run
from gputop.findings.sentence import PATH, commanded, filled, is_own, name, said
from gputop.findings.trouble import costs_time
from gputop.findings.verdict import (
    CAUSES,
    GROWTHS,
    LINK_ERRORS,
    LOOKING,
    OWN_CAUSES,
    SLOWER,
    Cause,
    CauseWord,
    Culprit,
    Evidence,
    Fix,
    Incident,
    Ledger,
    PathStep,
    Regain,
    Requests,
    SeverityWord,
    Step,
    Symptom,
    SymptomWord,
    Url,
    Verdict,
    Victim,
    WhatIf,
    page_of,
)
from gputop.model.frame import Header, ProcInfo
from gputop.model.identity import identity_of
from gputop.model.ranges import Count, Gpus, Number, Pid, Ranks, Seconds, Share, Times, UnixSeconds
from gputop.model.roles import Role
from gputop.model.trace import TracedJob
from gputop.system.text import clean

SCHEMA = 1
MOST_TRAINED = 64  # trainers that an explanation names, 1 KB each; a choice
MOST_INCIDENTS = 100_000  # incidents that are read: one each half a minute for a month; a choice
MOST_STAGES = 16  # parts of the way of a request that are read; there are 8, and a quota or a second taker of the CPUs
_FEW, _MANY = Meta(max_length=256), Meta(max_length=4096)  # items in a list of one incident or one trainer


class StepMs(Struct, frozen=True):
    """A step's milliseconds, by what the trainer's main thread spends them on."""

    input_wait: Number
    transfer: Number
    compute: Number
    gpu_wait: Number
    other: Number


class Said(Struct, frozen=True):
    """The verdict on the whole stretch, in words of `gputop.findings.verdict`; the step is the mean of all that was looked at."""

    symptom: Symptom | None  # None: nothing could be judged; the headline has the reason
    cause: Cause
    headline: str
    detail: str
    steps_per_s: Times | None
    step_ms: StepMs | None  # what a step is made of
    path: Annotated[list[PathStep], _FEW]  # to the cause, of its worst incident; empty where nothing is wrong
    regain_gpu_s: Seconds | None  # GPU seconds that would come back without the cause, of all that was looked at
    speedup_max: Times | None
    """Upper bound of how much faster the work gets without it, as in its worst incident; None: not known, or hardly any work was done."""
    help_url: Url = ""  # of the page about the cause; empty: there is none
    next_test: Fix | None = None  # the cheapest test that distinguishes it from the next best cause; None: it is clear


class Booked(Struct, frozen=True):
    """GPU seconds observed and lost, and the lost ones by cause. None: no GPU was measured."""

    gpu_total_s: Seconds | None
    gpu_lost_s: Seconds | None
    by_cause: Annotated[dict[Cause, Seconds], _FEW]
    regain: Annotated[list[Regain], _FEW]  # each cause but ``unexplained``, most first
    speedup_max: Times | None  # without all of them: their seconds add up, their factors must not be multiplied
    gpu_idle_s: Seconds | None = None  # besides the total: GPUs were not meant to work, as in a start or without requests

    @property
    def lost_share(self) -> float | None:
        """Lost share of the GPU time, 0 to 1; None if no GPU was measured."""
        return None if not self.gpu_total_s or self.gpu_lost_s is None else self.gpu_lost_s / self.gpu_total_s

    @property
    def cause_shares(self) -> dict[str, float]:
        """Cause -> lost share of the GPU time; empty if no GPU was measured."""
        total = self.gpu_total_s
        return {cause: seconds / total for cause, seconds in self.by_cause.items() if seconds} if total else {}


class Episode(Struct, frozen=True):
    """An incident."""

    id: Count
    start_unix_s: UnixSeconds
    end_unix_s: UnixSeconds | None  # None: it lasts
    symptom: SymptomWord
    cause: CauseWord
    severity: SeverityWord
    confidence: Share  # how sure the cause is: see `gputop.findings.verdict.Verdict.confidence`
    trainer_pid: Pid | None
    gpu: Gpus | None
    gpu_lost_s: Seconds
    regain_gpu_s: Seconds | None  # like ``gpu_lost_s``, but a shared GPU's are divided; None: no GPU measured, or unexplained
    speedup_max: Times | None  # as in the verdict, over the incident's own time
    headline: str
    detail: str
    victims: Annotated[list[Victim], _MANY]
    culprits: Annotated[list[Culprit], _MANY]
    evidence: Annotated[list[Evidence], _MANY]
    fixes: Annotated[list[Fix], _MANY]
    path: Annotated[list[PathStep], _FEW]  # of the moment that the headline describes
    near: CauseWord | None = None  # another cause that held nearly as much of the loss then: both stand
    requests: Requests | None = None  # of an inference server, of that moment: with their way through it
    help_url: Url = ""  # of the page about the cause; empty: there is none
    next_test: Fix | None = None  # the cheapest test that distinguishes the two; None: the cause is clear

    def brief(self) -> Episode:
        """The incident without what only a close look needs, as a node of a fleet reports it each second."""
        return replace(self, detail="", victims=[], evidence=[], fixes=[], path=[], requests=None, help_url="", next_test=None)


class Trained(Struct, frozen=True):
    """A trainer, one that has ended too."""

    pid: Pid
    name: str  # as on the screen: ``train.py rank 3``
    rank: Ranks | None
    identity: Annotated[dict[str, str | Annotated[dict[str, str], _FEW] | None], _FEW]
    """Fields of `gputop.model.identity.Identity`: container, pod, Slurm job, training …"""
    ledger: Ledger | UnsetType | None = UNSET  # all trainers' sum to `Booked`; None: no GPU is measured; unset: a part is unknown


class Dated(Struct, frozen=True):
    """A marker of a recording: an experiment's end, or what NCCL or torch's flight recorder report of ranks that hung."""

    unix_s: UnixSeconds
    text: str


class Explanation(Struct, frozen=True):
    """The findings on a stretch, which `gputop explain --json` prints."""

    schema: int
    verdict: Said
    ledger: Booked
    workers: Annotated[dict[str, Share], _FEW]
    """Share of all workers' time in each of `WORKER_STATES`, most first; empty without workers."""
    incidents: Annotated[list[Episode], Meta(max_length=MOST_INCIDENTS)]
    what_if: Annotated[list[WhatIf], _FEW]  # for the verdict's trainer, most gain first; empty if it was not seen to train
    trainers: Annotated[list[Trained], _FEW]  # the last `MOST_TRAINED` trainers seen, in order
    runs: Annotated[list[Run], _FEW] | UnsetType = UNSET  # runs that were seen here, the last that ended last; unset: none
    judged_by: str | UnsetType = UNSET  # of a recording that is explained: ``recorder`` or ``explain``
    read_at: str | UnsetType = UNSET  # tier that was judged
    nccl: list[Dated] | UnsetType = UNSET  # in it; unset: nothing
    traces: Annotated[list[TracedJob], _FEW] | UnsetType = UNSET  # of torch.profiler, taken in it; unset: none
    flight: list[Dated] | UnsetType = UNSET  # of ranks that hung, by dumps of torch's flight recorder; unset: nothing


class Experiments(Struct, frozen=True):
    """The experiments of two recordings."""

    before: list[Dated]
    after: list[Dated]


class Diff(Struct, frozen=True):
    """Output of `gputop diff --json`."""

    schema: int
    before: Explanation
    after: Explanation
    experiments: Experiments


def explanation(
    verdict: Verdict,
    ledger: Ledger,
    incidents: list[Incident],
    workers: Mapping[str, float],
    header: Header,
    now_ns: int,
    what_if: Callable[[Verdict | Incident], Sequence[WhatIf]],
    trainers: Iterable[tuple[Role, ProcInfo, Ledger | None]] = (),
    seen_runs: Sequence[Run] = (),
    step_of: Callable[[int], Step | None] = lambda _: None,
) -> Explanation:
    """The whole explanation. Its verdict is the cause that cost most over the stream, or lasted longest if no GPU is measured; if none cost
    enough, that nothing did. Its step is that of the trainer that it names."""
    worst = _dearest([one for one in incidents if costs_time(one)], ledger, now_ns)
    if worst is not None and worst.trainer_pid is not None and verdict.trainer_pid not in (None, worst.trainer_pid):
        verdict = replace(verdict, step=step_of(worst.trainer_pid))
    return Explanation(
        schema=SCHEMA, verdict=_verdict(verdict, ledger, worst), ledger=booked(ledger),
        workers={word: round(share, 4) for word, share in shares(workers).items()},
        incidents=[episode(incident, header) for incident in incidents], what_if=[*what_if(verdict if worst is None else worst)],
        trainers=[_trained(role, info, header.host, own) for role, info, own in trainers], runs=[*seen_runs] or UNSET,
    )  # fmt: skip


def _trained(role: Role, info: ProcInfo, host: str, own: Ledger | None) -> Trained:
    return Trained(info.pid, role.label, role.rank, asdict(identity_of(info, host)), _ledger(own))


def _ledger(own: Ledger | None) -> Ledger | UnsetType | None:
    return UNSET if own is None else own.rounded() if own.gpu_total_s else None


def shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Word -> its part of the whole, most first."""
    total = sum(seconds.values())
    most_first = sorted(seconds.items(), key=lambda item: -item[1])
    return {word: part / total for word, part in most_first if part > 0.0}


def _dearest(incidents: list[Incident], ledger: Ledger, now_ns: int) -> Incident | None:
    """The worst incident of the cause that cost most in all; None if that is little and all losses together are not much."""
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
    """True if the incidents were felt for a window and a good part of the time, however little the GPU lost before and after: a screen
    would have shown them."""
    span_s = sum(_span_s(incident, now_ns) for incident in incidents)
    cost_s = sum(incident.lost_s for incident in incidents)
    return span_s >= max(WINDOW_NS / 1e9, policy.QUARTER * ledger.gpu_total_s) and cost_s >= policy.LOST / 2 * span_s


def _is_little(cost_s: float, ledger: Ledger) -> bool:
    """True if a cause is not worth naming: neither it nor all losses are much, nor is it most of a loss that is felt."""
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
    test = told.next_test
    if worst is None and of_the_end and total_s > 0.0 and lost_s < 2 * policy.LOST * total_s:
        symptom, cause, path = "healthy", "none", []
        headline, detail = filled("The GPU worked {:.0f}% of the time", 100 - 100 * lost_s / total_s), "no trouble lasted"
        test = None
    regain = next((one for one in ledger.regains() if one.cause == cause), None)
    return Said(
        None if symptom == LOOKING else symptom, cause, headline, detail,
        None if verdict.step is None else round(verdict.step.per_s, 2), _step_ms(verdict.step), path,
        None if regain is None else round(regain.regain_gpu_s, 3), None if regain is None else _bound(regain, worst), page_of(cause), test,
    )  # fmt: skip


def _bound(regain: Regain, worst: Incident | None) -> float | None:
    """Upper bound of the speed-up: over the incident's time, which has no other state in it; over all the time, if that is more."""
    known = [bound for bound in (regain.speedup_max, None if worst is None else worst.speedup_max) if bound is not None]
    return None if regain.speedup_max is None else max(known)


def _has_ended(verdict: Verdict) -> bool:
    """True if no trainer runs any more, and nothing is wrong with that: such a verdict does not describe the trainers that ended."""
    return verdict.symptom == "idle" and verdict.trainer_pid is None and verdict.severity == "info"


def _step_ms(step: Step | None) -> StepMs | None:
    parts = () if step is None else (step.input_wait_ms, step.transfer_ms, step.compute_ms, step.gpu_wait_ms, step.other_ms)
    return StepMs(*(round(ms, 2) for ms in parts)) if parts else None


def booked(ledger: Ledger) -> Booked:
    """The ledger, rounded to ms."""
    idle_s = round(ledger.gpu_idle_s, 3)
    if ledger.gpu_total_s == 0.0:
        return Booked(None, None, {}, [], None, idle_s or None)
    order = {cause: i for i, cause in enumerate(CAUSES)}
    parts = {cause: round(ledger.by_cause[cause], 3) for cause in sorted(ledger.by_cause, key=lambda cause: order.get(cause, len(order)))}
    regain = [Regain(one.cause, round(one.regain_gpu_s, 3), one.speedup_max) for one in ledger.regains()]
    return Booked(round(ledger.gpu_total_s, 3), round(sum(parts.values()), 3), parts, regain, ledger.speedup_of_all(), idle_s)


def episode(incident: Incident, header: Header) -> Episode:
    """An incident, rounded to ms."""
    ends = (None if t_ns is None else round(header.unix_ns_of(t_ns) / 1e9, 3) for t_ns in (incident.start_ns, incident.end_ns))
    regain_s = incident.regain_gpu_s
    told = {name: getattr(incident, name) for name in Episode.__struct_fields__ if hasattr(incident, name)}
    lists = {name: [*told[name]] for name in ("victims", "culprits", "evidence", "fixes", "path")}
    start_unix_s, end_unix_s = ends
    return Episode(**told | lists | {
        "start_unix_s": start_unix_s, "end_unix_s": end_unix_s, "gpu_lost_s": round(incident.lost_s, 3),
        "regain_gpu_s": None if regain_s is None else round(regain_s, 3), "help_url": page_of(incident.cause),
    })  # fmt: skip


def from_elsewhere(found: Explanation) -> Explanation:
    """An explanation from a file, with only gputop's own texts: a foreign headline is replaced by its cause in general; foreign fixes and
    commands are left out. Names stay, but harmless and short."""
    verdict = found.verdict
    return replace(
        found,
        verdict=replace(
            verdict, headline=said(verdict.headline, in_general(verdict.cause)), detail=said(verdict.detail),
            path=steps_from(verdict.path), help_url=page_of(verdict.cause), next_test=_test_from(verdict.next_test),
        ),
        incidents=[_episode_from(one) for one in found.incidents],
        what_if=[replace(one, change=said(one.change), assumes=said(one.assumes)) for one in found.what_if if is_own(one.change)],
        workers={name(word): share for word, share in found.workers.items()},
        trainers=[
            replace(one, name=name(one.name), identity={name(key): _harmless(value) for key, value in one.identity.items()})
            for one in found.trainers
        ],
        runs=UNSET if found.runs is UNSET else runs.from_elsewhere(found.runs),
        judged_by=UNSET, read_at=UNSET, nccl=UNSET, flight=UNSET, traces=UNSET,
    )  # fmt: skip


def _episode_from(one: Episode) -> Episode:
    return replace(
        one, headline=said(one.headline, in_general(one.cause)), detail=said(one.detail), path=steps_from(one.path),
        victims=[replace(victim, role=name(victim.role), name=name(victim.name)) for victim in one.victims],
        culprits=[replace(culprit, name=name(culprit.name)) for culprit in one.culprits],
        evidence=evidence_from(one.evidence), fixes=fixes_from(one.fixes), help_url=page_of(one.cause),
        next_test=_test_from(one.next_test),
        requests=None if one.requests is None else requests_from(one.requests),
    )  # fmt: skip


def requests_from(found: Requests) -> Requests:
    """Requests of a file or another machine, with harmless names and only gputop's own texts."""
    return replace(found, way=tuple(replace(one, name=name(one.name), told=said(one.told)) for one in found.way[:MOST_STAGES]))


def evidence_from(found: Iterable[Evidence]) -> list[Evidence]:
    """Evidence of a file or another machine, with only gputop's own texts."""
    return [replace(one, unit=name(one.unit), text=said(one.text, one.metric.replace("_", " "))) for one in found]


def fixes_from(found: Iterable[Fix]) -> list[Fix]:
    """Fixes of a file or another machine, without foreign ones and foreign commands."""
    return [Fix(said(fix.text), commanded(fix.command), fix.look) for fix in found if is_own(fix.text)]


def _test_from(found: Fix | None) -> Fix | None:
    return next(iter(fixes_from([found])), None) if found is not None else None


def steps_from(path: Iterable[PathStep]) -> list[PathStep]:
    """A path of a file or another machine, with harmless names."""
    return [replace(step, name=name(step.name), on=said(step.on, name(step.on))) for step in path]


def _harmless(value: str | dict[str, str] | None) -> str | dict[str, str] | None:
    if isinstance(value, dict):
        return {name(key): clean(one, PATH) for key, one in value.items()}
    return None if value is None else clean(value, PATH)


@cache
def in_general(cause: str) -> str:
    """A cause in one line of gputop's own: the first part of its docstring."""
    if cause in GROWTHS:
        return f"{cause}: memory that grows until there is none left"
    if cause == LINK_ERRORS:
        return f"{cause}: a link of a GPU that is trained again, or sends again"
    if cause == SLOWER:
        return f"{cause}: steps take longer than before, or than in earlier runs of the job"
    if cause not in CAUSES:
        return "The finding has words that this gputop does not know"
    try:  # by name, for causes are in a room above this one, and a reader of findings may not have loaded any
        document = importlib.import_module(f"gputop.diagnosis.causes.{cause.replace('-', '_')}").__doc__ if cause in OWN_CAUSES else None
    except ModuleNotFoundError:
        document = None
    found = re.match(r"[\w-]+: (.*?)\.? Costs:", " ".join((document or "").split()))
    return f"{cause}: {found[1]}" if found else f"{cause}: a plug-in's cause" if cause not in OWN_CAUSES else cause


_PIDS = re.compile(r"\((\d+)((?:, \d+)+)(?: and (\d+) more)?\)")
_STARTS = r"(?: and (?:the [^,;()]+|what) (?:it starts|they start))?"
_NAMES = re.compile(rf"(\w[^,;()]* \(\d[^()]*\){_STARTS})((?:, (?:[^,;()]+ \(\d[^()]*\){_STARTS}|others|short-lived processes))+)")
_WORDS = re.compile(
    r" but not running| of the time| of the last \d+ s|(?<= for) its(?= data)|(?<=no GPU) is(?= measured)|: host side only(?=\))"
)
_PID = re.compile(r" \(\d+(?: and \d+ more)?\)")  # a process's pid, or the number of further ones


def brief(text: str, room: int) -> str:
    """The sentence, shortened if it is longer than ``room`` characters: without further pids, further names, set phrases."""
    for pattern, instead in ((_PIDS, _fewer_pids), (_NAMES, _fewer_names), (_WORDS, lambda _: "")):
        if len(text) > room:
            text = pattern.sub(instead, text)
    return text


def without_pids(text: str) -> str:
    """The text without pids, only with names."""
    return _PID.sub("", text)


def _fewer_pids(found: re.Match[str]) -> str:
    return f"({found[1]} and {found[2].count(',') + int(found[3] or 0)} more)"


def _fewer_names(found: re.Match[str]) -> str:
    count = len(_PID.findall(found[2]))
    return f"{found[1]} and {f'{count} more' if count == found[2].count(', ') else 'others'}"
