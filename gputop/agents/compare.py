"""Tool `compare`: before and after a fix, as `gputop diff` does."""

from __future__ import annotations

from msgspec import field

from gputop.agents.answer import Answer, Asked, Row, untrusted
from gputop.agents.look import ALL, Look, cause_of, look, symptom_of
from gputop.agents.places import Places
from gputop.findings.text import LEAST_LOST

SAYS = (
    "Before and after a fix: share of GPU time lost, by cause, pace, verdicts. before and after are targets, or two windows of one target "
    "(before_window, after_window, as in diagnose). Changes are after minus before."
)

CHANCE = 0.02  # share of lost GPU time by which two runs of one job may differ by chance (guess)


class CompareQuestion(Asked):
    before: str = ""
    after: str = ""
    before_window: str = ALL
    after_window: str = ALL


class CompareAnswer(Answer):
    before: Row = field(default_factory=dict)
    after: Row = field(default_factory=dict)
    lost_share_change: float | None = None
    steps_per_s_change: float | None = None
    by_cause: dict[str, list[float]] = {}
    improved: bool | None = None


def run(places: Places, asked: CompareQuestion) -> CompareAnswer:
    before = look(places, asked.before or asked.target, asked.before_window)
    after = look(places, asked.after or asked.target, asked.after_window)
    sides = (before, after)
    lost, paces = [one.explanation.ledger.lost_share for one in sides], [one.explanation.verdict.steps_per_s for one in sides]
    shares = [one.explanation.ledger.cause_shares for one in sides]
    causes = {cause: max(part.get(cause, 0.0) for part in shares) for part in shares for cause in part if cause_of(cause)}
    change = _change(lost)
    return CompareAnswer(
        target=asked.target or places.default, before=_side(before), after=_side(after), lost_share_change=change,
        steps_per_s_change=_change(paces), improved=None if change is None else change < -CHANCE,
        by_cause={
            cause: [round(part.get(cause, 0.0), 4) for part in shares]
            for cause in sorted(causes, key=lambda cause: -causes[cause]) if causes[cause] >= LEAST_LOST
        },
        not_measured_untrusted=[
            untrusted(f"{side}: {line}") for side, one in zip(("before", "after"), sides, strict=True) for line in one.missing
        ],
    )  # fmt: skip


def _change(values: list[float | None]) -> float | None:
    old, new = values
    return None if old is None or new is None else round(new - old, 4)


def _side(one: Look) -> Row:
    said, share = one.explanation.verdict, one.explanation.ledger.lost_share
    return {
        "seconds": one.seconds, "symptom": symptom_of(said.symptom), "cause": cause_of(said.cause),
        "headline_untrusted": untrusted(said.headline), "lost_share": None if share is None else round(share, 4),
        "steps_per_s": said.steps_per_s, "incidents": len(one.explanation.incidents),
    }  # fmt: skip
