"""Objects of the API, as in `gputop explain --json`; `gputop.findings.explanation` defines them. None: not measured."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from gputop.findings.explanation import Booked as Ledger
from gputop.findings.explanation import Episode as Incident
from gputop.findings.explanation import Explanation as Explanation
from gputop.findings.explanation import Said as Overall
from gputop.findings.explanation import StepMs as StepMs
from gputop.findings.explanation import Trained as Trainer
from gputop.findings.verdict import Ledger as Account
from gputop.findings.verdict import Regain as Regain
from gputop.findings.verdict import Verdict

__all__ = ["Account", "CompanionLine", "Explanation", "Incident", "Ledger", "Overall", "Regain", "Snapshot", "StepMs", "Trainer"]


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
    incidents: tuple[Incident, ...] = ()  # incidents that last


class CompanionLine(Struct, frozen=True):
    """A line of the companion (`gputop.api.companion`): what is new, and answers."""

    verdict: Verdict | None = None
    ledger: Ledger | None = None
    incidents: tuple[Incident, ...] = ()  # incidents that began or changed since the line before
    problem: str = ""  # why there are no readings; empty while they come
    snapshot: Snapshot | None = None
    explanation: Explanation | None = None
