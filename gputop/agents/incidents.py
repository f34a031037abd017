"""Tool `incidents`: what went wrong, a row each; one in full by its number."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from gputop.agents.answer import Answer, Asked, Next, Row, untrusted
from gputop.agents.diagnose import details
from gputop.agents.look import ALL, cause_of, look, symptom_of
from gputop.agents.places import Places
from gputop.findings.explanation import Episode
from gputop.findings.verdict import SEVERITIES
from gputop.system.errors import UserError

SAYS = "What went wrong and when, newest first. id: one in full, with culprits, evidence and fixes. window as in diagnose ('': all)."


class IncidentsQuestion(Asked):
    window: str = ALL
    min_severity: Annotated[str, Meta(pattern="^(info|low|medium|high)$")] = "low"
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    cursor: Annotated[int, Meta(ge=0)] = 0
    id: int | None = None

    def paged(self) -> str:
        """The answer's list; one incident alone has no pages."""
        return "incidents" if self.id is None else ""


class IncidentsAnswer(Answer):
    incidents: list[Row] = []
    total: int = 0


def run(places: Places, asked: IncidentsQuestion) -> IncidentsAnswer:
    target = asked.target or places.default
    seen = look(places, asked.target, asked.window)
    missing = [untrusted(line) for line in seen.missing]
    listed = seen.explanation.incidents
    if asked.id is not None:
        one = next((one for one in listed if one.id == asked.id), None)
        if one is None:
            raise UserError(f"there is no incident {asked.id} in this window; there are {len(listed)}")
        return IncidentsAnswer(target=target, incidents=[{**_row(one), **details(one)}], total=len(listed), not_measured_untrusted=missing)
    bad = SEVERITIES[SEVERITIES.index(asked.min_severity) :]
    chosen = [one for one in sorted(listed, key=lambda one: -one.start_unix_s) if one.severity in bad]
    page = chosen[asked.cursor : asked.cursor + asked.limit]
    first = Next("incidents", {"target": target, "window": asked.window, "id": page[0].id}) if page else None
    more = len(chosen) > asked.cursor + len(page)
    return IncidentsAnswer(
        target=target, incidents=[_row(one) for one in page], total=len(chosen), not_measured_untrusted=missing, truncated=more,
        next=None if more else first,
    )  # fmt: skip


def _row(one: Episode) -> dict[str, Any]:
    return {
        "id": one.id, "start_unix_s": one.start_unix_s, "end_unix_s": one.end_unix_s, "severity": one.severity,
        "symptom": symptom_of(one.symptom), "cause": cause_of(one.cause), "lost_gpu_s": one.gpu_lost_s,
        "gpu": one.gpu, "trainer_pid": one.trainer_pid,
        "headline_untrusted": untrusted(one.headline),
    }  # fmt: skip
