"""What a labelled workload is, and the registry of all."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running


INSTRUMENT_VARIABLE = "GPUTOP_INSTRUMENT"  # MODULE:FUNCTION: what a profiler that works inside the job makes of loader and step
LOADER_VARIABLE = "GPUTOP_LOADER"  # JSON: arguments of the DataLoader in place of the workload's own (`tests.experiments.fixes`)


@dataclass(frozen=True, slots=True)
class Label:
    """The verdict it should get (words of `gputop.findings.verdict`) and the names of the processes to blame."""

    symptom: str
    cause: str
    culprits: frozenset[str] = frozenset()
    beside: str = ""
    """The cause of an incident that has to stand beside the verdict; empty: none has to."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One labelled workload. ``train`` runs in the trainer process (one per rank), ``disturb`` in the runner's."""

    label: Label
    train: Callable[[Trainer], None]
    disturb: Callable[[Running], AbstractContextManager[object]] | None = None
    """Entered at the onset, once training is steady; left at the end."""
    prepare: Callable[[Running], AbstractContextManager[object]] | None = None
    """Entered before the trainer starts, left when everything has ended: files, servers, cgroups."""
    ranks: int = 1
    devices: int = 1
    env: dict[str, str] = field(default_factory=dict)
    needs: Callable[[], str] = lambda: ""
    """Why it cannot run on this host, empty if it can."""
    least_s: float = 0.0
    """Seconds from the onset on that a run takes at least."""


HEALTHY = Label("healthy", "none")


def cpus() -> int:
    """CPUs this process may use: loads are sized by it, so that a workload is what it says on any host."""
    return len(os.sched_getaffinity(0))


def names() -> list[str]:
    """All workloads, as the command line calls them."""
    return list(_names())


@cache
def _names() -> tuple[str, ...]:
    from tests.workloads import scenarios

    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(scenarios.__path__)))


def called(text: str) -> str:
    """The name of a workload from what was typed: its file's name will do."""
    return text.removesuffix(".py").replace("_", "-")


def load(name: str) -> Scenario:
    """The workload called ``name``; ValueError if there is none."""
    if name not in _names():
        raise ValueError(f"no workload {name!r}; there are: {', '.join(names())}")
    module = importlib.import_module(f"tests.workloads.scenarios.{name.replace('-', '_')}")
    scenario: Scenario = module.SCENARIO
    return scenario
