"""The table: a row for each tool, of all jobs and of each half."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from slowbench.observe import Run
from slowbench.score import Row, is_right, rows
from slowbench.truth import HALVES, OPEN_HALF, Truth

HEADS = (
    "tool", "jobs", "cause", "symptom", "culprit", "wrong cause", "no cause", "false alarms", "median s", "advice helped", "harmed",
    "advice to a calm job", "CPU %", "slows by", "needs",
)  # fmt: skip


def text(runs: list[Run], truths: Mapping[str, Truth], halves: Mapping[str, str], slowdowns: Mapping[str, float | None]) -> str:
    """The table as Markdown. Jobs that could not run are counted, and in no row."""
    ran = [run for run in runs if not run.fault and run.job in truths]
    calm = sum(truths[job].is_calm for job in {run.job for run in ran})
    loads = [run.others_cpus for run in ran]
    count = len({run.job for run in ran})
    failed = sorted({run.job for run in runs if run.fault} - {run.job for run in ran})
    lines = [f"{count} jobs, {count - calm} with a cause and {calm} with none; {len(failed)} could not run: {', '.join(failed) or 'none'}."]
    if loads:
        lines.append(f"Unrelated processes took {statistics.median(loads):.1f} CPUs (median of the runs), {max(loads):.1f} at most.")
    parts = [("All jobs", ran), *((f"The {half} half", [run for run in ran if halves.get(run.job) == half]) for half in HALVES)]
    for title, some in parts:
        if some:
            lines += ["", f"### {title}", "", *_table(rows(some, truths), slowdowns)]
    return "\n".join(lines) + "\n"


def wrong(runs: list[Run], truths: Mapping[str, Truth], halves: Mapping[str, str]) -> list[str]:
    """A line for each wrong answer on the open half. Those of the sealed half are not printed: nobody may fit a tool to them."""
    return [
        f"{run.job}, {one.tool}: {one.last.symptom} / {one.last.cause}, not {truths[run.job].symptom} / {truths[run.job].cause}"
        for run in runs
        for one in run.observed
        if halves.get(run.job) == OPEN_HALF and one.version and not is_right(one.last, truths[run.job])
    ]


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
