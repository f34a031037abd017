"""The registry of causes: one file each, found by being here.

A verdict's file defines ``JUDGE``. In the order of their ``order``, judges claim shares of the pools of lost time
(`gputop.diagnosis.chain`); what one has claimed the later ones do not get. A new verdict is one new file, and its
word in `gputop.diagnosis.model.CAUSES`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import force_setattr

from gputop.diagnosis.facts import Facts, JobFacts
from gputop.diagnosis.model import Culprit, Evidence, Fix

Claims = dict[str, float]  # pool -> share of that pool, 0..1


class Finding(Struct, frozen=True):
    """What a judge says once its cause is named."""

    detail: str
    evidence: tuple[Evidence, ...] = ()
    fixes: tuple[Fix, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    victims: tuple[int, ...] | None = None  # pids of those who suffered; None is the job's starving workers

    def __post_init__(self) -> None:
        """What was not measured is no evidence."""
        force_setattr(self, "evidence", tuple(one for one in self.evidence if one.value is not None))


class Judge(Struct, frozen=True):
    """One cause: what it claims, and what it says."""

    cause: str
    symptom: str
    order: int
    pools: tuple[str, ...]  # how those begin that it may claim; where the job has none of them it is not asked
    claim: Callable[[JobFacts, Facts], Claims]
    tell: Callable[[JobFacts, Facts], Finding]
    fault: bool = True
    """False for what is no fault, such as a pause: its severity is ``info``, but where it comes again and again (`JobFacts.repeated`)."""
    needs: str = ""  # what must be readable for it to speak
    felt: Callable[[JobFacts], str] | None = None  # the symptom, where the same cause is not always felt alike; None: always `symptom`


@lru_cache(maxsize=256)
def judges_of(pools: frozenset[str]) -> tuple[Judge, ...]:
    """Those that may claim one of these pools, in order."""
    return tuple(judge for judge in judges() if any(pool.startswith(judge.pools) for pool in pools))


@lru_cache(maxsize=1)
def judges() -> tuple[Judge, ...]:
    """All of them, in order."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    found = [judge for module in modules for judge in (getattr(module, "JUDGE", None),) if isinstance(judge, Judge)]
    return tuple(sorted(found, key=lambda judge: judge.order))
