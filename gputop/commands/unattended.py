"""Flags and readers that record, watch and exporter share: one collector and one diagnosis, for all that their flags ask for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gputop.commands.options import PORT, RECORDER, address, ask_sudo, leave_root, stream_argv
from gputop.system.console import notify
from gputop.system.errors import UserError
from gputop.system.install import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from gputop.alerts.sender import Alerts
    from gputop.stream.reader import Reader
    from gputop.stream.restarts import LastingStream
    from gputop.stream.stalled import Unwatched

EXPORTER = ("gputop.metrics", "prometheus_client")  # packages, as `RECORDER`


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """Add the flag of metrics."""
    parser.add_argument("--metrics", nargs="?", type=address, const=("127.0.0.1", PORT), metavar="ADDRESS",
                        help=f"also serve metrics for Prometheus (127.0.0.1:{PORT})")  # fmt: skip


def check_metrics(args: argparse.Namespace) -> None:
    """Raise UserError if --metrics needs a package that is not installed."""
    if args.metrics is not None:
        require("--metrics", "prometheus_client", "prometheus")


def refuse_metrics(args: argparse.Namespace) -> None:
    """UserError for --metrics with several machines."""
    if args.metrics is not None:
        raise UserError("--metrics is for one machine: run gputop exporter on each", code=2)


def command_of(args: argparse.Namespace) -> list[str]:
    """The command behind ``--``, empty without one. Raises UserError for a ``--`` alone."""
    argv: list[str] = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.command and not any(argv[:1]):
        raise UserError("there is no command after --", code=2)
    return argv


def lasting_stream(args: argparse.Namespace) -> LastingStream:
    """The stream of a collector, here or on --host; a new collector is started whenever one ends."""
    from gputop.stream.child import ChildStream
    from gputop.stream.restarts import LastingStream

    ask_sudo(args)
    if args.host is not None:
        leave_root(*RECORDER)  # ssh uses the user's keys and known hosts
    collector = stream_argv(args)
    return LastingStream(ChildStream(collector), lambda: ChildStream(collector), notify)


def alerting(alerts: Alerts | None, judging: Unwatched, is_about: Callable[[int | None], bool] | None = None) -> list[Reader]:
    """The reader that alerts need, if there are any."""
    if alerts is None:
        return []
    from gputop.alerts.sender import Alerting

    return [Alerting(alerts, judging, is_about)]


def exporting(args: argparse.Namespace, judging: Unwatched) -> list[Reader]:
    """The reader that --metrics asks for, if it does. Raises UserError if its address cannot be listened on."""
    if args.metrics is None:
        return []
    from gputop.metrics.exporting import Exporting

    reader = Exporting("trainer", judging=judging, notify=notify)
    reader.listen(*args.metrics)
    return [reader]
