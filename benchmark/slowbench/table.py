"""The table: a row for each tool, of all jobs and of each half."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping

from slowbench import jobs
from slowbench.observe import EDIT, OTHERS, Observed, Run
from slowbench.score import Row, is_right, parted, rows, scored
from slowbench.truth import HALVES, OPEN_HALF, Truth

HEADS = (
    "tool", "jobs", "cause", "symptom", "culprit", "wrong cause", "no cause", "false alarms", "median s", "advice helped", "harmed",
    "advice to a calm job", "CPU %", "slows by", "needs",
)  # fmt: skip
MOST_FAULT, MOST_FAULTS = 120, 20  # characters of a fault below the table, and faults


def text(runs: list[Run], truths: Mapping[str, Truth], halves: Mapping[str, str], slowdowns: Mapping[str, float | None]) -> str:
    """The table as Markdown. Jobs that could not run are counted, and in no row."""
    ran = [run for run in runs if not run.fault and not run.is_disturbed and run.job in truths]
    disturbed = sorted({run.job for run in runs if not run.fault and run.is_disturbed} - {run.job for run in ran})
    calm = sum(truths[job].is_calm for job in {run.job for run in ran})
    loads = [run.others_cpus for run in ran]
    count = len({run.job for run in ran})
    failed = sorted({run.job for run in runs if run.fault} - {run.job for run in ran})
    lines = [f"{count} jobs, {count - calm} with a cause and {calm} with none; {len(failed)} could not run: {', '.join(failed) or 'none'}."]
    if disturbed:
        took = f"Unrelated processes took more than {jobs.calm.OTHERS_CPUS} CPUs beside {len(disturbed)} more, which are not scored"
        lines.append(f"{took}: {', '.join(disturbed)}.")
    if loads:
        lines.append(f"Unrelated processes took {statistics.median(loads):.1f} CPUs (median of the runs), {max(loads):.1f} at most.")
    parts = [(half, [run for run in ran if halves.get(run.job) == half]) for half in HALVES]
    if only := next((half for half, some in parts if some and len(some) == len(ran)), ""):
        parts = [(only, ran)]
    else:
        parts.insert(0, ("", ran))
    for half, some in parts:
        if some:
            lines += ["", f"### The {half} half" if half else "### All jobs", "", *_table(rows(some, truths), slowdowns)]
    if mixed := sorted(tool for tool, digests in _digests(ran).items() if len(digests) > 1):
        lines += ["", f"Of several versions of the program, so run it anew with another -o: {', '.join(mixed)}."]
    if found := _faults(ran):
        lines += ["", "Faults of the tools, each with the number of runs:", "", *found]
    return "\n".join(lines) + "\n"


def _digests(runs: list[Run]) -> dict[str, set[str]]:
    """Tool -> its programs' hashes in the last runs of the jobs."""
    last = {(one.tool, run.job): one.digest for run in runs for one in run.observed}
    found: dict[str, set[str]] = {}
    for (tool, _job), digest in last.items():
        found.setdefault(tool, set()).add(digest)
    return found


def _faults(runs: list[Run]) -> list[str]:
    counts = Counter((one.tool, one.fault[:MOST_FAULT]) for run in runs for one in run.observed if one.fault and one.version)
    return [f"- {tool}: {fault} ({count})" for (tool, fault), count in counts.most_common(MOST_FAULTS)]


def wrong(runs: list[Run], truths: Mapping[str, Truth], halves: Mapping[str, str]) -> list[str]:
    """A line for each wrong answer on the open half, and for each run with a fault of the tool, of the last run of each job. Those on other
    jobs are not printed: nobody may fit a tool to them."""
    last = {(run.job, one.tool): (run, one) for run in runs if not (run.fault or run.is_disturbed) for one in run.observed}
    found = [(run, one, _wrong(one, truths[run.job], run, halves.get(run.job) == OPEN_HALF)) for run, one in last.values()]
    return [f"{run.job}, {one.tool}: {'; '.join(why)}" for run, one, why in found if why]


def _wrong(one: Observed, known: Truth, run: Run, is_open: bool) -> list[str]:
    score, (before, since), last = scored(one, known, run), parted(one, known, run), one.last
    found = [f"fault: {one.fault}"] if one.fault else []
    if not is_open:
        return found
    if one.version and not (score.symptom and score.cause is not False):
        given = f"{last.symptom} / {last.cause}" if one.answers else "no answer"
        given += "" if since or not before else ", given before the onset and not since"
        if rights := [answer.at_s for answer in since if is_right(answer, known)]:
            given += f" (right from {rights[0]:.1f} to {rights[-1]:.1f} s after the onset)"
        found.insert(0, f"{given}, not {known.symptom} / {known.cause}")
    if one.tried is not None and one.tried.why_not not in ("", EDIT, OTHERS):
        found.append(f"its advice was not applied, for {one.tried.why_not}")
    if not known.is_calm and score.false_alarm and one.version:
        found.append(f"false alarm before the onset: {before[-1].symptom} / {before[-1].cause}")
    return found


def _table(found: list[Row], slowdowns: Mapping[str, float | None]) -> list[str]:
    cells = [HEADS, tuple("---" if not i else "--:" for i in range(len(HEADS))), *(_cells(row, slowdowns.get(row.tool)) for row in found)]
    return ["| " + " | ".join(line) + " |" for line in cells]


def _cells(row: Row, slowdown: float | None) -> tuple[str, ...]:
    if not row.version:
        return f"{row.tool}: {row.fault[:80]}", *["–"] * (len(HEADS) - 1)
    return (
        f"{row.tool} {row.version}", str(row.jobs), _of(row.cause), _of(row.symptom), _of(row.culprits), _of(row.wrong), _of(row.abstained),
        _of(row.false_alarms), "never" if row.median_s is None else f"{row.median_s:.1f}", _of(row.helped), _of(row.harmed),
        _of(row.advised_calm), "–" if row.cpu_pct is None else f"{row.cpu_pct:.1f}", "–" if slowdown is None else f"{slowdown:.1f} %",
        ", ".join(row.needs) or "nothing",
    )  # fmt: skip


def _of(pair: tuple[int, int]) -> str:
    return f"{pair[0]}/{pair[1]}" if pair[1] else "–"
