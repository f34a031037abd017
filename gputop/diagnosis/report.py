"""What an engine found, as plain JSON-ready data: the contract of `gputop explain --json`."""

from __future__ import annotations

from gputop.diagnosis.model import CAUSES
from gputop.diagnosis.model import Incident
from gputop.diagnosis.model import Ledger
from gputop.diagnosis.model import Verdict

SCHEMA = 1


def explanation(verdict: Verdict, ledger: Ledger, incidents: list[Incident], unix_offset_ns: int) -> dict[str, object]:
    """The whole of it. The verdict is the incident that cost most, or the last window's where nothing happened."""
    worst = max(incidents, key=_cost, default=None)
    named = worst if worst is not None and worst.severity != "low" else None
    return {
        "schema": SCHEMA,
        "verdict": _verdict(verdict, named),
        "ledger": _ledger(ledger),
        "incidents": [_incident(incident, unix_offset_ns) for incident in incidents],
    }


def _cost(incident: Incident) -> float:
    return incident.lost_s


def _verdict(verdict: Verdict, worst: Incident | None) -> dict[str, object]:
    if worst is None:
        return {"symptom": verdict.symptom, "cause": verdict.cause, "headline": verdict.headline, "detail": verdict.detail}
    return {"symptom": worst.symptom, "cause": worst.cause, "headline": worst.headline, "detail": worst.detail}


def _ledger(ledger: Ledger) -> dict[str, object]:
    if ledger.gpu_total_s == 0.0:
        return {"gpu_total_s": None, "gpu_lost_s": None, "by_cause": {}}
    order = {cause: i for i, cause in enumerate(CAUSES)}
    causes = sorted(ledger.by_cause, key=lambda cause: order.get(cause, len(order)))
    parts = {cause: round(ledger.by_cause[cause], 3) for cause in causes}
    return {"gpu_total_s": round(ledger.gpu_total_s, 3), "gpu_lost_s": round(sum(parts.values()), 3), "by_cause": parts}


def _incident(incident: Incident, unix_offset_ns: int) -> dict[str, object]:
    end_ns = incident.end_ns
    return {
        "id": incident.id,
        "start_unix_s": round((incident.start_ns + unix_offset_ns) / 1e9, 3),
        "end_unix_s": None if end_ns is None else round((end_ns + unix_offset_ns) / 1e9, 3),
        "symptom": incident.symptom,
        "cause": incident.cause,
        "severity": incident.severity,
        "confidence": incident.confidence,
        "trainer_pid": incident.trainer_pid,
        "gpu": incident.gpu,
        "gpu_lost_s": round(incident.lost_s, 3),
        "headline": incident.headline,
        "detail": incident.detail,
        "victims": [{"pid": one.pid, "role": one.role, "name": one.name} for one in incident.victims],
        "culprits": [{"pid": one.pid, "name": one.name, "cpu_s": one.cpu_s} for one in incident.culprits],
        "evidence": [{"metric": one.metric, "value": one.value, "unit": one.unit, "text": one.text} for one in incident.evidence],
        "fixes": [{"text": one.text, "command": one.command} for one in incident.fixes],
    }
