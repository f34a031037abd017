"""Several hosts in one terminal: what `gputop --host 'node[01-16]'`, `--hosts`, `--job`, `--pods` and
`gputop replay FOLDER` do.

A node diagnoses itself; jobs are judged here.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from typing import TYPE_CHECKING

from gputop.commands.options import RECORDER, SCREEN, leave_root, refuse_alerts, sampling_argv
from gputop.system.console import draws_ascii, notify, show, write
from gputop.system.errors import UserError
from gputop.system.program import calm_garbage_collection, return_freed_memory

if TYPE_CHECKING:
    from gputop.findings.line import StatusLine
    from gputop.fleet.jobs import Sight
    from gputop.fleet.overview import Overview
    from gputop.fleet.questions import Nodes, Questions
    from gputop.fleet.targets import RecordingsFolder
    from gputop.stream.reach import Target

PATIENCE_S = 10.0  # s that `--once` waits for nodes that have not answered: ssh gives up after 5 s, a collector starts in 1 s
REPORTS_S = 8.0  # s that `--once` waits for NCCL's report of a job that hangs: a node gives it 6 s
LOOK_S = 0.5  # s between two looks: jobs are judged at each, and all is written at every other one
SETTLES_S = 3.0  # s that answering nodes are watched: a verdict needs a window


def chosen_targets(args: argparse.Namespace) -> list[Target]:
    """The machines that --host, --hosts, --job and --pods name, each once. UserError if that cannot be read."""
    from gputop.fleet.targets import by_names, targets

    named = by_names(args.host, args.hosts)
    if args.job is None and args.pods is None:
        return named
    if named or (args.job is not None and args.pods is not None):
        raise UserError("--host and --hosts, --job, --pods: one of them at a time", code=2)
    leave_root(*SCREEN)  # squeue and kubectl, too, are the user's
    return targets(job=args.job, pods=args.pods, namespace=args.namespace, way=args.reach)


def run(args: argparse.Namespace) -> int:
    """Watch the machines that the flags name, or print once."""
    chosen = chosen_targets(args)
    refuse_alerts(args)
    if args.pid is not None:
        raise UserError("--pid is a process of one machine: name one --host", code=2)
    if args.once or args.json or args.line:
        return _print(args, chosen)
    from gputop.commands.screen import use_terminal

    use_terminal("gputop --host LIST --once, or --json")
    leave_root(*SCREEN)  # ssh uses the user's keys and known hosts
    return _show(args, _links(args, chosen), args.user or "")


def replay(args: argparse.Namespace, folder: str) -> int:
    """Show the recordings of a folder together, as if the recorded time were now. UserError without any."""
    from gputop.commands.screen import use_terminal
    from gputop.fleet.links import Links
    from gputop.fleet.targets import RecordingsFolder

    past = RecordingsFolder(folder, args.at, args.speed, loop=args.loop)
    use_terminal("gputop query or gputop export, for each file")
    return _show(args, Links(past.targets()), "", past)


def _show(args: argparse.Namespace, links: Nodes, pattern: str, past: RecordingsFolder | None = None) -> int:
    from gputop.commands.screen import looks_of, watch

    try:
        return_freed_memory()
        from gputop.tui.draw.view import View
        from gputop.tui.fleet_screen import FleetApp

        calm_garbage_collection()
        view = View(readonly=True, pattern=pattern)
        return watch(FleetApp(links, view, looks_of(args, view, remote=True), past=past))
    finally:
        links.close()


def _links(args: argparse.Namespace, chosen: list[Target]) -> Nodes:
    from gputop.fleet.links import Links

    return Links(chosen, [word for word in sampling_argv(args) if word != "--sudo"])


def _print(args: argparse.Namespace, chosen: list[Target]) -> int:
    """Print one table or object once all have answered; with --json alone an object a second, and one at once if a verdict changes."""
    from gputop.fleet.overview import Overview
    from gputop.fleet.questions import Hangs, Questions

    leave_root(*RECORDER)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda number, _frame: sys.exit(128 + number))  # by way of `finally`: no ssh stays behind
    links, fleet = _links(args, chosen), Overview()
    hangs = Hangs(questions := Questions(links))
    try:
        if args.once and len(chosen) > 1:
            notify(f"asking {len(chosen)} hosts …")
        _await(links)
        fleet.take(_sights(links))
        hangs.look(fleet)
        if args.once and any(job.hangs for job in fleet.jobs):
            _await_report(fleet, questions)
            fleet.take(_sights(links))
        if args.once and not args.json and not args.line:
            _print_table(args, fleet)
        else:
            _write(args, fleet)
        while not args.once:
            time.sleep(LOOK_S)
            if fleet.look_again(_sights(links)):
                _write(args, fleet)
            time.sleep(LOOK_S)
            fleet.take(_sights(links))
            hangs.look(fleet)
            questions.deliver()
            _write(args, fleet)
        return 0 if any(sight.is_seen for sight in fleet.sights) else 1
    finally:
        links.close()


def _sights(links: Nodes) -> list[Sight]:
    from gputop.fleet.overview import sight_of

    return [sight_of(state) for state in links.poll().values()]


def _write(args: argparse.Namespace, fleet: Overview) -> None:
    """An object, or with --line a line."""
    import msgspec

    from gputop.fleet import document

    if args.line:
        write(f"{fleet.used(line_of).form(args.line, draws_ascii(args.ascii))}\n")
        return
    write(fleet.used(lambda seen: msgspec.json.encode(document.fleet(seen), enc_hook=str)) + b"\n")


def _await_report(fleet: Overview, questions: Questions) -> None:
    """Wait until NCCL has reported on all jobs that hang, or `REPORTS_S` are over."""
    end_s = time.monotonic() + REPORTS_S
    while time.monotonic() < end_s and any(job.hangs and job.key not in fleet.reports for job in fleet.jobs):
        questions.deliver()
        time.sleep(0.1)


def _await(links: Nodes) -> None:
    """Wait until all nodes have answered or failed, and then for a window that can be judged; `PATIENCE_S` at most."""
    from gputop.fleet.link import CONNECTING

    began_s, answered_s = time.monotonic(), math.inf
    while time.monotonic() < min(began_s + PATIENCE_S, answered_s + SETTLES_S):
        states = links.poll().values()
        if answered_s == math.inf and all(state.state != CONNECTING for state in states):
            answered_s = time.monotonic() if any(state.summary for state in states) else -math.inf
        time.sleep(0.1)


def _print_table(args: argparse.Namespace, fleet: Overview) -> None:
    import shutil

    from gputop.tui.draw import ascii_line, safe_line, time_of_day
    from gputop.tui.draw.fleet_page import Choice, page

    size = shutil.get_terminal_size((120, 40))
    rows = 12 + len(fleet.rows) + len(fleet.jobs)
    choice = Choice(width=max(80, size.columns), height=rows, pattern=args.user or "")
    drawn = fleet.used(lambda seen: page(seen, choice, clock=time_of_day(time.time()), own="", note=" ", lanes=False)).lines
    lines = [ascii_line(line) if draws_ascii(args.ascii) else safe_line(line) for line in drawn]
    texts = ["".join(text for text, _ in line).rstrip() for line in lines]
    show(text for text in texts if text)


def line_of(fleet: Overview) -> StatusLine:
    """The worst job in a line, and how many nodes are seen."""
    from gputop.findings.line import FINE, IDLE, LOOKS, MARKS, StatusLine, fault_of, kind_of
    from gputop.findings.verdict import SEVERITIES

    seen = [sight.summary for sight in fleet.sights if sight.summary is not None]
    util = [gpu.util_pct for summary in seen for gpu in summary.gpus if gpu.util_pct is not None]
    mean = round(sum(util) / len(util)) if util else None
    whole = (f"{len(util)} GPUs {mean}%" if util else "no GPU", f"{len(seen)} of {len(fleet.sights)} nodes")
    worst = max(fleet.jobs, key=lambda job: (SEVERITIES.index(job.severity), job.lost or 0.0), default=None)
    if worst is None:
        return StatusLine(IDLE if seen else LOOKS, (IDLE if seen else LOOKS, *whole), percentage=mean)
    kind, tooltip = kind_of(worst.symptom, worst.severity), "\n".join(filter(None, (worst.name, worst.headline, worst.detail)))
    if kind in MARKS:
        return StatusLine(kind, (*(() if kind == FINE else (kind,)), *whole), tooltip, mean)
    lost = "" if worst.lost is None else f" {100 * worst.lost:.0f}% lost"
    late = [f"rank {one.number} {one.host}" for one in worst.late[:1]]
    names = [one.name for one in worst.culprits[:1]]
    return StatusLine(kind, (f"{fault_of(worst.symptom, worst.cause)}{lost}", *late, *whole, *names), tooltip, mean)
