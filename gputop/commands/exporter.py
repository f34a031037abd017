"""Metrics for Prometheus, node_exporter or OpenTelemetry: GPUs, trainers, and why GPU time is lost.

It listens on this machine alone, unless it is told another address.
"""

from __future__ import annotations

import argparse
import ipaddress
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gputop.commands.options import RECORDER, add_alerts, add_sampling, alerts_of, ask_sudo, leave_root, sampling_argv
from gputop.system.console import notify
from gputop.system.ending import Ending
from gputop.system.errors import UserError
from gputop.system.install import require
from gputop.system.program import return_freed_memory, return_pages
from gputop.system.text import clean

if TYPE_CHECKING:
    from gputop.alerts.sender import Alerts
    from gputop.metrics.metered import Metered
    from gputop.stream.restarts import LastingStream

PORT = 9838  # of no other exporter in Prometheus' list of default ports
LEVELS = ("node", "gpu", "trainer")
EVERY_S = 15.0  # s between two files, or pushes: Prometheus' usual interval
_WAIT_S = 0.5  # s for the stream, between looks at signals
_REST_S = 0.45  # s between two reads: who takes five frames at once wakes five times less (measured: 1.6 % of a core, not 2.4)
EXAMPLES = f"""examples:
  gputop exporter                                       http://127.0.0.1:{PORT}/metrics
  gputop exporter --listen :{PORT} --tls-cert node1.crt --tls-key node1.key    for other machines
  gputop exporter --textfile /var/lib/prometheus/node-exporter/gputop.prom
  gputop exporter --otlp http://collector:4318
see docs/exporter.md: Prometheus, Grafana, alerts, systemd, Kubernetes
"""


def address(text: str) -> tuple[str, int]:
    """Host and port of ``127.0.0.1:9838``, ``:9838`` or ``[::1]:9838``."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in host and not text.startswith("[")):
        raise argparse.ArgumentTypeError(f"{text!r} is no address: write 127.0.0.1:{PORT}, :{PORT} or [::1]:{PORT}")
    return host, int(port)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--listen", type=address, metavar="ADDRESS", help=f"serve HTTP here (127.0.0.1:{PORT}; none with what follows)")
    parser.add_argument("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate (PEM)")
    parser.add_argument("--tls-key", metavar="FILE", help="the certificate's key (PEM, without a password)")
    parser.add_argument("--textfile", metavar="FILE.prom", help=f"write a file for node_exporter every {EVERY_S:.0f} s")
    parser.add_argument("--otlp", metavar="URL", help=f"push to an OpenTelemetry collector every {EVERY_S:.0f} s")
    parser.add_argument("--level", choices=LEVELS, default="trainer", metavar="LEVEL", help="node, gpu or trainer, each with more series")
    parser.add_argument("--node", default="", metavar="NAME", help="a label `node` on every series")
    parser.add_argument("--no-users", action="store_true", help="leave out whose trainers they are")
    parser.add_argument("--compat", choices=("dcgm",), metavar="dcgm", help="the GPUs under the names of dcgm-exporter, too")
    add_alerts(parser)
    add_sampling(parser)


def run(args: argparse.Namespace) -> int:
    """Export until a signal comes."""
    require("gputop exporter", "prometheus_client", "prometheus")
    if args.otlp:
        require("gputop exporter --otlp", "opentelemetry.exporter.otlp.proto.http", "otlp")
    if bool(args.tls_cert) != bool(args.tls_key):
        raise UserError("--tls-cert and --tls-key need each other", code=2)
    if args.tls_cert and (args.textfile or args.otlp) and args.listen is None:
        raise UserError("--tls-cert is for --listen", code=2)
    from gputop.stream.child import ChildStream, collector_argv
    from gputop.stream.restarts import LastingStream

    alerts = alerts_of(args, notify)
    return_freed_memory()
    ask_sudo(args)
    argv = collector_argv(sampling_argv(args))
    stream = LastingStream(ChildStream(argv), lambda: ChildStream(argv), notify)
    closes: list[Callable[[], None]] = []
    try:
        leave_root("gputop.metrics", "gputop.alerts", "prometheus_client", "opentelemetry", *RECORDER)
        from gputop.metrics.metered import Metered

        metered = Metered(args.level, with_users=not args.no_users, with_dcgm=args.compat == "dcgm")
        _open(args, metered, closes)
        _follow(stream, metered, alerts)
        metered.end()
    finally:
        stream.close()
        if alerts is not None:
            alerts.close()
        for close in closes:
            close()
    return 0


def _open(args: argparse.Namespace, metered: Metered, closes: list[Callable[[], None]]) -> None:
    """Open what metrics go to; ``closes`` gets what ends it."""
    from gputop.metrics.prometheus import Pages, TextFile
    from gputop.metrics.pushing import Pushing

    node = clean(args.node, 80)
    pages = Pages(metered, node)
    if args.textfile:
        file = TextFile(args.textfile)
        closes += [Pushing(lambda: file.write(pages.page()[0]), EVERY_S, notify).close, file.close]
    if args.otlp:
        from gputop.metrics.otlp import Otlp

        closes.append(Pushing(Otlp(args.otlp, metered, node).push, EVERY_S, notify).close)
    if args.listen is not None or not closes:
        closes.append(_listen(args, metered, pages.page))


def _listen(args: argparse.Namespace, metered: Metered, page: Callable[[str, bool], tuple[bytes, str]]) -> Callable[[], None]:
    from gputop.metrics.server import Server, tls_context

    host, port = args.listen or ("127.0.0.1", PORT)
    tls = tls_context(args.tls_cert, args.tls_key) if args.tls_cert else None
    shown = f"[{host}]" if ":" in host else host
    try:
        server = Server(host, port, page, healthy=lambda: not metered.is_silent, tls=tls)
    except (OSError, UnicodeError) as error:
        raise UserError(f"cannot listen on {clean(shown)}:{port}: {getattr(error, 'strerror', None) or error}") from None
    if not _is_loopback(host):
        notify(f"everybody who reaches port {server.port} can read the metrics: docs/exporter.md shows a password, by nginx or Caddy")
    notify(f"metrics at {'http' if tls is None else 'https'}://{shown or '0.0.0.0'}:{server.port}/metrics")
    return server.close


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _follow(stream: LastingStream, metered: Metered, alerts: Alerts | None) -> None:
    """Take the stream in until a signal."""
    from gputop.model.frame import Frame

    ending = Ending()
    ending.listen()
    told = False
    while not ending.asked:
        for item in stream.read(_WAIT_S):
            if ending.asked:
                break
            metered.take(item)
            if alerts is not None and not metered.problem:
                alerts.look(metered.following)
            if isinstance(item, Frame) and item.key:
                return_pages()
        if metered.problem and not told:
            told = True
            notify(f"{clean(metered.problem)}; the GPUs' metrics go on without trainers")
        if not ending.asked:
            time.sleep(_REST_S)
