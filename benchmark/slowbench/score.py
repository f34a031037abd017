"""Score answers: pure functions of runs and truths."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slowbench.observe import Answer, Observed, Run
from slowbench.truth import START, Truth
from slowbench.vocabulary import IDLE, NONE, PAUSE, UNKNOWN, WORKS

HARM, HELP = 0.90, 1.05  # gain below which advice harms, from which it helps: windows of 3 s of an untouched job differ by less


@dataclass(frozen=True, slots=True)
class Score:
    """One tool on one job. None: not asked of this job."""

    symptom: bool | None
    cause: bool | None
    culprits: bool | None
    seconds: float | None  # from the onset to the first answer that is right and remains so; None: never
    false_alarm: bool | None  # at the end of a calm job, or before the onset of one that is calm until then
    abstained: bool | None  # it named no cause of a job that has one
    helped: bool | None  # whether the first advice helped; None: not applied
    harmed: bool | None
    advised_calm: bool | None  # whether it wants a change where nothing is wrong


def is_right(answer: Answer, truth: Truth) -> bool:
    """Whether symptom and cause agree with the truth; for a calm job the symptom alone."""
    return answer.symptom == truth.symptom and (truth.is_calm or answer.cause == truth.cause)


def alarms(answer: Answer) -> bool:
    """Whether the answer reports trouble."""
    return answer.cause not in (NONE, UNKNOWN, PAUSE) or answer.symptom not in (WORKS, IDLE, UNKNOWN)


def parted(one: Observed, truth: Truth, run: Run) -> tuple[list[Answer], list[Answer]]:
    """Answers before the disturbance began, and since then. A calm job, and one with trouble from its start, have the latter alone."""
    if truth.is_calm or truth.onset == START:
        return [], one.answers
    return [answer for answer in one.answers if answer.at_s < run.begun_s], [a for a in one.answers if a.at_s >= run.begun_s]


def seconds_to(answers: list[Answer], truth: Truth) -> float | None:
    """Seconds from the onset to the first answer that is right and remains so; None if the last one is wrong."""
    since: float | None = None
    for answer in answers:
        since = (answer.at_s if since is None else since) if is_right(answer, truth) else None
    return None if since is None else max(0.0, since)


def names_culprits(answer: Answer, truth: Truth, culprits: Mapping[str, str]) -> bool | None:
    """Whether the first culprits of the answer are the right ones, by pid or name, in any order; None without culprits."""
    if not truth.culprits:
        return None

    def true_name(one: str) -> str | None:
        """Name of the culprit; the kernel cuts names to 15 bytes."""
        return culprits.get(one) or next((name for name in truth.culprits if one[:15] == name[:15]), None)

    named = list(dict.fromkeys(answer.culprits))
    meant = [true_name(one) for one in named[: max(len(truth.culprits), len(culprits))]]
    first = meant[: len(truth.culprits)]
    return bool(first) and None not in first and {*truth.culprits} <= {*meant}


def scored(one: Observed, truth: Truth, run: Run) -> Score:
    """Score one tool on one job."""
    last, calm = one.last, truth.is_calm
    before, since = parted(one, truth, run)
    stands = bool(since) or not before  # an answer that was there before the trouble is none about it
    early = alarms(before[-1]) if before else None if truth.onset == START or not one.version else False
    gain = one.tried.gain if one.tried else None
    return Score(
        symptom=stands and last.symptom == truth.symptom,
        cause=None if calm else stands and is_right(last, truth),
        culprits=names_culprits(last if stands else Answer(0.0), truth, run.culprits),
        seconds=None if calm else seconds_to(since, truth),
        false_alarm=alarms(last) if calm else early,
        abstained=None if calm else last.cause == UNKNOWN or last.symptom == UNKNOWN,
        helped=None if gain is None or calm else gain >= HELP,
        harmed=None if gain is None else gain < HARM,
        advised_calm=bool(last.command) if calm else None,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """One tool over some jobs; pairs are (met, asked)."""

    tool: str
    version: str
    needs: tuple[str, ...]
    jobs: int
    symptom: tuple[int, int]
    cause: tuple[int, int]
    wrong: tuple[int, int]  # another cause was named
    abstained: tuple[int, int]
    culprits: tuple[int, int]
    false_alarms: tuple[int, int]
    helped: tuple[int, int]
    harmed: tuple[int, int]
    advised_calm: tuple[int, int]
    median_s: float | None
    cpu_pct: float | None
    fault: str


def rows(runs: Iterable[Run], truths: Mapping[str, Truth]) -> list[Row]:
    """A row for each tool, in the order in which they came."""
    by_tool: dict[str, dict[str, tuple[Observed, Score]]] = {}
    for run in runs:
        for one in run.observed:  # the last run of a job counts
            by_tool.setdefault(one.tool, {})[run.job] = one, scored(one, truths[run.job], run)
    return [_row(tool, [*found.values()]) for tool, found in by_tool.items()]


def _row(tool: str, found: list[tuple[Observed, Score]]) -> Row:
    here = [one for one, _ in found if one.version]
    scores = [score for _, score in found]
    delays = [score.seconds for score in scores if score.seconds is not None]
    loads = [one.cpu_pct for one in here if one.cpu_pct is not None]
    wrong = [None if score.cause is None else not (score.cause or score.abstained) for score in scores]
    return Row(
        tool=tool, version=here[0].version if here else "", needs=tuple(here[0].needs) if here else (), jobs=len(found),
        symptom=_count(score.symptom for score in scores), cause=_count(score.cause for score in scores), wrong=_count(wrong),
        abstained=_count(score.abstained for score in scores), culprits=_count(score.culprits for score in scores),
        false_alarms=_count(score.false_alarm for score in scores), helped=_count(score.helped for score in scores),
        harmed=_count(score.harmed for score in scores), advised_calm=_count(score.advised_calm for score in scores),
        median_s=round(statistics.median(delays), 1) if delays else None, cpu_pct=round(statistics.median(loads), 1) if loads else None,
        fault=next((one.fault for one, _ in found if one.fault), ""),
    )  # fmt: skip


def _count(marks: Iterable[bool | None]) -> tuple[int, int]:
    asked = [mark for mark in marks if mark is not None]
    return sum(asked), len(asked)
