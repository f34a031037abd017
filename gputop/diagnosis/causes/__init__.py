"""The registry of causes: one file each, found by being here.

The docstring of a cause has four parts: its name and what it is, Costs, Seen, Abstains. Its ``JUDGE`` has the leaves of the wait-for
graph that are this cause (``rows``), and ``tell``: evidence, and what to do.
A new cause is one new file, and its word in `gputop.findings.verdict.OWN_CAUSES`. Causes of plug-ins (docs/plugins.md) follow.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from gputop.diagnosis.graph.edges import Leaf
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.waitgraph import Walk
from gputop.findings.verdict import OWN_CAUSES, SYMPTOMS, UNCOSTED, Culprit, Evidence, Fix
from gputop.system import plugins


class Finding(Struct, frozen=True):
    """A judge's words for its cause: detail, evidence, fixes. What only shows more stands behind what changes something."""

    detail: str
    evidence: tuple[Evidence, ...] = ()
    fixes: tuple[Fix, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    victims: tuple[int, ...] | None = None  # pids of processes that suffered; None: the job's starving workers

    def __post_init__(self) -> None:
        """Drop evidence that was not measured; put looks behind fixes."""
        force_setattr(self, "evidence", tuple(one for one in self.evidence if one.value is not None))
        force_setattr(self, "fixes", tuple(sorted(self.fixes, key=lambda one: one.look)))


class Judge(Struct, frozen=True):
    """One cause: the leaves of the walk that show it, and the function that describes it."""

    cause: str
    symptom: str
    tell: Callable[[WalkedJob, WalkedFacts], Finding]
    rows: tuple[tuple[str, str], ...] = ()  # (resource, holder) of the leaves that are this cause, see `gputop.diagnosis.graph.waitgraph`
    part: Callable[[Walk, Leaf], float] | None = None  # how far a leaf of its rows is this cause, 0 to 1; None: all of each
    fault: bool = True
    """False if the cause is no fault, such as a pause: its severity is ``info``, unless it repeats (`PauseFacts.repeated`)."""
    explains_hangs: bool = False  # it describes a hang more precisely than `gputop.diagnosis.hangs` does
    felt: Callable[[WalkedJob], str] | None = None  # the symptom, if the cause has several; None: always `symptom`


@lru_cache(maxsize=1)
def judges() -> tuple[Judge, ...]:
    """The judges of all causes, gputop's own first, then plug-ins'."""
    walked = (cause for cause in sorted(OWN_CAUSES) if cause not in ("none", *UNCOSTED))
    modules = (importlib.import_module(f"{__name__}.{cause.replace('-', '_')}") for cause in walked)
    found = (getattr(module, "JUDGE", None) for module in modules)
    own = tuple(judge for judge in found if isinstance(judge, Judge))
    return (*own, *(judge for judge in map(_plugged, plugins.plugins(plugins.CAUSES)) if judge is not None))


def judge_of(cause: str) -> Judge:
    """The judge of a cause that a claim names."""
    return _by_cause()[cause]


@lru_cache(maxsize=1)
def _by_cause() -> dict[str, Judge]:
    return {judge.cause: judge for judge in judges()}


def _plugged(plugin: plugins.Plugin) -> Judge | None:
    """The guarded judge of a plug-in: its errors cannot end the diagnosis. None, with a message, if the plug-in is no valid judge."""
    try:
        judge = plugins.load(plugin)
        if not isinstance(judge, Judge) or judge.symptom not in SYMPTOMS or judge.cause != plugin.name or plugin.name in OWN_CAUSES:
            raise ValueError("no Judge whose cause is the name of its entry point, a new word, and whose symptom is one of gputop's")
        _ = [Leaf(*row) for row in judge.rows]
    except Exception as error:  # noqa: BLE001 - a plug-in's code
        plugins.tell(plugin, error)
        return None
    part, felt = judge.part, judge.felt

    def guarded_tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
        try:
            return msgspec.convert(judge.tell(job, facts), Finding)
        except Exception as error:  # noqa: BLE001
            return Finding(plugins.tell(plugin, error))

    def guarded_part(walk: Walk, leaf: Leaf) -> float:
        try:
            return 1.0 if part is None else min(1.0, max(0.0, float(part(walk, leaf))))
        except Exception as error:  # noqa: BLE001
            plugins.tell(plugin, error)
            return 0.0

    def guarded_felt(job: WalkedJob) -> str:
        try:
            word = judge.symptom if felt is None else felt(job)
            return word if word in SYMPTOMS else judge.symptom
        except Exception as error:  # noqa: BLE001
            plugins.tell(plugin, error)
            return judge.symptom

    return replace(judge, tell=guarded_tell, part=guarded_part, felt=guarded_felt)


def percent(metric: str, share: float | None, text: str) -> Evidence:
    """A share, 0 to 1, as evidence in per cent; without a value if it was not measured."""
    return Evidence(metric, None if share is None else round(100 * share, 1), "%", text)
