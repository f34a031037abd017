"""What can be tried against a cause. Each file has an `INTERVENTION`; its docstring has four parts: what it changes and for which causes,
whether it may be kept, what right it needs, how it is undone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct

from gputop.experiments.change import Case, Plan, Told
from gputop.experiments.permission import READONLY
from gputop.experiments.scene import Scene

INTERVENTIONS = ("idle_priority",)
"""Modules of this folder, in the order in which they are tried."""


class Intervention(Struct, frozen=True):
    """One thing to try."""

    name: str
    causes: tuple[str, ...]  # words of `gputop.diagnosis.model.CAUSES`
    make: Callable[[Case, Scene], Plan | Told | None]  # None: not for this case, and no reason worth telling


@lru_cache(maxsize=1)
def interventions() -> tuple[Intervention, ...]:
    """All of them, in their order."""
    modules = (importlib.import_module(f"{__name__}.{name}") for name in INTERVENTIONS)
    return tuple(module.INTERVENTION for module in modules)


def plan(case: Case, *, allow_stop: bool = False, allow_others: bool = True, readonly: bool = False) -> Plan | Told:
    """What to try in this case, or why there is nothing to try.

    ``allow_others``: processes of other users may be in it, as root; `Plan.others` names them, and the user must be asked.
    """
    if readonly:
        return Told(READONLY)
    scene = Scene(case, allow_stop, allow_others)
    told = None
    for one in interventions():
        if case.cause in one.causes:
            made = one.make(case, scene)
            if isinstance(made, Plan):
                return made
            told = told or made
    return told or Told(f"{case.cause}: there is no harmless experiment for it")
