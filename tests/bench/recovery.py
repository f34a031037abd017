"""What is said when a disturbance is over: how soon the job is healthy again, and whether anything else is blamed meanwhile."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from gputop.stream.following import Following
from tests.bench.figures import table
from tests.corpus.runs import MODES, Run, record
from tests.workloads import runner

WORKLOADS = (
    "cpu-contention", "cpu-contention-build", "cpu-contention-many-workers", "cpu-contention-bursts", "cpu-contention-pinned-hog",
    "cgroup-throttle", "memory-pressure", "hung-worker", "network-latency", "gpu-throttle", "straggler-rank",
)  # fmt: skip
"""Those whose disturbance is another process's, or is taken back."""


@dataclass(slots=True)
class Recovery:
    """After the end of one disturbance."""

    workload: str
    mode: str
    said: bool  # the labelled cause was named while it lasted
    healthy_s: float | None  # until the verdict was healthy and stayed so; None: never
    others: list[str]  # other causes that were named meanwhile and afterwards
    ended_s: float | None  # when the incident ended; None: never


def report(runs: int = 3, run_s: float = 6.0, after_s: float = 9.0) -> Iterator[str]:
    """One table."""
    yield f"## Recovery ({runs} runs: {run_s:g} s disturbed, {after_s:g} s after)"
    found = [one for name in WORKLOADS for _ in range(runs) for one in _run(name, run_s, after_s)]
    heads = ["workload", "sources", "named", "healthy again after, s", "incident ended after, s", "blamed meanwhile"]
    yield table(heads, [row(found, name, mode) for name in WORKLOADS for mode in MODES])


def row(found: list[Recovery], name: str, mode: str) -> list[object]:
    """The runs of one workload, read in one way."""
    own = [one for one in found if (one.workload, one.mode) == (name, mode)]
    healthy, ended = [one.healthy_s for one in own], [one.ended_s for one in own]
    others = sorted({cause for one in own for cause in one.others})
    return [name, mode, f"{sum(one.said for one in own)}/{len(own)}", _median(healthy), _median(ended), ", ".join(others) or "nothing"]


def _median(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    missing = f", {len(values) - len(known)} never" if len(known) < len(values) else ""
    return f"{statistics.median(known):.1f}{missing}" if known else "–"


def _run(name: str, run_s: float, after_s: float) -> list[Recovery]:
    try:
        run = record(name, run_s, MODES, after_s)
    except runner.NotReady as error:
        print(f"left out: {error}", file=sys.stderr)
        return []
    return [judge(run, mode) for mode in MODES]


def judge(run: Run, mode: str) -> Recovery:
    """Show the whole recording to an engine."""
    following, label = Following(), run.label
    engine = following.engine
    said, healthy_ns, others = False, None, []
    for board in following.through(run.items(mode)):
        cause, over = engine.verdict.cause, board.t_ns > run.ended_ns
        said |= not over and cause == label.cause
        if over and cause != "none":
            others += [cause] if cause != label.cause else []
            healthy_ns = None
        elif over and healthy_ns is None:
            healthy_ns = board.t_ns
    ends = [one.end_ns for one in engine.incidents if one.cause == label.cause]
    ended_ns = None if None in ends else max((end for end in ends if end is not None), default=None)
    since = [None if t_ns is None else (t_ns - run.ended_ns) / 1e9 for t_ns in (healthy_ns, ended_ns)]
    return Recovery(run.workload, mode, said, since[0], others, since[1])
