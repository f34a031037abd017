"""Watch without a screen: a line for each incident that begins and ends, alerts, and exit code 3 once a job has starved for too long.

With a command it watches what that starts, and nobody else; the command runs to its end all the same, unless --stop is given.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from gputop.commands.attending import Attending, command_of, lasting_stream
from gputop.commands.options import (
    ALERT_EVERY_S,
    ALERT_SEVERITIES,
    RECORDER,
    add_alerts,
    add_sampling,
    alerts_of,
    duration,
    leave_root,
)
from gputop.system.console import notify, show
from gputop.system.errors import UserError
from gputop.system.program import return_freed_memory

if TYPE_CHECKING:
    from gputop.alerts.sender import Alerts
    from gputop.findings.verdict import Incident
    from gputop.model.board import Board
    from gputop.model.frame import Frame, Header
    from gputop.stream.restarts import LastingStream

EXAMPLES = """examples:
  gputop watch --alert desktop                          until Ctrl-C
  gputop watch --fail-on medium --duration 10m          for CI: 3 at once when a job has starved for 30 s, else 0
  gputop watch --fail-on medium -- python train.py      3 where it starved for 30 s, else the command's own code
  gputop watch --for 2m --fail-on high --stop -- python train.py
exit code: the command's own, or 3 where that is 0 and it starved
"""
STARVED = 3  # exit code
FOR_S = 30.0  # s of --for by default: longer than a pause for a checkpoint that is taken for a fault at first (guess)
STOP_S = 10.0  # s that --stop gives the command to end after SIGTERM, before SIGKILL; as docker stop does


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fail-on", choices=ALERT_SEVERITIES, metavar="SEVERITY", help="exit 3 once a job starved at low, medium or high")
    parser.add_argument("--for", dest="for_", type=duration(), default=FOR_S, metavar="TIME", help="how long, without a break (30s)")
    parser.add_argument("--stop", action="store_true", help="with --fail-on: end the command then (SIGTERM, SIGKILL 10 s later)")
    parser.add_argument("--duration", type=duration(), metavar="TIME", help="stop after 90s, 10m, 2h")
    parser.add_argument("--host", metavar="[USER@]NODE", help="watch another machine, over ssh")
    add_alerts(parser)
    add_sampling(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="watch what this starts, while it runs")


def run(args: argparse.Namespace) -> int:
    """Watch. Returns the command's exit code, `STARVED` or 0."""
    argv = command_of(args)
    if argv and args.host is not None:
        raise UserError("a command runs on this machine: --host cannot watch it", code=2)
    if args.stop and not (argv and args.fail_on):
        raise UserError("--stop needs --fail-on and a command", code=2)
    say = _say_beside if argv else _say
    alerts = alerts_of(args, notify, say)
    assert alerts is not None
    return_freed_memory()
    stream = lasting_stream(args)
    try:
        leave_root(*RECORDER, "gputop.alerts")  # the command, and those of alerts, belong to the user
        watching = _WatchRun(args, stream, alerts)
        watching.begin()
        if argv:
            watching.start(argv)
        else:
            notify(f"watching {args.host or 'this machine'}{'' if args.duration else ', until Ctrl-C'}")
        watching.run()
    finally:
        stream.close()
    return watching.end()


class _WatchRun(Attending):
    """One run."""

    done = "watched"

    def __init__(self, args: argparse.Namespace, stream: LastingStream, alerts: Alerts) -> None:
        super().__init__(stream, args.interval, args.duration)
        from gputop.stream.following import Following

        self._args = args
        self._following = Following()
        self._starving = Starving(args.fail_on, round(args.for_ * 1e9)) if args.fail_on else None
        self._starved = self._stopped = False
        self._family = Family()
        self._alerts = alerts

    def take_header(self, header: Header) -> None:
        if self._following.restate(header) and self._starving is not None:
            self._starving.begin()

    def take_frame(self, frame: Frame) -> None:
        if not self._following.take(frame):
            return
        self._alerts.look(self._following, self._is_about)
        if self._starving is None or self._starved:
            return
        engine = self._following.engine
        found = self._starving.look([one for one in engine.incidents if self._is_about(one.trainer_pid)])
        if found is not None:
            self._starved = True
            say = _say if self.command is None else _say_beside
            say(f"starved for {self._args.for_:g} s at {found.severity} severity: {found.headline}")
            if self._args.stop:
                self._stop_command()

    def rest_s(self) -> float:
        return ALERT_EVERY_S

    def is_over(self) -> bool:
        return (self._starved and self.command is None) or super().is_over()

    def end(self) -> int:
        """Tell the rest; returns the exit code."""
        if self.command is not None:
            code = self.command_code()
            self._alerts.end(self._following)
        else:
            code = int(bool(self.problem))
        self._alerts.close()
        return STARVED if self._starved and (not code or self._stopped) else code

    def _is_about(self, trainer_pid: int | None) -> bool:
        return self.command is None or self._family.has(self._following.board, trainer_pid, self.command.pid)

    def _stop_command(self) -> None:
        from threading import Timer

        if self.command is None or self.command.poll() is not None:
            return
        self._stopped = True
        self.command.terminate()
        killing = Timer(STOP_S, self.command.kill)
        killing.daemon = True
        killing.start()


def _say(text: str) -> None:
    """A line with its time."""
    show([f"{time.strftime('%H:%M:%S')} {text}"])


def _say_beside(text: str) -> None:
    """Print a line with its time to standard error: standard output belongs to the command."""
    notify(f"{time.strftime('%H:%M:%S')} {text}")


class Starving:
    """Measures for how long each job has had an incident of at least a severity; pure."""

    def __init__(self, severity: str, for_ns: int) -> None:
        from gputop.findings.verdict import SEVERITIES

        self._bad = frozenset(SEVERITIES[SEVERITIES.index(severity) :])
        self._for_ns = for_ns
        self._since_ns: dict[int, int] = {}  # trainer, or what `_whose` says -> since when

    def begin(self) -> None:
        """Forget all start times: after a reboot the monotonic clock starts over."""
        self._since_ns.clear()

    def look(self, incidents: list[Incident]) -> Incident | None:
        """The incident with which a job, or a lost GPU, has starved for the time; None while none has. A job whose cause changes starves
        on.

        What counts is until when the cause was last seen: an incident lasts some seconds longer, for it may come back.
        """
        counted = [(_whose(one), one) for one in incidents if one.end_ns is None and self._counts(one)]
        open_ones = [(whose, one) for whose, one in counted if whose is not None]
        since = {whose: one.start_ns for whose, one in reversed(open_ones)}
        self._since_ns = {whose: min(start, self._since_ns.get(whose, start)) for whose, start in since.items()}
        starved = (one for whose, one in open_ones if one.last_ns - self._since_ns[whose] >= self._for_ns)
        return next(starved, None)

    def _counts(self, one: Incident) -> bool:
        return one.cause != "pause" and one.severity in self._bad and one.last_ns > 0


def _whose(one: Incident) -> int | None:
    """The trainer that an incident is about; of a lost GPU that none has, a negative number."""
    from gputop.findings.verdict import GPU_LOST

    if one.trainer_pid is not None or one.cause != GPU_LOST:
        return one.trainer_pid
    return -1 if one.gpu is None else -2 - one.gpu


class Family:
    """Processes that a command started, also those whose parents have ended."""

    def __init__(self) -> None:
        self._known: set[tuple[int, int]] = set()  # (pid, start in clock ticks)

    def has(self, board: Board, pid: int | None, ancestor_pid: int) -> bool:
        """Whether the process is the command or comes from it. Ask while its parents live: afterwards the answer is remembered."""
        info = board.infos.get(pid or 0)
        if info is None:
            return any(known == pid for known, _ in self._known)  # it has ended
        key = info.pid, info.start_ticks
        line = {info.pid}  # the process, its parent, and so on
        while info is not None and ancestor_pid not in line and info.ppid not in line:
            line.add(info.ppid)
            info = board.infos.get(info.ppid)
        if ancestor_pid in line:
            self._known.add(key)
        return key in self._known
