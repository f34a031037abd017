"""Run slow training jobs with known causes, let tools watch them, and print which tools find the causes."""

from __future__ import annotations

import argparse
import hashlib
import json
import secrets
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from slowbench import __version__, truth
from slowbench.vocabulary import CAUSES, SYMPTOMS

if TYPE_CHECKING:
    from slowbench.observe import Run
    from slowbench.tools import Tool

_CALM = "healthy-fast"  # the job on which it is measured how far a tool slows it
_INSIDE = 12  # jobs on which tools run that need one to themselves: with all of them the table would take more than an hour
_TABLE, _END = "<!-- table -->", "<!-- end of the table -->"  # marks of the page


def main(argv: list[str] | None = None) -> int:
    """Exit 0, 1 where nothing could be run or a truth is at fault, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="slowbench", description=__doc__)
    parser.add_argument("--version", action="version", version=f"slowbench {__version__}")
    parser.set_defaults(page=None, wrong=False)  # of the table that `run` prints
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run jobs, let tools watch them, and print the table")
    run.add_argument("--jobs", default="all", metavar="N|NAMES", help="a number of jobs of different kinds, or names with commas (all)")
    every = f"by default all that are listed, those that work inside the job on {_INSIDE} jobs of the open half"
    run.add_argument("--tools", nargs="+", default=[], metavar="TOOL", help=f"listed ones, or NAME=COMMAND; {every}")
    run.add_argument("--seconds", type=float, default=8.0, help="seconds from the onset to the end (8)")
    run.add_argument("--no-advice", action="store_true", help="do not apply the advice of the tools")
    run.add_argument("--no-overhead", action="store_true", help="do not measure how far the tools slow a healthy job")
    run.add_argument("--minutes", type=float, default=0.0, help="start no job after so many minutes (0: no bound)")
    run.add_argument(
        "-o", "--output", type=Path, default=Path("slowbench.jsonl"), help="results, a line for each run; an existing file is continued"
    )
    table = commands.add_parser("table", help="the table of what was run")
    table.add_argument("output", type=Path, nargs="?", default=Path("slowbench.jsonl"))
    table.add_argument("--page", type=Path, metavar="README.md", help="write the table into this page, between its marks")
    table.add_argument("--wrong", action="store_true", help="list the wrong answers on the open half, and all faults, instead")
    commands.add_parser("jobs", help="the jobs, and the truth of the open half")
    commands.add_parser("tools", help="the tools, and what each needs")
    commands.add_parser("words", help="the words for symptoms and causes")
    check = commands.add_parser("truth", help="check that the labels agree with the files of this release")
    check.add_argument("--salt", default="", help="the published salt of the sealed half")
    check.add_argument("--write", action="store_true", help="write the files of the open half, after a label has changed")
    check.add_argument("--draw", action="store_true", help="for maintainers: draw a release; without --salt with a new one")
    options = parser.parse_args(argv)
    if options.command != "run":
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # slowbench jobs | head
    try:
        return {"run": _run, "table": _print, "jobs": _jobs, "tools": _tools, "words": _words, "truth": _truth}[options.command](options)
    except (ValueError, FileNotFoundError) as error:
        print(f"slowbench: {error}", file=sys.stderr)
        return 2


def asked(jobs: str, halves: dict[str, str], names: list[str]) -> list[str]:
    """The jobs of ``--jobs``. A number takes a quarter of calm ones."""
    if jobs == "all":
        return sorted(halves)
    if not jobs.isdecimal():
        found = jobs.split(",")
        if unknown := [job for job in found if job not in names]:
            raise ValueError(f"no job {unknown[0]!r}: slowbench jobs lists them")
        return found
    ranked = by_turns(halves)
    calm = [job for job in ranked if truth.made(job).is_calm]
    ill = [job for job in ranked if job not in calm]
    count = min(int(jobs), len(halves))
    quarter = min(len(calm), max(1, count // 4), count)
    return sorted(calm[:quarter] + ill[: count - quarter])


def by_turns(names: Iterable[str]) -> list[str]:
    """Jobs so that each label comes once before one comes twice, in an order that is always the same."""
    of_label: dict[tuple[str, str], list[str]] = {}
    for job in sorted(names, key=lambda one: hashlib.sha256(f"some {one}".encode()).digest()):
        known = truth.made(job)
        of_label.setdefault((known.symptom, known.cause), []).append(job)
    return [some[turn] for turn in range(max(map(len, of_label.values()))) for some in of_label.values() if turn < len(some)]


def _run(options: argparse.Namespace) -> int:
    from slowbench import jobs, observe
    from slowbench.tools import chosen

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no job or tool is left behind
    halves, tools = truth.halves(), chosen(options.tools)
    names = asked(options.jobs, halves, jobs.scenario.names())
    past = _read(options.output)[0] if options.output.exists() else []
    done = {(run.job, one.tool, one.digest) for run in past if not run.is_disturbed for one in run.observed if one.version}
    inside = [job for job in by_turns(halves) if halves[job] == truth.OPEN_HALF and jobs.has_loop(job)][:_INSIDE]
    if already := sum((job, tool.name, tool.digest) in done for job in names for tool in tools):
        of = f"{already} of {len(names) * len(tools)} pairs of job and tool are already in {options.output}"
        print(f"{of}: remove it or use -o to run them again", file=sys.stderr)
    began = time.monotonic()
    with options.output.open("a", encoding="utf-8") as out:
        for number, job in enumerate(names):
            if options.minutes and time.monotonic() - began > 60 * options.minutes:
                print(f"{len(names) - number} jobs not started: the time is over; the same command continues", file=sys.stderr)
                break
            part = [tool for tool in tools if not tool.instrument or job in inside or (options.tools and jobs.has_loop(job))]
            gains = dict[str, observe.Tried]()
            left = [tool for tool in part if (job, tool.name, tool.digest) not in done]
            outside = [tool for tool in left if not tool.instrument]
            for some in filter(None, [outside, *([tool] for tool in left if tool.instrument)]):
                run = observe.observed(job, some, options.seconds, None if options.no_advice else gains)
                out.write(run.line() + "\n")
                out.flush()
            passed_s = time.monotonic() - began
            left_min = passed_s / (number + 1) * (len(names) - number - 1) / 60
            at = f"{number + 1} of {len(names)} after {passed_s / 60:.1f} min, {left_min:.0f} min left"
            print(f"{at}: {job}", file=sys.stderr, flush=True)
        if not options.no_overhead:
            for tool in tools:
                if (slowdown_pct := _slowdown_pct(tool)) is not None:
                    out.write(json.dumps({"tool": tool.name, "slowdown_pct": slowdown_pct}) + "\n")
    return _print(options)


def _slowdown_pct(tool: Tool) -> float | None:
    """Percent by which the tool slows a healthy job; None if it works inside, or the job cannot run."""
    from slowbench import observe
    from slowbench.jobs import runner

    try:
        return observe.slowdown(_CALM, tool)
    except runner.NotReady:
        return None


def _read(path: Path) -> tuple[list[Run], dict[str, float]]:
    """(runs, tool -> percent by which it slows a healthy job) of a file of results."""
    from slowbench.observe import decoded

    lines = path.read_text(encoding="utf-8").splitlines()
    slowdowns = [json.loads(line) for line in lines if '"slowdown_pct"' in line]
    return [decoded(line) for line in lines if '"job"' in line], {one["tool"]: one["slowdown_pct"] for one in slowdowns}


def _print(options: argparse.Namespace) -> int:
    from slowbench.table import text, wrong

    if not options.output.exists():
        raise ValueError(f"there is no {options.output}: slowbench run -o {options.output} writes it")
    runs, slowdowns = _read(options.output)
    truths = {run.job: truth.made(run.job) for run in runs}
    if options.wrong:
        print("\n".join(wrong(runs, truths, truth.halves())) or "no wrong answer on the open half, and no fault")
        return 0
    found = text(runs, truths, truth.halves(), slowdowns)
    if page := options.page:
        before, mark, rest = page.read_text(encoding="utf-8").partition(_TABLE)
        _, end, after = rest.partition(_END)
        if not (mark and end):
            raise ValueError(f"{page} has no {_TABLE} and {_END}")
        page.write_text(f"{before}{mark}\n{found}{end}{after}", encoding="utf-8")
    print(found, end="")
    return 0 if any(one.version for run in runs for one in run.observed) else 1


def _jobs(_options: argparse.Namespace) -> int:
    from slowbench.jobs import title

    for job, half in sorted(truth.halves().items()):
        found = truth.made(job)
        print(f"{job:36} {half:7} " + (f"{found.symptom:18} {found.cause:24} {title(job)}" if half == truth.OPEN_HALF else ""))
    return 0


def _tools(_options: argparse.Namespace) -> int:
    from slowbench.tools import TOOLS

    for name, tool in TOOLS.items():
        install = f"pip install {tool.install}" if tool.install else ""
        print(f"{name:14} {install:26} {'inside the job' if tool.instrument else 'outside the job'}")
    return 0


def _words(_options: argparse.Namespace) -> int:
    for title, meanings in (("symptoms", SYMPTOMS), ("causes", {word: meaning for word, (meaning, _fix) in CAUSES.items()})):
        print(f"{title}:")
        for word, meaning in meanings.items():
            print(f"  {word:24} {meaning}")
    return 0


def _truth(options: argparse.Namespace) -> int:
    if options.draw:
        from slowbench.jobs import scenario
        from tests.corpus import split  # in gputop's tree only: its rules were never fitted to the half `hold-out`

        if not options.salt:
            options.salt = secrets.token_hex(16)
            print(f"salt, to be kept until the next release: {options.salt}")
        names = {split.LEARN: truth.OPEN_HALF, split.HOLD_OUT: truth.SEALED_HALF}
        truth.write({name: names[split.half_of(name)] for name in scenario.names()}, options.salt)
    if options.write:
        truth.rewrite()
    found = truth.faults(options.salt)
    print("\n".join(found) if found else f"{len(truth.halves())} jobs: the labels agree with the files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
