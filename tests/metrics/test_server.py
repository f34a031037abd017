"""Who asks for metrics over HTTP: well, badly, slowly, by the hundred, with TLS."""

from __future__ import annotations

import gzip
import os
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gputop.metrics import server as server_module
from gputop.metrics.server import MOST_CONNECTIONS, Server, tls_context
from gputop.system.errors import UserError
from tests.metrics.prom import prometheus
from tests.require import require
from tests.wait import PATIENCE_S, at_this_load, until

TEXT = b"# HELP gputop_x X.\n# TYPE gputop_x gauge\ngputop_x 1.0\n" + b"# " + b"x" * (1 << 20) + b"\n"


@contextmanager
def served(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    def page(_: str, zipped: bool) -> tuple[bytes, str]:
        return gzip.compress(TEXT) if zipped else TEXT, "text/plain; version=0.0.4; charset=utf-8"

    server = Server("127.0.0.1", 0, page, healthy=lambda: True, tls=tls)
    try:
        yield server
    finally:
        server.close()


def get(server: Server, path: str = "/metrics", *, context: ssl.SSLContext | None = None, **headers: str) -> tuple[int, bytes]:
    """Status and body."""
    scheme = "http" if context is None else "https"
    request = urllib.request.Request(f"{scheme}://127.0.0.1:{server.port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def said(server: Server, request: bytes) -> bytes:
    """The whole answer to bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as one:
        one.sendall(request)
        one.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: one.recv(1 << 16), b""))


def test_it_answers():
    with served() as server:
        assert get(server) == (200, TEXT)
        status, zipped = get(server, **{"Accept-Encoding": "gzip"})
        assert (status, gzip.decompress(zipped)) == (200, TEXT)
        assert get(server, "/-/healthy") == (200, b"ok\n")
        assert b"/metrics" in get(server, "/")[1]
        assert get(server, "/etc/passwd")[0] == 404


def test_it_listens_on_this_machine_alone():
    with served() as server:
        assert server._socket.getsockname()[0] == "127.0.0.1"


NONSENSE = {
    "bytes": (b"\0\xff" * 50, 400), "cut": (b"GET\r\n\r\n", 400), "a post": (b"POST /metrics HTTP/1.1\r\n\r\n", 501),
    "a body": (b"PUT /metrics HTTP/1.1\r\nContent-Length: 40000\r\n\r\n" + b"b" * 40_000, 501),
    "a long line": (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 414), "one without an end": (b"a" * 70_000, 414),
    "a long header": (b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 65_000 + b"\r\n\r\n", 431),
    "many headers": (b"GET /metrics HTTP/1.1\r\n" + b"X: a\r\n" * 101 + b"\r\n", 431),
    "long ones together": (b"GET /metrics HTTP/1.1\r\n" + (b"X: " + b"a" * 500 + b"\r\n") * 17 + b"\r\n", 431),
    "a version": (b"GET /metrics HTTP/9.9\r\n\r\n", 505), "TLS": (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505), "a page": (b"<script>alert(1)</script> / HTTP/1.1\r\n\r\n", 501),
    "another host": (b"GET http://evil/metrics HTTP/1.1\r\nHost: evil\r\n\r\n", 404),
}  # fmt: skip


@pytest.mark.parametrize(("request_", "status"), NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused(request_: bytes, status: int, capfd: pytest.CaptureFixture[str]):
    with served() as server:
        answer = said(server, request_)
        assert answer.startswith(b"HTTP/1.0 %d " % status)
        assert len(answer) < 400
        assert b"script" not in answer, "nothing that a client sends comes back"
        assert get(server)[0] == 200
    assert capfd.readouterr().err == ""


NARROW = b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 8000 + b"\r\n\r\n"


@pytest.mark.parametrize("line", [b"GET /metrics HTTP/1.0\r\n\r\n", b"GET /metrics\r\n", NARROW], ids=["1.0", "0.9", "8000 bytes"])
def test_short_and_long_requests_that_are_answered(line: bytes):
    with served() as server:
        assert said(server, line).endswith(TEXT)


@pytest.mark.parametrize("words", ["GET /metrics", "GET /metrics HTTP/0.9", "PUT /metrics HTTP/0.9", "GET /nothing HTTP/0.9"])
def test_each_answer_has_its_head_whatever_version_is_asked_for(words: str):
    with served() as server:
        head, _, text = said(server, f"{words}\r\n\r\n".encode()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.0 ")
        assert b"X-Content-Type-Options: nosniff" in head
        assert text


def test_a_head_alone():
    with served() as server:
        answer = said(server, b"HEAD /metrics HTTP/1.1\r\n\r\n")
        assert b"Content-Length: %d\r\n" % len(TEXT) in answer
        assert answer.endswith(b"\r\n\r\n")


def test_clients_that_never_read_or_never_ask_keep_nobody_out(monkeypatch: pytest.MonkeyPatch):
    """There are as many as there may be, and more; they go one by one, and threads with them."""
    threads, clients = threading.active_count(), []
    with served() as server:
        for number in range(2 * MOST_CONNECTIONS):
            clients.append(one := socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S))
            if number % 2:
                one.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        for _ in range(5):
            began_s = time.monotonic()
            assert get(server) == (200, TEXT)
            assert time.monotonic() - began_s < at_this_load(3.0)
        assert threading.active_count() <= threads + MOST_CONNECTIONS + 2
        monkeypatch.setattr(server_module, "DEADLINE_S", 0.5)
        until(lambda: not server._open)
        until(lambda: threading.active_count() <= threads + 1)
    for one in clients:
        one.close()


def authority(folder: Path, name: str) -> None:
    """Key and certificate of an authority."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}",
         "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True, timeout=PATIENCE_S,
    )  # fmt: skip


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates and keys."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("server", "other"):
        authority(folder, name)
    return folder


def trusting(keys: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(keys / "server.crt"))


def test_tls(keys: Path):
    with served(tls_context(str(keys / "server.crt"), str(keys / "server.key"))) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S):  # it never shakes hands
            for _ in range(2):
                assert get(server, context=trusting(keys)) == (200, TEXT)
        with pytest.raises((OSError, urllib.error.URLError)):
            get(server)


def test_certificates_that_cannot_be_used_are_told_in_a_line(keys: Path, tmp_path: Path):
    crt, key, locked = str(keys / "server.crt"), str(keys / "server.key"), str(tmp_path / "locked.key")
    lock = ["openssl", "pkey", "-in", key, "-aes128", "-passout", "pass:x", "-out", locked]
    subprocess.run(lock, check=True, capture_output=True, timeout=PATIENCE_S)
    for pair, why in (
        ((crt, str(tmp_path / "none")), "No such file"), ((crt, str(keys / "other.key")), "MISMATCH"), ((crt, locked), "has a password"),
        ((key, crt), "cannot use the certificate"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=why) as refused:
            tls_context(*pair)
        assert "\n" not in str(refused.value)


def test_prometheus_comes_in_with_tls(keys: Path, tmp_path: Path):
    require("prometheus")
    with served(tls_context(str(keys / "server.crt"), str(keys / "server.key"))) as server:
        scrape = {
            "job_name": "gputop", "scheme": "https", "tls_config": {"ca_file": str(keys / "server.crt")},
            "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}],
        }  # fmt: skip
        with prometheus(tmp_path, scrape) as one:
            until(lambda: one.ask("gputop_x == 1"))


def test_descriptors_are_given_back():
    with served() as server:
        get(server)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            get(server)
        until(lambda: len(os.listdir("/proc/self/fd")) <= before + 2)
