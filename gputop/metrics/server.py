"""Serves metrics over HTTP, bounded in bytes, time and threads, out of the collector's way.

It is Python's http.server, as the server of prometheus_client is, with the bounds that both lack: that one takes any number of threads, 100
headers of 64 KiB from each client, and shakes hands for TLS in the thread that accepts, where one silent client keeps out all others.
Each connection has one request, one thread, `HEAD_BYTES` and `DEADLINE_S`. With too many connections the oldest is closed, so that slow
clients, or clients that never read, keep no others out.
"""

from __future__ import annotations

import io
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler
from typing import Any

from prometheus_client.exposition import gzip_accepted

from gputop.system.errors import UserError, start_thread
from gputop.system.text import clean, one_line

MOST_CONNECTIONS = 64  # at once, each with a thread: a Prometheus has one, a pair two
MOST_PER_S = 200  # connections that are taken a second: the youngest lives a third of a second at least, a scrape takes 1 to 10 ms
HEAD_BYTES = 8 << 10  # of a request line with its headers: Prometheus sends 400, nginx takes 8 KiB of a line
DEADLINE_S = 10.0  # s that a connection lives: Prometheus' scrape_timeout
_LINGERS = 16  # reads of `HEAD_BYTES` after a refusal
_PLAIN = "text/plain; charset=utf-8"

Page = Callable[[str, bool], tuple[bytes, str]]  # (Accept, gzip) -> (text, content type)


def tls_context(cert_file: str, key_file: str) -> ssl.SSLContext:
    """The context for a certificate and its key, both PEM. Raises UserError where they cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except (OSError, ValueError) as error:
        why = one_line(getattr(error, "strerror", None) or str(error))
        raise UserError(f"cannot use the certificate {clean(cert_file)} with the key {clean(key_file)}: {why}") from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password: give one without, that only the exporter's user can read")


class Server:
    """Listens on ``host`` and ``port`` (0: any free one) and answers in threads of its own."""

    def __init__(self, host: str, port: int, page: Page, *, healthy: Callable[[], bool], tls: ssl.SSLContext | None = None) -> None:
        """Raises OSError where it cannot listen."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.page, self.healthy, self._tls = page, healthy, tls
        self._socket = socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=host == "::")
        self._open: dict[_Connection, None] = {}  # oldest first
        self._changed = threading.Condition()
        start_thread(self._serve, "http")

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Take no more connections."""
        self._socket.close()

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
        if not self._takes(connection):
            connection.close()
        elif start_thread(self._answer, "scrape", connection, address) is None:
            self._end(connection)
        time.sleep(max(0.0, 1 / MOST_PER_S - (time.monotonic() - began_s)))

    def _takes(self, connection: _Connection) -> bool:
        """Take it in the place of the oldest where there are as many as there may be; False where the oldest does not end at once."""
        with self._changed:
            if len(self._open) >= MOST_CONNECTIONS:
                next(iter(self._open)).cut()
            if self._changed.wait_for(lambda: len(self._open) < MOST_CONNECTIONS, 1.0):
                self._open[connection] = None
            return connection in self._open

    def _end_overdue(self) -> None:
        with self._changed:
            overdue = [one for one in self._open if time.monotonic() - one.began_s > DEADLINE_S]
        for one in overdue:
            one.cut()

    def _answer(self, connection: _Connection, address: Any) -> None:
        try:
            with suppress(OSError, ValueError):  # the client is slow, gone, or cut
                if self._tls is not None:
                    connection.encrypt(self._tls)
                _Request(connection.socket, address, self)  # type: ignore[arg-type]
        finally:
            self._end(connection)

    def _end(self, connection: _Connection) -> None:
        connection.close()
        with self._changed:
            del self._open[connection]
            self._changed.notify()


class _Connection:
    """A socket that another thread may cut."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.began_s = time.monotonic()
        accepted.settimeout(DEADLINE_S)

    def encrypt(self, context: ssl.SSLContext) -> None:
        """Put TLS around it. Raises OSError."""
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


class _Head(io.RawIOBase):
    """Reads `HEAD_BYTES` of a connection at most; raises LineTooLong where a request goes on after them."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._left = connection, HEAD_BYTES

    def readable(self) -> bool:
        """True: bytes can be read (`io.RawIOBase`)."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer; returns the number of bytes (`io.RawIOBase`). Raises LineTooLong once `HEAD_BYTES` have been read."""
        if not self._left:
            raise LineTooLong("head")
        got = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= got
        return got


class _Request(BaseHTTPRequestHandler):
    """One request. A body is not read."""

    server: Server  # type: ignore[assignment]
    default_request_version = "HTTP/1.0"  # of a line without one: an answer has its headers always
    disable_nagle_algorithm = True  # the end of a page does not wait for the client's word that it has the beginning

    def setup(self) -> None:
        """Open what is read and written."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Head(self.connection))

    def handle(self) -> None:
        """Answer one request. Headers that are too long are refused by ``http.server``, the line before them here."""
        try:
            self.handle_one_request()
        except LineTooLong:
            self.requestline = self.request_version = self.command = ""
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)

    def do_GET(self) -> None:
        """Answer."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            zipped = gzip_accepted(self.headers.get("Accept-Encoding") or "")
            text, content_type = self.server.page(self.headers.get("Accept") or "", zipped)
            self._send(HTTPStatus.OK, text, content_type, zipped=zipped)
        elif path == "/-/healthy":
            well = self.server.healthy()
            self._send(*((HTTPStatus.OK, b"ok\n") if well else (HTTPStatus.SERVICE_UNAVAILABLE, b"the collector gives nothing\n")))
        elif path == "/":
            self._send(HTTPStatus.OK, b'<title>gputop</title><a href="/metrics">metrics</a>\n', "text/html; charset=utf-8")
        else:
            self._send(HTTPStatus.NOT_FOUND, b"There is only /metrics\n")

    do_HEAD = do_GET  # noqa: N815 - http.server's own

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002 - http.server's own
        """Refuse a request in a line that repeats no part of the request."""
        self._send(HTTPStatus(code), f"{HTTPStatus(code).phrase}\n".encode())
        socket.socket.shutdown(self.connection, socket.SHUT_WR)
        for _ in range(_LINGERS):  # a client that still sends would meet a reset, and not read why
            if not self.connection.recv(HEAD_BYTES):
                break

    def version_string(self) -> str:
        """The header Server."""
        return "gputop"

    def log_message(self, *_: object) -> None:
        """Log nothing: there is no reader."""

    def _send(self, status: HTTPStatus, text: bytes, content_type: str = _PLAIN, *, zipped: bool = False) -> None:
        if self.request_version == "HTTP/0.9":  # a line may end in that, too; http.server would leave out the head
            self.request_version = self.default_request_version
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if zipped:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)
