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
from gputop.system.program import return_freed_memory, return_pages
from gputop.system.text import clean

if TYPE_CHECKING:
    from gputop.alerts.sender import Alerts
    from gputop.metrics.metered import Metered
    from gputop.session.restarts import LastingStream

PORT = 9838  # of no other exporter in Prometheus' list of default ports
LEVELS = ("node", "gpu", "trainer")
EVERY_S = 15.0  # s between two files, or pushes: Prometheus' usual interval
_WAIT_S = 0.5  # s for the stream, between looks at signals
_REST_S = 0.45  # s between two reads: who takes five frames at once wakes five times less (measured: 1.6 % of a core, not 2.4)
EXAMPLES = f"""examples:
  gputop exporter                                       http://127.0.0.1:{PORT}/metrics
  gputop exporter --listen :{PORT} --web-config web.yml  for other machines, with TLS and passwords
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
    parser.add_argument("--web-config", metavar="FILE", help="TLS and passwords, as for node_exporter")
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
    needs("prometheus_client", "prometheus")
    if args.otlp:
        needs("opentelemetry.exporter.otlp.proto.http", "otlp")
    if args.web_config and (args.textfile or args.otlp) and args.listen is None:
        raise UserError("--web-config is for --listen", code=2)
    from gputop.session.child import ChildStream, collector_argv
    from gputop.session.restarts import LastingStream

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


def needs(module: str, extra: str) -> None:
    """UserError where an optional package is not installed."""
    from importlib.util import find_spec

    try:
        found = find_spec(module) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise UserError(f"the exporter needs a package more: pip install 'gputop-ebpf[{extra}]'")


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
    from gputop.metrics.server import Server
    from gputop.metrics.webconfig import WebConfig

    host, port = args.listen or ("127.0.0.1", PORT)
    web = WebConfig(args.web_config) if args.web_config else None
    shown = f"[{host}]" if ":" in host else host
    try:
        server = Server(host, port, page, healthy=lambda: not metered.is_silent, web=web, tell=notify)
    except (OSError, UnicodeError) as error:
        raise UserError(f"cannot listen on {clean(shown)}:{port}: {getattr(error, 'strerror', None) or error}") from None
    if web is None and not _is_loopback(host):
        notify(f"everybody who reaches port {server.port} can read the metrics: --web-config gives it TLS and passwords")
    scheme = "https" if web is not None and web.now().context is not None else "http"
    notify(f"metrics at {scheme}://{shown or '0.0.0.0'}:{server.port}/metrics")
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
