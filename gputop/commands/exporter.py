"""Metrics for Prometheus, node_exporter or OpenTelemetry: GPUs, trainers, and why GPU time is lost.

It listens on this machine alone, unless another address is given.
"""

from __future__ import annotations

import argparse

from gputop.commands.options import PORT, RECORDER, add_alerts, add_sampling, address, alerts_of, leave_root
from gputop.commands.unattended import EXPORTER, alerting, lasting_stream
from gputop.system.console import notify
from gputop.system.errors import UserError
from gputop.system.install import require
from gputop.system.program import return_freed_memory

LEVELS = ("node", "gpu", "trainer")
EXAMPLES = f"""examples:
  gputop exporter                                       http://127.0.0.1:{PORT}/metrics
  gputop exporter --listen :{PORT} --tls-cert node1.crt --tls-key node1.key    for other machines
  gputop exporter --textfile /var/lib/prometheus/node-exporter/gputop.prom
  gputop exporter --otlp http://collector:4318
see docs/exporter.md: Prometheus, Grafana, alerts, systemd, Kubernetes
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--listen", type=address, metavar="ADDRESS", help=f"serve HTTP here (127.0.0.1:{PORT}; none with what follows)")
    parser.add_argument("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate (PEM)")
    parser.add_argument("--tls-key", metavar="FILE", help="the certificate's key (PEM, without a password)")
    parser.add_argument("--textfile", metavar="FILE.prom", help="write a file for node_exporter every 15 s")
    parser.add_argument("--otlp", metavar="URL", help="push to an OpenTelemetry collector every 15 s")
    parser.add_argument("--level", choices=LEVELS, default="trainer", metavar="LEVEL", help="node, gpu or trainer, each with more series")
    parser.add_argument("--node", default="", metavar="NAME", help="a label `node` on every series")
    parser.add_argument("--no-users", action="store_true", help="leave out the owners of trainers")
    parser.add_argument("--compat", choices=("dcgm",), metavar="dcgm", help="the GPUs under the names of dcgm-exporter, too")
    add_alerts(parser)
    add_sampling(parser)
    parser.set_defaults(host=None)


def run(args: argparse.Namespace) -> int:
    """Export until a signal comes."""
    require("gputop exporter", "prometheus_client", "prometheus")
    if args.otlp:
        require("gputop exporter --otlp", "opentelemetry.exporter.otlp.proto.http", "otlp")
    if bool(args.tls_cert) != bool(args.tls_key):
        raise UserError("--tls-cert and --tls-key need each other", code=2)
    if args.tls_cert and (args.textfile or args.otlp) and args.listen is None:
        raise UserError("--tls-cert is for --listen", code=2)
    alerts = alerts_of(args, notify)
    return_freed_memory()
    stream = lasting_stream(args)
    from gputop.stream.command import Command
    from gputop.stream.reader import Loop

    with Loop(stream, command := Command([]), notify=notify) as loop:
        leave_root(*RECORDER, *EXPORTER, "gputop.alerts", *(("opentelemetry",) if args.otlp else ()))
        from gputop.findings.policy import FEED_EVERY_NS
        from gputop.metrics.exporting import Exporting
        from gputop.metrics.metered import GOES_ON
        from gputop.metrics.server import tls_context
        from gputop.stream.stalled import Unwatched

        judging = Unwatched(None, every_ns=FEED_EVERY_NS, notify=notify, goes_on=GOES_ON)
        exporting = Exporting(
            args.level, judging=judging, notify=notify, node=args.node, with_users=not args.no_users, with_dcgm=args.compat == "dcgm",
        )  # fmt: skip
        loop.add(judging, exporting, *alerting(alerts, judging))
        if args.textfile:
            exporting.write_to(args.textfile)
        if args.otlp:
            exporting.push_to(args.otlp)
        if args.listen is not None or not (args.textfile or args.otlp):
            tls = tls_context(args.tls_cert, args.tls_key) if args.tls_cert else None
            host, port = args.listen or ("127.0.0.1", PORT)
            exporting.listen(host, port, tls)
        command.listen()
        command.attend()
    return int(bool(loop.problem))
