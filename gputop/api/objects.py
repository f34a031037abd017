"""The objects of the API. Their fields are those of `gputop explain --json`; None is what was not measured."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from gputop.diagnosis.model import Culprit, Evidence, Fix, PathStep, Verdict, Victim, WhatIf


class StepMs(Struct, frozen=True):
    """What a training step is made of, in ms, as the trainer's main thread spends it."""

    input_wait: float
    transfer: float
    compute: float
    gpu_wait: float
    other: float


class Regain(Struct, frozen=True):
    """What would come back without a cause."""

    cause: str
    regain_gpu_s: float
    speedup_max: float | None  # upper bound of how many times as fast the work gets


class Ledger(Struct, frozen=True):
    """GPU seconds observed and lost, and the lost ones by cause."""

    gpu_total_s: float | None = None
    gpu_lost_s: float | None = None
    by_cause: dict[str, float] = {}  # they sum to ``gpu_lost_s``
    regain: tuple[Regain, ...] = ()
    speedup_max: float | None = None

    @property
    def lost_share(self) -> float | None:
        """Lost share of the GPU time, 0 to 1; None where no GPU was measured."""
        return None if not self.gpu_total_s or self.gpu_lost_s is None else self.gpu_lost_s / self.gpu_total_s


class Overall(Struct, frozen=True):
    """The verdict on a whole stretch of time."""

    symptom: str | None  # None: nothing could be judged; the headline says why
    cause: str
    headline: str
    detail: str
    steps_per_s: float | None
    step_ms: StepMs | None
    path: tuple[PathStep, ...]
    regain_gpu_s: float | None
    speedup_max: float | None


class Incident(Struct, frozen=True):
    """One episode of one cause at one trainer."""

    id: int
    start_unix_s: float
    end_unix_s: float | None  # None: it lasts
    symptom: str
    cause: str
    severity: str  # ``info``, ``low``, ``medium`` or ``high``
    confidence: float
    trainer_pid: int | None
    gpu: int | None
    gpu_lost_s: float
    regain_gpu_s: float | None
    speedup_max: float | None
    headline: str
    detail: str
    victims: tuple[Victim, ...]
    culprits: tuple[Culprit, ...]
    evidence: tuple[Evidence, ...]
    fixes: tuple[Fix, ...]
    path: tuple[PathStep, ...]


class Account(Struct, frozen=True):
    """GPU seconds of one trainer."""

    gpu_total_s: float
    gpu_lost_s: float
    by_cause: dict[str, float]


class Trainer(Struct, frozen=True):
    """A trainer, one that has ended too."""

    pid: int
    name: str
    rank: int | None
    identity: dict[str, str | dict[str, str] | None]  # container, pod, Slurm job, and why what is None is not known
    ledger: Account | UnsetType | None = UNSET  # None: no GPU is measured; unset: not known of a part of a recording


class Explanation(Struct, frozen=True):
    """All that was found in a stretch of time."""

    schema: int
    verdict: Overall
    ledger: Ledger
    workers: dict[str, float]  # state -> share of all workers' time
    incidents: tuple[Incident, ...]
    what_if: tuple[WhatIf, ...]
    trainers: tuple[Trainer, ...]


class Snapshot(Struct, frozen=True):
    """One moment, as `gputop --once --json` prints it; `gputop schema snapshot` describes its GPUs and processes."""

    schema: int
    unix_s: float
    t_ns: int
    host: str
    hardware: dict[str, Any]
    sources: dict[str, dict[str, Any]]
    gpus: tuple[dict[str, Any], ...]
    procs: tuple[dict[str, Any], ...]


class Told(Struct, frozen=True):
    """A line of the companion (`gputop.api.companion`): what is new, and answers."""

    verdict: Verdict | None = None
    ledger: Ledger | None = None
    incidents: tuple[Incident, ...] = ()  # those that began or changed since the line before
    problem: str = ""  # why there are no readings; empty while they come
    snapshot: Snapshot | None = None
    explanation: Explanation | None = None
