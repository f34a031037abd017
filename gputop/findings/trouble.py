"""Kinds of trouble: a closed list, so that a surface that distinguishes kinds names every one.

A surface matches on `kind_of` and ends with `unknown`: mypy then reports the surfaces that forget a kind which is added here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from math import inf
from typing import NamedTuple, NoReturn, Protocol

from gputop.findings.verdict import GPU_LOST, GROWTHS, LINK_ERRORS, SLOWER, Incident, Verdict

HUNG, PAUSE, STRAGGLER = "hung-worker", "pause", "straggler-rank"


class Trouble(Enum):
    """Kind of an incident."""

    LOSS = "a job loses GPU time"
    PAUSED = "a job pauses, which is no fault"
    LOST_GPU = "a GPU is lost, whether a job uses it or not"
    GROWTH = "memory grows until there is none left; no GPU time is lost yet"
    ORPHAN = "a worker has outlived its trainer"
    LINK = "a link of a GPU errs, whether a job uses it or not; what that costs is not measured"
    SLOWER = "a job makes its steps more slowly than it did, or than its earlier runs; causes have what GPU time that costs"


class Classified(Protocol):
    """An incident in any shape, or a job or a rank with what is wrong with it."""

    @property
    def cause(self) -> str: ...

    @property
    def trainer_pid(self) -> int | None: ...


class TableIncident(NamedTuple):
    """The fields of an incident that decide its kind, from the row of a table."""

    cause: str
    trainer_pid: int | None


def kind_of(one: Classified) -> Trouble:
    """The kind of an incident."""
    if one.cause in GROWTHS:
        return Trouble.GROWTH
    if one.cause == GPU_LOST:
        return Trouble.LOST_GPU
    if one.cause == LINK_ERRORS:
        return Trouble.LINK
    if one.cause == SLOWER:
        return Trouble.SLOWER
    if one.cause == HUNG and one.trainer_pid is None:
        return Trouble.ORPHAN
    return Trouble.PAUSED if one.cause == PAUSE else Trouble.LOSS


def unknown(kind: NoReturn) -> NoReturn:
    """Raise for a kind that a surface does not name. mypy accepts the call only where no kind is left."""
    raise AssertionError(kind)


def costs_time(one: Classified) -> bool:
    """True if a job, or a GPU that cannot be used, loses time by the incident: only such an incident is a verdict."""
    kind = kind_of(one)
    match kind:
        case Trouble.LOSS | Trouble.PAUSED | Trouble.LOST_GPU | Trouble.ORPHAN:
            return True
        case Trouble.GROWTH | Trouble.LINK | Trouble.SLOWER:
            return False
        case _:
            unknown(kind)


def is_fault(one: Classified) -> bool:
    """True if something is wrong and deserves an alert."""
    kind = kind_of(one)
    match kind:
        case Trouble.LOSS | Trouble.LOST_GPU | Trouble.GROWTH | Trouble.ORPHAN | Trouble.LINK | Trouble.SLOWER:
            return True
        case Trouble.PAUSED:
            return False
        case _:
            unknown(kind)


def stops_job(one: Classified) -> bool:
    """True if a job with the incident cannot go on, whatever else is wrong with it."""
    kind = kind_of(one)
    match kind:
        case Trouble.LOST_GPU:
            return True
        case Trouble.LOSS | Trouble.PAUSED | Trouble.GROWTH | Trouble.ORPHAN | Trouble.LINK | Trouble.SLOWER:
            return False
        case _:
            unknown(kind)


def grows(one: Classified) -> bool:
    """True if a lane of memory shows the incident."""
    kind = kind_of(one)
    match kind:
        case Trouble.GROWTH:
            return True
        case Trouble.LOSS | Trouble.PAUSED | Trouble.LOST_GPU | Trouble.ORPHAN | Trouble.LINK | Trouble.SLOWER:
            return False
        case _:
            unknown(kind)


def gpu_about(one: Classified, gpu: int | None) -> int | None:
    """The GPU that an incident with this ``gpu`` is about, used or not; None if it is about a trainer, a worker or the host."""
    kind = kind_of(one)
    match kind:
        case Trouble.LOST_GPU | Trouble.GROWTH | Trouble.LINK:
            return gpu
        case Trouble.LOSS | Trouble.PAUSED | Trouble.ORPHAN | Trouble.SLOWER:
            return None
        case _:
            unknown(kind)


def heading(symptom: str, one: Classified, arrow: str) -> str:
    """``input-bound ← cpu-contention``: the symptom and its cause; the cause alone without a symptom yet."""
    return f"{symptom} {arrow} {one.cause}" if costs_time(one) else one.cause


def notice(incidents: Sequence[Incident], verdict: Verdict) -> tuple[str, str]:
    """(short text, severity) of other troubles to show next to a verdict: lost GPUs, growing memory, workers that outlived their trainer,
    links that err, a run that is slower; else empty."""
    lost, grows, orphans, links, slower = (list[Incident]() for _ in range(5))
    for one in incidents:
        if one.end_ns is not None:
            continue
        kind = kind_of(one)
        match kind:
            case Trouble.LOST_GPU:
                lost.append(one)
            case Trouble.GROWTH:
                grows.append(one)
            case Trouble.ORPHAN:
                if one.headline != verdict.headline:
                    orphans.append(one)
            case Trouble.LINK:
                links.append(one)
            case Trouble.SLOWER:
                slower.append(one)
            case Trouble.LOSS | Trouble.PAUSED:
                pass  # the verdict is about the worst
            case _:
                unknown(kind)
    if lost and verdict.cause != GPU_LOST:
        gpus = sorted(one.gpu for one in lost if one.gpu is not None)
        return (f"GPU {', '.join(map(str, gpus))} {'is' if len(gpus) == 1 else 'are'} lost" if gpus else lost[0].headline), "high"
    if (soonest := growing(grows))[0]:
        return soonest
    if links and not (orphans and links[0].severity == "low"):
        return links[0].headline, links[0].severity
    if not orphans:
        return (slower[0].headline, slower[0].severity) if slower else ("", "")
    first = ", ".join(f"worker {victim.pid}" for victim in orphans[0].victims)
    more = f" and {len(orphans) - 1} more" if len(orphans) > 1 else ""
    return f"{first}{more} outlived {'its' if not more else 'their'} trainer", orphans[0].severity


def growing(incidents: Iterable[Incident]) -> tuple[str, str]:
    """(short text, severity) of the most urgent lasting growth, else empty. See `notice`."""
    lasting = [one for one in incidents if grows(one) and one.end_ns is None and one.evidence]
    if not lasting:
        return "", ""
    first = min(lasting, key=lambda one: one.evidence[0].value or 0.0)
    place = "memory" if first.gpu is None else f"GPU {first.gpu} memory"
    return f"{place} ends in {span_words(first.evidence[0].value or 0.0)}", first.severity


def span_words(seconds: float) -> str:
    """``90 s``, ``38 min``, ``5 h``, ``3 days``."""
    for unit, unit_s, least in (("days", 86_400, 2), ("h", 3600, 3), ("min", 60, 2)):
        if seconds >= least * unit_s:
            return "ever" if seconds == inf else f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"
