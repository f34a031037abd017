"""The reader that exports metrics of its stream: by an HTTP server, a file for node_exporter, a push to OpenTelemetry."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from gputop.metrics.metered import Metered
from gputop.metrics.prometheus import Pages, TextFile
from gputop.metrics.pushing import Pushing
from gputop.system.errors import UserError
from gputop.system.text import clean

if TYPE_CHECKING:
    import ssl

    from gputop.stream.stalled import Unwatched

EVERY_S = 15.0  # s between two files, or pushes: Prometheus' usual interval
READ_S = 0.45  # s between two reads: taking five frames at once costs a fifth of the wake-ups (measured: 1.6 % of a core, not 2.4)


class Exporting(Metered):
    """Metrics of one stream, and what they are exported to."""

    def __init__(
        self, level: str, *, judging: Unwatched, notify: Callable[[str], None], node: str = "", with_users: bool = True,
        with_dcgm: bool = False,
    ) -> None:  # fmt: skip
        """``node``: a label on every series; the others as in `Metered`."""
        super().__init__(level, judging=judging, with_users=with_users, with_dcgm=with_dcgm, notify=notify)
        self._node = clean(node, 80)
        self._pages = Pages(self, self._node)
        self._ends = ExitStack()

    def rest(self) -> float:
        return READ_S

    def end(self) -> None:
        with self._ends:
            super().end()

    def write_to(self, path: str) -> None:
        """Write the file for node_exporter every `EVERY_S`. Raises UserError if it cannot be written."""
        file = TextFile(path)
        self._ends.callback(file.close)
        self._ends.callback(Pushing(lambda: file.write(self._pages.page()[0]), EVERY_S, self._notify).close)

    def push_to(self, url: str) -> None:
        """Push to an OpenTelemetry collector every `EVERY_S`. Raises UserError for an address that cannot be."""
        from gputop.metrics.otlp import Otlp

        self._ends.callback(Pushing(Otlp(url, self, self._node).push, EVERY_S, self._notify).close)

    def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Serve HTTP, and report where. Raises UserError if that address cannot be listened on."""
        from gputop.metrics.server import Server

        shown = f"[{host}]" if ":" in host else host
        try:
            server = Server(host, port, self._pages.page, healthy=lambda: not self.is_silent, tls=tls)
        except (OSError, UnicodeError) as error:
            raise UserError(f"cannot listen on {clean(shown)}:{port}: {getattr(error, 'strerror', None) or error}") from None
        self._ends.callback(server.close)
        if not _is_loopback(host):
            readable = f"anyone who reaches port {server.port} can read the metrics"
            self._notify(f"{readable}: docs/exporter.md shows a password, by nginx or Caddy")
        self._notify(f"metrics at {'http' if tls is None else 'https'}://{shown or '0.0.0.0'}:{server.port}/metrics")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
