"""How often the diagnosis is right: `python -m tests.bench.accuracy`, a confusion table over the labelled workloads.

Each workload of `tests.workloads` runs several times; beside each run one collector with eBPF and one without record the same
seconds, and the engine's verdict on both (what `gputop explain` prints) is compared with the label.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.bench import calm, judging
from tests.bench.judging import Outcome
from tests.workloads import runner, scenario

_ATTEMPTS = 3
_PATIENCE_S = 60.0
MODES = {"eBPF": [], "/proc": ["--no-ebpf"]}


def main() -> int:
    """Exit 0, 1 where nothing could be measured, 2 for wrong usage. The table goes to standard output, progress to standard error."""
    options = _options()
    if options.again:
        outcomes = [_judged(one, options.again) for one in judging.recorded(options.again) if one.workload in options.only]
    else:
        with ExitStack() as stack:
            folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gputop-accuracy-")))
            folder.mkdir(parents=True, exist_ok=True)
            names = [name for _ in range(options.runs) for name in options.only]
            outcomes = [outcome for name in names for outcome in _attempt(name, folder, options)]
    print(table(outcomes))
    print(summary(outcomes))
    return 0 if outcomes else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.accuracy", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each workload (5)")
    parser.add_argument("--quick", action="store_true", help="one run each")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of a run from the disturbance on (15)")
    parser.add_argument("--only", nargs="+", choices=scenario.names(), default=scenario.names(), metavar="NAME")
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--others", type=float, default=0.4, metavar="CPUS", help="repeat a run during which others took more (0.4)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the recordings there")
    parser.add_argument("--again", type=Path, metavar="DIR", help="judge recordings kept there, instead of running anything")
    options = parser.parse_args()
    options.runs = 1 if options.quick else options.runs
    return options


def _attempt(name: str, folder: Path, options: argparse.Namespace) -> list[Outcome]:
    """One run of ``name``, begun again where others disturbed it: its label would not be the truth."""
    for _ in range(_ATTEMPTS):
        calm.wait(options.others, _PATIENCE_S)
        try:
            found = judging.record(name, options.seconds, {mode: MODES[mode] for mode in options.modes}, folder)
        except runner.NotReady as error:
            print(f"left out: {error}", file=sys.stderr)
            return []
        if found[0].others_cpus < options.others:
            return [_judged(one, folder) for one in found]
        print(f"again: {name}, others took {found[0].others_cpus:.1f} CPUs", file=sys.stderr, flush=True)
        judging.forget(found, folder)
    print(f"left out: {name}, the host was never calm", file=sys.stderr, flush=True)
    return []


def _judged(recorded: judging.Recorded, folder: Path) -> Outcome:
    one = judging.judge(recorded, folder)
    mark = "right" if one.right else f"WRONG, wanted {one.label.symptom} / {one.label.cause}"
    delay = "never" if one.delay_s is None else f"{one.delay_s:.1f} s"
    said = f"{one.symptom} / {one.cause}, first right after {delay}, live {one.live_share:.0%}, {one.loud} loud"
    print(f"{recorded.path} {one.mode}: {said}: {mark}", file=sys.stderr, flush=True)
    return one


def table(outcomes: list[Outcome]) -> str:
    """Markdown: a row per workload, what was said of it in each mode, and what instead where it was wrong."""
    modes = list(dict.fromkeys(one.mode for one in outcomes))
    heads = " | ".join(f"{mode}: right | in 3 s | live | said instead" for mode in modes)
    lines = [f"| workload | symptom | cause | {heads} |", "|---|---|---|" + "---|" * 4 * len(modes)]
    for name in dict.fromkeys(one.workload for one in outcomes):
        rows = [one for one in outcomes if one.workload == name]
        cells = [cell for mode in modes for cell in _cells([one for one in rows if one.mode == mode])]
        lines.append(f"| {name} | {rows[0].label.symptom} | {rows[0].label.cause} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(rows: list[Outcome]) -> list[str]:
    wrong = Counter(f"{one.symptom}/{one.cause}" for one in rows if not one.right)
    swift = sum(one.delay_s is not None and one.delay_s <= 3.0 for one in rows)
    live = sum(one.live_share for one in rows) / max(1, len(rows))
    instead = ", ".join(f"{said} ×{count}" for said, count in wrong.most_common())
    return [f"{sum(one.right for one in rows)}/{len(rows)}", f"{swift}/{len(rows)}", f"{live:.0%}", instead or "–"]


def summary(outcomes: list[Outcome]) -> str:
    """Percentages per mode, with what was blamed and what healthy runs had to hear."""
    lines = [""]
    for mode in dict.fromkeys(one.mode for one in outcomes):
        rows = [one for one in outcomes if one.mode == mode]
        right = f"{_share([one.right for one in rows])} symptom and cause right"
        lines.append(f"- **{mode}**: {right}; {_blame(rows)}; {_alarms(rows)}; {_others(rows)}.")
        states = {one.sources.get("ebpf", "absent") for one in rows}
        if mode == "eBPF" and states != {"ok"}:
            lines.append(f"  (in these runs the eBPF source was {', '.join(sorted(states))})")
    return "\n".join(lines)


def _blame(rows: list[Outcome]) -> str:
    return f"culprits {_share([one.culprits_right for one in rows if one.culprits_right is not None])}"


def _alarms(rows: list[Outcome]) -> str:
    healthy = [one for one in rows if one.label.symptom == "healthy"]
    return f"{sum(one.loud > 0 for one in healthy)} of {len(healthy)} healthy runs with an incident of medium severity or above"


def _others(rows: list[Outcome]) -> str:
    taken = [one.others_cpus for one in rows]
    return f"others took {statistics.median(taken):.1f} CPUs meanwhile, at most {max(taken):.1f}"


def _share(marks: list[bool | None]) -> str:
    good = sum(bool(mark) for mark in marks)
    return f"{100 * good / len(marks):.0f} % ({good} of {len(marks)})" if marks else "– (none)"


if __name__ == "__main__":
    sys.exit(main())
