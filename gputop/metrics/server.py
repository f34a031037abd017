"""The HTTP end of the exporter: bounded, patient with nobody, and out of the collector's way.

Each connection has one request, one thread and `DEADLINE_S`. Where there are too many, the oldest must go, so that slow clients, or those
that never read, keep nobody out.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from gputop.metrics.webconfig import WebConfig
from gputop.system.errors import UserError, start_thread

MOST_CONNECTIONS = 32  # at once: a Prometheus has one, a pair two
MOST_PER_S = 100  # connections that are taken a second
DEADLINE_S = 10.0  # s that a connection lives: Prometheus' scrape_timeout
_PLAIN = "text/plain; charset=utf-8"
_REALM = 'Basic realm="gputop"'

Page = Callable[[str, bool], tuple[bytes, str]]  # (Accept, gzip) -> (text, content type)


class Server:
    """Listens on ``host`` and ``port`` (0: any free one) and answers in threads of its own."""

    def __init__(
        self, host: str, port: int, page: Page, *, healthy: Callable[[], bool], web: WebConfig | None, tell: Callable[[str], None]
    ) -> None:
        """``tell`` gets a line where the web config cannot be used. Raises OSError where it cannot listen."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.page, self.healthy, self.web = page, healthy, web
        self._tell, self._told = tell, ""
        self._socket = socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=host == "::")
        self._open: dict[_Connection, None] = {}  # oldest first
        self._lock = threading.Lock()
        start_thread(self._serve, "http")

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Take no more connections."""
        self._socket.close()

    def tell_once(self, problem: str) -> None:
        """Say why nobody gets an answer, once for each reason."""
        if problem != self._told:
            self._told = problem
            if problem:
                self._tell(problem)

    def done(self, connection: _Connection) -> None:
        """A connection is over."""
        with self._lock:
            self._open.pop(connection, None)

    def _serve(self) -> None:
        while self._socket.fileno() >= 0:
            with suppress(OSError, ValueError):  # out of descriptors, or closed
                if select.select([self._socket], [], [], 1.0)[0]:
                    self._accept()
            self._end_overdue()

    def _accept(self) -> None:
        began_s = time.monotonic()
        try:
            accepted, address = self._socket.accept()
        except OSError:
            time.sleep(0.1)
            raise
        connection = _Connection(accepted)
        with self._lock:
            self._open[connection] = None
            surplus = list(self._open)[:-MOST_CONNECTIONS]
        for one in surplus:
            one.cut()
        if start_thread(self._answer, "scrape", connection, address) is None:
            connection.cut()
            self.done(connection)
        time.sleep(max(0.0, 1 / MOST_PER_S - (time.monotonic() - began_s)))

    def _end_overdue(self) -> None:
        with self._lock:
            overdue = [one for one in self._open if time.monotonic() - one.began_s > DEADLINE_S]
        for one in overdue:
            one.cut()

    def _answer(self, connection: _Connection, address: Any) -> None:
        try:
            context = self.web.now().context if self.web is not None else None
            if context is not None:
                connection.encrypt(context)
            self.tell_once("")
        except UserError as error:  # in doubt nobody gets in, neither in the clear
            self.tell_once(str(error))
            connection.close()
        except (OSError, ValueError):
            connection.close()
        else:
            with suppress(OSError, ValueError):
                _Request(connection.socket, address, self)  # type: ignore[arg-type]
            connection.close()
        finally:
            self.done(connection)


class _Connection:
    """A socket that another thread may cut."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.began_s = time.monotonic()
        accepted.settimeout(DEADLINE_S / 2)

    def encrypt(self, context: ssl.SSLContext) -> None:
        """TLS. Raises OSError."""
        wrapped = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.socket = wrapped
        wrapped.do_handshake()

    def cut(self) -> None:
        """End it from outside: its thread meets an error."""
        with suppress(OSError, ValueError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError, ValueError):
            socket.socket.shutdown(self.socket, socket.SHUT_WR)
        with suppress(OSError):
            self.socket.close()


class _Request(BaseHTTPRequestHandler):
    """One request."""

    server: Server  # type: ignore[assignment]

    def do_GET(self) -> None:
        """Answer."""
        path = self.path.partition("?")[0]
        try:
            if self.server.web is not None and not self.server.web.allows(self.headers.get("Authorization") or ""):
                self._send(HTTPStatus.UNAUTHORIZED, b"Unauthorized\n", challenge=True)
            elif path == "/metrics":
                zipped = "gzip" in (self.headers.get("Accept-Encoding") or "")
                text, content_type = self.server.page(self.headers.get("Accept") or "", zipped)
                self._send(HTTPStatus.OK, text, content_type, zipped=zipped)
            elif path == "/-/healthy":
                well = self.server.healthy()
                self._send(*((HTTPStatus.OK, b"ok\n") if well else (HTTPStatus.SERVICE_UNAVAILABLE, b"the collector gives nothing\n")))
            elif path == "/":
                self._send(HTTPStatus.OK, b'<title>gputop</title><a href="/metrics">metrics</a>\n', "text/html; charset=utf-8")
            else:
                self._send(HTTPStatus.NOT_FOUND, b"There is only /metrics\n")
        except UserError as error:
            self.server.tell_once(str(error))
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, b"The web config cannot be used\n")

    do_HEAD = do_GET  # noqa: N815 - http.server's own

    def version_string(self) -> str:
        """The header Server."""
        return "gputop"

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""

    def _send(self, status: HTTPStatus, text: bytes, content_type: str = _PLAIN, *, zipped: bool = False, challenge: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if zipped:
            self.send_header("Content-Encoding", "gzip")
        if challenge:
            self.send_header("WWW-Authenticate", _REALM)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)
