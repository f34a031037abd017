"""How often the diagnosis is right: judge the recordings of the labelled workloads anew (`make accuracy`), or make them (`--record`).

The corpus has two halves (`split.toml`): rules may be fitted to `learn`; of `hold-out` only counts are printed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from tests.corpus import calm, runs, split
from tests.corpus.judging import SAID, SURE, Outcome, judge_file
from tests.corpus.runs import MODES
from tests.device.labels import KEPT
from tests.workloads import scenario
from tests.workloads.environment import ROOT

Found = TypeVar("Found")
DATA = Path(__file__).with_name("data")
DEVICE = ROOT / "tests" / "device" / "data"
FLOOR = Path(__file__).with_name("floor.json")
RECORDED = ROOT / ".build" / "corpus"
MOST_BYTES = 16_000_000  # of all runs in the repository
_ATTEMPTS = 3
_PATIENCE_S = 120.0


def main() -> int:
    """Exit 0, 1 where nothing could be judged or a run is missing, 2 for wrong usage. Only tables go to standard output."""
    options = _options()
    if options.record or options.pack:
        return _record(options)
    outcomes = judged(paths(options.only, options.half, options.at))
    if options.accept:
        FLOOR.write_text(json.dumps(figures([one for one in outcomes if split.half_of(one.workload) == split.LEARN]), indent=2) + "\n")
    print(json.dumps(by_half(outcomes), indent=2) if options.json else "\n\n".join(tables(outcomes)))
    if options.wrong and not options.json:
        print("\n".join(["", *wrong(outcomes, options.reveal)]))
    missing = set(options.only or scenario.names()) - {*KEPT, *(path.stem for path in options.at.glob("*.xz"))}
    if options.at == DATA and missing:
        print(f"{len(missing)} workloads have no recording: make accuracy ARGS=--record", file=sys.stderr)
    return 0 if outcomes else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make accuracy", description=__doc__)
    parser.add_argument("--half", choices=(*split.HALVES, "all"), default="all")
    parser.add_argument("--only", nargs="+", type=scenario.called, choices=[*scenario.names(), *KEPT], default=[], metavar="NAME")
    parser.add_argument("--wrong", action="store_true", help="list what was said wrongly, of the half `learn`")
    parser.add_argument("--reveal", action="store_true", help="of the half `hold-out` as well, which spoils it")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    parser.add_argument("--accept", action="store_true", help=f"write the figures of `learn` into {FLOOR.name}: the tests fail below them")
    parser.add_argument("--record", action="store_true", help="record the workloads anew, go on where an earlier call ended, and pack")
    parser.add_argument("--pack", action="store_true", help="put what was recorded so far into the repository, though some are missing")
    parser.add_argument("--seconds", type=float, default=9.0, help="length of a run from the disturbance on (9)")
    repeats = f"repeat a run during which others took more ({calm.OTHERS_CPUS})"
    parser.add_argument("--others", type=float, default=calm.OTHERS_CPUS, metavar="CPUS", help=repeats)
    parser.add_argument("--at", type=Path, metavar="DIR", help="judge the runs there, or record them there without packing")
    options = parser.parse_args()
    if options.accept and (options.only or options.at or options.half == split.HOLD_OUT):
        parser.error("--accept needs the whole half that the repository holds")
    options.into, options.at = options.at or RECORDED, options.at or DATA
    return options


def paths(only: Iterable[str] = (), half: str = "all", folder: Path = DATA) -> list[Path]:
    """The runs of ``folder``, with the kept recordings of a real GPU where that is the repository's."""
    names = set(only)
    found = sorted(folder.glob("*.xz")) + ([DEVICE / f"{name}.gputop" for name in KEPT] if folder == DATA else [])
    return [path for path in found if (not names or path.stem in names) and half in ("all", split.half_of(path.stem))]


def judged(files: list[Path]) -> list[Outcome]:
    """What is said of each."""
    return list(chain.from_iterable(of_each(files, judge_file)))


def of_each(files: list[Path], find: Callable[[Path], Found]) -> list[Found]:
    """What ``find`` finds in each, on all CPUs."""
    with ProcessPoolExecutor(scenario.cpus(), get_context("spawn")) as pool:  # a test's process has threads, and may not fork
        return list(pool.map(find, files))


def figures(outcomes: list[Outcome]) -> dict[str, dict[str, Any]]:
    """Mode -> counts, and seconds to the right verdict."""
    return {mode: _figures([one for one in outcomes if one.mode == mode]) for mode in MODES if any(one.mode == mode for one in outcomes)}


def _figures(rows: list[Outcome]) -> dict[str, Any]:
    delays = sorted(float("inf") if one.delay_s is None else one.delay_s for one in rows if one.timed)
    return {
        "judged": len(rows), "right": sum(one.right for one in rows),
        **{f"{key}_{name}": count for name, bounds in SAID.items() for key, count in _said(rows, *bounds).items()},
        **_count("calm", "false_alarms", [one.false_alarm for one in rows]),
        **_count("with_log", "lost_right", [one.lost_right for one in rows]),
        **_count("to_mend", "advice_right", [one.advice_right for one in rows]),
        **_count("advised", "advice_harms", [one.advice_harms for one in rows]),
        **_count("with_end", "end_right", [one.end_right for one in rows]),
        **_count("with_victims", "victims_right", [one.victims_right for one in rows]),
        **_count("with_culprits", "culprits_right", [one.culprits_right for one in rows]),
        "timed": len(delays), "median_s": _quantile(delays, 0.5), "p95_s": _quantile(delays, 0.95),
    }  # fmt: skip


def _said(rows: list[Outcome], least: float, below: float) -> dict[str, int]:
    return _count("said", "said_right", [one.said_right(least, below) for one in rows])


def _count(asked: str, met: str, marks: list[bool | None]) -> dict[str, int]:
    return {asked: sum(mark is not None for mark in marks), met: sum(mark is True for mark in marks)}


def _quantile(ranked: list[float], part: float) -> float | None:
    """None where there is none, or that part never got there."""
    found = ranked[min(len(ranked) - 1, int(part * len(ranked)))] if ranked else float("inf")
    return None if found == float("inf") else round(found, 1)


def by_half(outcomes: list[Outcome]) -> dict[str, dict[str, Any]]:
    """Half -> mode -> all figures, and those of each cause."""
    found: dict[str, dict[str, Any]] = {}
    for half in split.HALVES:
        own = [one for one in outcomes if split.half_of(one.workload) == half]
        causes = sorted({_cause(one) for one in own})
        parts = {cause: figures([one for one in own if _cause(one) == cause]) for cause in causes}
        found[half] = {
            mode: {"all": known, "by_cause": {cause: part[mode] for cause, part in parts.items() if mode in part}}
            for mode, known in figures(own).items()
        }
    return found


def _cause(one: Outcome) -> str:
    return one.label.symptom if one.label.cause == "none" else one.label.cause


_HEADS = ("cause", "right", "wrong", "false alarms", "victims", "culprits", "median s", "95 % s")


def tables(outcomes: list[Outcome]) -> list[str]:
    """A Markdown table for each half and mode, with a row for each cause, and the totals of both halves."""
    texts = []
    for half, modes in by_half(outcomes).items():
        for mode, found in modes.items():
            rows = [*((cause, part) for cause, part in found["by_cause"].items()), ("**all**", found["all"])]
            texts.append(_table(f"{half}, {mode}", rows))
    return [*texts, _table("both halves", list(figures(outcomes).items())), _care(outcomes), *_traces(outcomes)]


def _traces(outcomes: list[Outcome]) -> Iterator[str]:
    """A Markdown table of the shares by torch's own traces beside gputop's, where recordings have any."""
    found = [(one, check) for one in outcomes for check in one.checks if check.gputop_pct is not None]
    rows = [
        (f"{one.workload}, {one.mode}", check.part, f"{check.trace_pct:.0f}", f"{check.gputop_pct:.0f}",
         {True: "yes", False: "no", None: "unclear"}[check.agrees])
        for one, check in found
    ]  # fmt: skip
    if rows:
        title = f"torch's own traces beside gputop: {sum(check.agrees is True for _, check in found)} of {len(found)} shares agree"
        yield _aligned(title, [("workload", "share", "trace %", "gputop %", "agrees"), *rows])


_CARE = (
    *((f"right of those said at {name}", f"said_right_{name}", f"said_{name}") for name in list(SAID)[:-1]),
    (f"at {SURE} or above", f"said_right_{SURE}", f"said_{SURE}"), ("lost share within 10 points", "lost_right", "with_log"),
    ("path to the culprit", "end_right", "with_end"), ("alarms of healthy and idle jobs", "false_alarms", "calm"),
    ("first fix sensible", "advice_right", "to_mend"), ("harmful", "advice_harms", "advised"),
)  # fmt: skip


def _care(outcomes: list[Outcome]) -> str:
    """A Markdown table: of each half and mode, how often what is said beside the cause is right."""
    rows = [("half, mode", *(head for head, _, _ in _CARE))]
    for half, modes in by_half(outcomes).items():
        for mode, found in modes.items():
            counts = found["all"]
            rows.append((f"{half}, {mode}", *(f"{counts[met]} of {counts[asked]}" if counts[asked] else "–" for _, met, asked in _CARE)))
    return _aligned("with care", rows)


def _table(title: str, rows: list[tuple[str, dict[str, Any]]]) -> str:
    return _aligned(f"{title}: {_percent(rows)}", [_HEADS, *(_row(name, part) for name, part in rows)])


def _aligned(title: str, rows: list[tuple[str, ...]]) -> str:
    """A Markdown table; its first row has the heads."""
    lines = [rows[0], ("---", *["--:"] * (len(rows[0]) - 1)), *rows[1:]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(rows[0]))]
    body = ["| " + " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) + " |" for line in lines]
    return "\n".join([f"## {title}", "", *body])


def _percent(rows: list[tuple[str, dict[str, Any]]]) -> str:
    parts = [rows[-1][1]] if rows[-1:] and rows[-1][0] == "**all**" else [part for _, part in rows]
    right, judged_ = sum(part["right"] for part in parts), sum(part["judged"] for part in parts)
    return f"{right} of {judged_} right ({100 * right / max(1, judged_):.0f} %)"


def _row(name: str, part: dict[str, Any]) -> tuple[str, ...]:
    pairs = (("false_alarms", "calm"), ("victims_right", "with_victims"), ("culprits_right", "with_culprits"))
    marks = [f"{part[met]}/{part[asked]}" if part[asked] else "" for met, asked in pairs]
    delays = ["" if not part["timed"] else "never" if part[key] is None else f"{part[key]:.1f}" for key in ("median_s", "p95_s")]
    return name, str(part["right"]), str(part["judged"] - part["right"]), *marks, *delays


def wrong(outcomes: list[Outcome], reveal: bool = False) -> list[str]:
    """A line for each wrong verdict, blame or alarm of `learn`, of both halves with ``reveal``."""
    lines = []
    for one in outcomes:
        if reveal or split.half_of(one.workload) == split.LEARN:
            faults = [f"said {' / '.join([str(one.symptom), one.cause, *sorted(one.beside)])}"] if not one.right else []
            faults += [f"{one.loud} incidents of a job that is not slowed"] if one.false_alarm else []
            faults += [f"victims {sorted(one.victims)}"] if one.victims_right is False and one.right else []
            faults += [f"culprits {one.culprits}, not {one.true_culprits}"] if one.culprits_right is False and one.right else []
            lines += [f"{one.workload}, {one.mode}, {one.label.symptom} / {one.label.cause}: {'; '.join(faults)}"] if faults else []
    return lines


def _record(options: argparse.Namespace) -> int:
    """Record what is missing or out of date at ``options.into``, and pack all of it once nothing is missing."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no workload or collector is left behind
    options.into.mkdir(parents=True, exist_ok=True)
    names = [name for name in options.only or scenario.names() if name not in KEPT]
    todo = [name for name in names if not _is_fresh(name, options)]
    began, left_out = time.monotonic(), []
    for number, name in enumerate(todo if options.record else []):
        fault = _attempt(name, options)
        left_out += [name] if fault else []
        eta_s = (time.monotonic() - began) / (number + 1) * (len(todo) - number - 1)
        print(f"{number + 1} of {len(todo)}, {eta_s / 60:.0f} min left: {name} {fault or 'recorded'}", file=sys.stderr, flush=True)
    if left_out:
        print(f"{len(left_out)} left out: run it again, or --pack without them: {' '.join(left_out)}", file=sys.stderr)
    if options.into == RECORDED and (options.pack or not left_out):
        _pack(options.into, names)
    return 1 if left_out else 0


def _is_fresh(name: str, options: argparse.Namespace) -> bool:
    path = options.into / f"{name}.xz"
    return path.exists() and runs.load(path).definition == runs.definition(name, options.seconds)


def _attempt(name: str, options: argparse.Namespace) -> str:
    """Record one workload, again where others disturbed it: its label would not be the truth. Why it was left out; empty if it was not."""
    fault = ""
    for _ in range(_ATTEMPTS):
        if not calm.wait(options.others / 2, _PATIENCE_S):
            return "left out: the host was never calm"
        try:
            what = scenario.load(name)
            lasts_s = max(options.seconds, what.least_s) + (0.0 if what.disturb else runs.BEFORE_S)
            run = runs.record(name, lasts_s, MODES)
        except Exception as error:  # noqa: BLE001 (one workload must not end an hour's work)
            fault = f"{type(error).__name__}: {error}"
            continue
        fault = _fault(run, options)
        if not fault:
            run.definition = runs.definition(name, options.seconds)
            runs.save(runs.neutral(run), options.into / f"{name}.xz")
            return ""
    return f"left out: {fault}"


def _fault(run: runs.Run, options: argparse.Namespace) -> str:
    """Why a run cannot be kept; empty if it can."""
    if run.others_cpus >= options.others:
        return f"others took {run.others_cpus:.1f} CPUs"
    last = {state.name: state.state for item in run.items("eBPF") for state in getattr(item, "sources", ())}
    return "" if options.into != RECORDED or last.get("ebpf") == "ok" else f"the eBPF source is {last.get('ebpf')}"


def _pack(folder: Path, names: list[str]) -> None:
    """Move the runs into the repository; those of workloads that are gone go."""
    DATA.mkdir(exist_ok=True)
    for name in names:
        if (path := folder / f"{name}.xz").exists():
            path.replace(DATA / path.name)
    for path in DATA.glob("*.xz"):
        if path.stem not in scenario.names():
            path.unlink()
    sizes = [path.stat().st_size for path in DATA.glob("*.xz")]
    print(f"{DATA.relative_to(ROOT)}: {len(sizes)} runs, {sum(sizes) / 1e6:.2f} of {MOST_BYTES / 1e6:.0f} MB", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
