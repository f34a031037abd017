"""HTTP of others: requests to the exporter, and the answers of those who take alerts."""

from __future__ import annotations

import http.client
import random
import re
import socket
from contextlib import suppress
from email.utils import formatdate
from functools import cache
from pathlib import Path
from unittest import mock

from gputop.alerts import webhook
from gputop.metrics import server
from gputop.metrics.prometheus import Pages
from tests.alerts.made import alert
from tests.fuzzing.kind import Kind, changed_text, is_harmless
from tests.metrics.made import taken
from tests.recording import fuzz
from tests.tui import scene

_PATHS = ("/metrics", "/", "/-/healthy", "/metrics?x=1", "/../etc/passwd", "//", "/%00", "http://evil/metrics", "*", "/<script>", "\x1b[2J")
_METHODS = ("GET", "GET", "GET", "HEAD", "POST", "PUT", "PRI", "CONNECT", "OPTIONS", "get", "__init__", "GET\0")
_VERSIONS = ("HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/9.9", "HTTP/1.1.1", "HTTP/-1.0", "HTTP/²", "HTTP/1", "", "FTP/1.0", "HTTP/1.1 x")
_ACCEPTS = (
    "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5", "*/*", "application/openmetrics-text; version=²", ";;,;=,",
    "application/openmetrics-text;version=" + "9" * 5000, "text/html;q=nan", "application/openmetrics-text;version=1.0.0," * 150,
)  # fmt: skip
_HEADERS = (
    ("Accept-Encoding", ("gzip", "gzip;q=0", "gzip;q=nan", "deflate, br", "gzip" * 1000, "*;q=1e999", ", ,gzip ;q = 1", "gzip;q=²")),
    ("Host", ("127.0.0.1:9835", "evil", "\x1b[2J", "a" * 300)), ("Connection", ("keep-alive", "close", "upgrade")),
    ("Expect", ("100-continue", "200-ok")), ("Content-Length", ("0", "-1", "9" * 40, "1e3", "²")), ("Transfer-Encoding", ("chunked", "x")),
    ("Authorization", ("Basic " + "A" * 6000, "Basic", "Bearer é")), ("X-Scrape-Timeout-Seconds", ("nan", "10")),
    ("X", ("y\r\n folded", "\0", "é")),
)  # fmt: skip


def requests(rng: random.Random) -> bytes:
    """What a client sends on a connection."""
    lines = [f"{rng.choice(_METHODS)} {rng.choice(_PATHS)} {rng.choice(_VERSIONS)}"]
    lines += [f"Accept: {rng.choice(_ACCEPTS)}"] * rng.choice((0, 1, 1, 1, 2))
    for name, values in rng.sample(_HEADERS, rng.randrange(5)):
        lines.append(f"{name}: {rng.choice(values)}")
    if rng.random() < 0.08:
        lines += [f"X{i}: {i}" for i in range(rng.choice((99, 101, 700)))]
    text = rng.choice(("\r\n", "\r\n", "\r\n", "\n")).join(lines) + rng.choice(("\r\n\r\n", "\r\n\r\n", "\n\n", "\r\n", ""))
    text += rng.choice(("", "", "", "x" * 9000, "GET /metrics HTTP/1.1\r\n\r\n"))
    data = text.encode("latin-1", "replace") if rng.random() < 0.5 else changed_text(rng, text)
    return fuzz.changed_bytes(rng, data) if rng.random() < 0.2 else data


@cache
def _pages() -> Pages:
    return Pages(taken(scene.frames(30)))


class _Unheard(server.Server):
    """A server that listens nowhere."""

    def __init__(self) -> None:
        self.page, self.healthy = _pages().page, lambda: True


class _Request(server._Request):
    """Over a socket that has no Nagle's algorithm."""

    disable_nagle_algorithm = False


_STATUS = re.compile(rb"HTTP/1\.[01] (200|400|404|414|431|501|503|505) [A-Za-z -]+\r\n")
_HEADER = re.compile(rb"[A-Za-z-]+: [\x20-\x7e]*")


def requests_drive(path: str) -> None:
    """Each is answered by a status of ours that repeats nothing, or by the end of the connection."""
    answer = answer_of(path)
    if not answer:
        return
    assert _STATUS.match(answer), answer[:80]
    head, _, _ = answer.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n")[1:]:
        assert _HEADER.fullmatch(line), line
    assert b" 200 " in head[:20] or b"evil" not in answer


def answer_of(path: str) -> bytes:
    """What the exporter answers to the bytes of a file."""
    data = Path(path).read_bytes()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data[: 100 << 10])
        theirs.shutdown(socket.SHUT_WR)
        connection = server._Connection(ours)
        try:
            _Request(connection.socket, ("127.0.0.1", 1), _Unheard())  # type: ignore[arg-type]
        except OSError as error:
            raise AssertionError(f"ended by {error!r}") from error
        ours.close()
        answer = b""
        with suppress(ConnectionResetError):  # it sent more than was read
            while piece := theirs.recv(1 << 16):
                answer += piece
    return answer


# the answers to alerts

_CODES = ("200 OK", "204 ", "429 Too", "500 x", "302 Found", "100 Continue", "99 x", "1000 x", "²00 x", "-1 x", "200", "401 \x1b[2J")
_ANSWER_HEADERS = (
    ("Retry-After", ("1", "9" * 50, "-1", "nan", "²", "", formatdate(2e9), "Wed, 99 Foo 99999 99:99:99 +9999",
     "Mon, 1 Jan 0001 00:00:00 GMT")),
    ("Content-Length", ("0", "-1", "9" * 30, "5")), ("Transfer-Encoding", ("chunked",)), ("Location", ("https://evil/", "file:///etc/passwd")),
    ("WWW-Authenticate", ("Basic realm=x", "Digest " + "x" * 3000)), ("Content-Encoding", ("gzip",)), ("Connection", ("close",)),
)  # fmt: skip


def answers(rng: random.Random) -> bytes:
    """What a server answers to a POST."""
    lines = [f"{rng.choice(('HTTP/1.1', 'HTTP/1.1', 'HTTP/1.0', 'HTTP/2', 'ICY', ''))} {rng.choice(_CODES)}"]
    for name, values in rng.sample(_ANSWER_HEADERS, rng.randrange(4)):
        lines.append(f"{name}: {rng.choice(values)}")
    if rng.random() < 0.1:
        lines += rng.choice((["X: " + "a" * 70_000], [f"X{i}: y" for i in range(200)], ["x" * 100_000]))
    text = "\r\n".join(lines) + rng.choice(("\r\n\r\n", "\r\n\r\n", "\r\n", "\n\n"))
    text += rng.choice(("", "ok", "5\r\nhello\r\n0\r\n\r\n", "zz\r\n"))
    if rng.random() < 0.1:
        text = "HTTP/1.1 100 Continue\r\n\r\n" * rng.choice((1, 50, 3000)) + text
    return text.encode("latin-1", "replace") if rng.random() < 0.5 else changed_text(rng, text)


def answers_drive(path: str) -> None:
    """An alert is sent, or fails with a reason in a line."""
    data = Path(path).read_bytes()

    def connect(one: http.client.HTTPConnection) -> None:
        one.sock, theirs = socket.socketpair()
        theirs.setblocking(False)
        try:
            theirs.sendall(data)
        except BlockingIOError:
            pass
        theirs.shutdown(socket.SHUT_WR)
        kept.append(theirs)

    kept: list[socket.socket] = []
    with mock.patch.object(http.client.HTTPConnection, "connect", connect), mock.patch.dict("os.environ", {"no_proxy": "*"}):
        reason = "sent"
        try:
            webhook.make("http://127.0.0.1:9/x").send(alert())
        except OSError as error:
            reason = str(error)
        assert reason
        assert is_harmless(reason), reason
        assert len(reason) < 400
    for one in kept:
        one.close()


KINDS = (Kind("web-requests", requests, requests_drive, 12), Kind("alert-answers", answers, answers_drive, 6))
