"""Watch without a screen: each incident with its fix as it begins, and its end; alerts; exit code 3 once a job has starved for too long.

With a command it watches only the processes that this starts; the command runs to its end all the same, unless --stop is given.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from gputop.commands.options import ALERT_SEVERITIES, RECORDER, add_alerts, add_sampling, alerts_of, duration, leave_root
from gputop.commands.unattended import EXPORTER, add_metrics, alerting, check_metrics, command_of, exporting, lasting_stream
from gputop.system.colour import width_of
from gputop.system.console import notify, show, show_aside
from gputop.system.errors import UserError
from gputop.system.program import return_freed_memory

if TYPE_CHECKING:
    from gputop.alerts.alert import Alert
    from gputop.findings.verdict import Incident

EXAMPLES = """examples:
  gputop watch --alert desktop                          until Ctrl-C
  gputop watch --fail-on medium --duration 10m          for CI: 3 at once when a job has starved for 30 s, else 0
  gputop watch --fail-on medium -- python train.py      3 where it starved for 30 s, else the command's own code
  gputop watch --for 2m --fail-on high --stop -- python train.py
exit code: the command's own, or 3 where that is 0 and it starved
"""
STARVED = 3  # exit code
FOR_S = 30.0  # s of --for by default: longer than a pause for a checkpoint that is taken for a fault at first (guess)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fail-on", choices=ALERT_SEVERITIES, metavar="SEVERITY", help="exit 3 once a job starved at low, medium or high")
    parser.add_argument("--for", dest="for_", type=duration(), default=FOR_S, metavar="TIME", help="how long, without a break (30s)")
    parser.add_argument("--stop", action="store_true", help="with --fail-on: end the command then (SIGTERM, SIGKILL 10 s later)")
    parser.add_argument("--duration", type=duration(), metavar="TIME", help="stop after 90s, 10m, 2h")
    parser.add_argument("--host", metavar="[USER@]NODE", help="watch another machine, over ssh")
    add_alerts(parser)
    add_metrics(parser)
    add_sampling(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="watch what this starts, while it runs")


def run(args: argparse.Namespace) -> int:
    """Watch. Returns the command's exit code, `STARVED` or 0."""
    argv = command_of(args)
    if argv and args.host is not None:
        raise UserError("a command runs on this machine: --host cannot watch it", code=2)
    if args.stop and not (argv and args.fail_on):
        raise UserError("--stop needs --fail-on and a command", code=2)
    printer = _Printer(args.for_, aside=bool(argv))
    alerts = alerts_of(args, notify, printer.report)
    assert alerts is not None
    check_metrics(args)
    return_freed_memory()
    stream = lasting_stream(args)
    from gputop.stream.command import Command
    from gputop.stream.reader import Loop

    with Loop(stream, command := Command(argv), duration_s=args.duration, notify=notify) as loop:
        leave_root(*RECORDER, *(EXPORTER if args.metrics else ()), "gputop.alerts")  # the command, and commands of alerts, are the user's
        from gputop.alerts.watching import Watching
        from gputop.findings.policy import FEED_EVERY_NS
        from gputop.stream.stalled import Unwatched

        goes_on = f"nothing is watched any more{'; the command runs on' if argv else ''}"
        judging = Unwatched(None, every_ns=FEED_EVERY_NS, notify=notify, goes_on=goes_on)
        watching = Watching(judging, alerts, command, printer.report_starved, severity=args.fail_on, for_s=args.for_, stops=args.stop)
        loop.add(judging, *exporting(args, judging), watching, *alerting(alerts, judging, watching.is_about))
        command.listen()
        loop.begin("watched")
        command.start()
        if not argv:
            notify(f"watching {args.host or 'this machine'}{'' if args.duration else ', until Ctrl-C'}")
        command.attend()
    code = command.code() if argv else int(bool(loop.problem))
    return STARVED if watching.has_starved and (not code or watching.has_stopped) else code


class _Printer:
    """Prints what is found, each with its time; ``aside`` on standard error, for standard output belongs to the command."""

    def __init__(self, for_s: float, aside: bool) -> None:
        self._for_s = for_s
        self._stream, self._show = (sys.stderr, show_aside) if aside else (sys.stdout, show)
        self._before = "gputop: " if aside else ""

    def report(self, alert: Alert) -> None:
        from gputop.alerts.alert import lines

        self._show(lines(alert, self._width, self._now))

    def report_starved(self, one: Incident) -> None:
        """Print that a job has starved for so long that gputop fails."""
        from gputop.findings import message

        first = message.head(f"starved for {self._for_s:g} s", one.severity, f"{one.severity}, {one.cause}", self._now)
        self._show([first, *message.wrapped(one.headline, self._width, "title")])

    @property
    def _width(self) -> int:
        from gputop.findings.text import LEAST_WIDTH, MOST_WIDTH, WIDTH

        return width_of(self._stream, LEAST_WIDTH, MOST_WIDTH, WIDTH)

    @property
    def _now(self) -> str:
        return f"{self._before}{time.strftime('%H:%M:%S')} "
