"""Who asks for metrics over HTTP: well, badly, slowly, by the hundred; with TLS, certificates and passwords."""

from __future__ import annotations

import base64
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

import bcrypt
import pytest

from gputop.metrics import server as server_module
from gputop.metrics.server import MOST_CONNECTIONS, Server
from gputop.metrics.webconfig import WebConfig
from gputop.system.errors import UserError
from tests.metrics.prom import prometheus
from tests.require import require
from tests.wait import until

TEXT = b"# HELP gputop_x X.\n# TYPE gputop_x gauge\ngputop_x 1.0\n" + b"# " + b"x" * (1 << 20) + b"\n"
HASH = "$2b$04$AjyhiEdyMuAPxyLky5kQkOjI2QCJPL9OZZOv74kFjqYFUv6mI19z6"  # of ``secret``


@contextmanager
def served(web: WebConfig | None = None) -> Iterator[tuple[Server, list[str]]]:
    told: list[str] = []

    def page(_: str, zipped: bool) -> tuple[bytes, str]:
        return gzip.compress(TEXT) if zipped else TEXT, "text/plain; version=0.0.4; charset=utf-8"

    server = Server("127.0.0.1", 0, page, healthy=lambda: True, web=web, tell=told.append)
    try:
        yield server, told
    finally:
        server.close()


def get(
    server: Server, path: str = "/metrics", *, user: str = "", context: ssl.SSLContext | None = None, **headers: str
) -> tuple[int, bytes]:
    """Status and body."""
    scheme = "http" if context is None else "https"
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
    request = urllib.request.Request(f"{scheme}://127.0.0.1:{server.port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_it_answers():
    with served() as (server, _):
        assert get(server) == (200, TEXT)
        status, zipped = get(server, **{"Accept-Encoding": "gzip"})
        assert (status, gzip.decompress(zipped)) == (200, TEXT)
        assert get(server, "/-/healthy") == (200, b"ok\n")
        assert b"/metrics" in get(server, "/")[1]
        assert get(server, "/etc/passwd")[0] == 404


def test_it_listens_on_this_machine_alone():
    with served() as (server, _):
        assert server._socket.getsockname()[0] == "127.0.0.1"


NONSENSE = {
    "bytes": b"\0\xff" * 50, "cut": b"GET\r\n\r\n", "a post": b"POST /metrics HTTP/1.1\r\n\r\n", "long": b"GET /" + b"a" * 70_000,
    "a version": b"GET /metrics HTTP/9.9\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("said", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused(said: bytes, capfd: pytest.CaptureFixture[str]):
    with served() as (server, _):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as one:
            one.sendall(said)
            one.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: one.recv(1 << 16), b""))
        assert b" 200 " not in answer
        assert get(server)[0] == 200
    assert capfd.readouterr().err == ""


def test_clients_that_never_read_or_never_ask_keep_nobody_out(monkeypatch: pytest.MonkeyPatch):
    """There are as many as there may be, and more; they go one by one, and threads with them."""
    threads, clients = threading.active_count(), []
    with served() as (server, _):
        for number in range(2 * MOST_CONNECTIONS):
            clients.append(one := socket.create_connection(("127.0.0.1", server.port), timeout=10))
            if number % 2:
                one.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        for _ in range(5):
            began_s = time.monotonic()
            assert get(server) == (200, TEXT)
            assert time.monotonic() - began_s < 3.0
        assert threading.active_count() <= threads + MOST_CONNECTIONS + 2
        monkeypatch.setattr(server_module, "DEADLINE_S", 0.5)
        until(lambda: not server._open)
        until(lambda: threading.active_count() <= threads + 1)
    for one in clients:
        one.close()


def configured(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "web.yml"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("basic_auth_users: {ana: '" + HASH + "'}", 0o644, "everybody can read it, and it holds passwords: chmod o= it"),
        ("basic_auth_users: {ana: secret}", 0o600, "the password of 'ana' is no bcrypt hash"),
        ("basic_auth_users: [ana]", 0o600, "basic_auth_users must be a table"),
        ("a: [1", 0o600, "no YAML, line 1"),
        ("- x", 0o600, "the file must be a table of tls_server_config, basic_auth_users"),
        ("tls: {}", 0o600, "gputop knows no 'tls' in the file"),
        ("tls_server_config: {cert_file: a, key_file: b, curve_preferences: []}", 0o600, "gputop knows no 'curve_preferences'"),
        ("tls_server_config: {cert_file: a}", 0o600, "tls_server_config needs cert_file and key_file"),
        ("tls_server_config: {cert_file: a, key_file: b}", 0o600, "a certificate or key cannot be used"),
        ("tls_server_config: {cert_file: a, key_file: b, client_auth_type: Maybe}", 0o600, "client_auth_type 'Maybe'"),
        ("tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAndVerifyClientCert}", 0o600, "needs client_ca_file"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: SSL3}", 0o600, "TLS12 or TLS13"),
        ("&a [*a, *a]", 0o600, "the file must be a table"),
        ("x: '" + "y" * (1 << 17) + "'", 0o600, "the file must be a table"),
    ],
    ids=map(str, range(14)),
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_told_in_a_line(text: str, mode: int, why: str, tmp_path: Path):
    with pytest.raises(UserError) as refused:
        WebConfig(str(configured(tmp_path, text, mode)))
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(UserError, match="No such file"):
        WebConfig(str(tmp_path / "none.yml"))


def test_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Checked once: bcrypt takes longer than a scrape may."""
    checked: list[bytes] = []
    real = bcrypt.checkpw
    monkeypatch.setattr(bcrypt, "checkpw", lambda password, hashed: checked.append(hashed) or real(password, hashed))
    with served(WebConfig(str(configured(tmp_path, f"basic_auth_users: {{ana: '{HASH}'}}")))) as (server, _):
        for user in ("", "ana:wrong", "bo:secret", "ana", "ana:"):
            assert get(server, user=user)[0] == 401, user
        assert get(server, "/-/healthy")[0] == 401
        assert get(server, Authorization="Basic =?=")[0] == 401
        assert get(server, Authorization="Bearer x")[0] == 401
        asked = len(checked)
        for _ in range(3):
            assert get(server, user="ana:secret") == (200, TEXT)
        assert len(checked) == asked + 1


def test_the_file_is_read_again(tmp_path: Path):
    path = configured(tmp_path, "{}")
    with served(WebConfig(str(path))) as (server, told):
        assert get(server)[0] == 200
        configured(tmp_path, f"basic_auth_users: {{ana: '{HASH}'}}")
        assert get(server)[0] == 401
        configured(tmp_path, "basic_auth_users: {ana: secret}")
        for _ in range(3):
            with pytest.raises((OSError, urllib.error.URLError)):
                get(server, user="ana:secret")
        assert len(told) == 1, "once"
        assert "no bcrypt hash" in told[0]
        configured(tmp_path, f"basic_auth_users: {{bo: '{HASH}'}}")
        assert get(server, user="bo:secret")[0] == 200


def authority(folder: Path, name: str) -> None:
    """Key and certificate of an authority."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}",
         "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True, timeout=30,
    )  # fmt: skip


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates: of the server, of a client, of a stranger."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("server", "client", "stranger"):
        authority(folder, name)
    return folder


def trusting(keys: Path, client: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(keys / "server.crt"))
    if client:
        context.load_cert_chain(keys / f"{client}.crt", keys / f"{client}.key")
    return context


def test_tls_with_client_certificates(keys: Path):
    names = "cert_file: server.crt, key_file: server.key, client_ca_file: client.crt"
    text = f"tls_server_config: {{{names}, client_auth_type: RequireAndVerifyClientCert}}"
    with served(WebConfig(str(configured(keys, text)))) as (server, _):
        assert get(server, context=trusting(keys, "client")) == (200, TEXT)
        for client in ("", "stranger"):
            with pytest.raises((OSError, urllib.error.URLError)):
                get(server, context=trusting(keys, client))
        with pytest.raises((OSError, urllib.error.URLError)):
            get(server)


def test_a_new_certificate_is_taken_at_once(keys: Path, tmp_path: Path):
    for name in ("server.crt", "server.key"):
        (tmp_path / name).write_bytes((keys / name).read_bytes())
    with served(WebConfig(str(configured(tmp_path, "tls_server_config: {cert_file: server.crt, key_file: server.key}")))) as (server, _):
        assert get(server, context=trusting(keys))[0] == 200
        authority(tmp_path, "server")
        assert get(server, context=trusting(tmp_path))[0] == 200
        with pytest.raises(urllib.error.URLError):
            get(server, context=trusting(keys))


def test_prometheus_comes_in_with_tls_and_a_password(keys: Path, tmp_path: Path):
    require("prometheus")
    text = f"tls_server_config: {{cert_file: server.crt, key_file: server.key}}\nbasic_auth_users: {{ana: '{HASH}'}}"
    with served(WebConfig(str(configured(keys, text)))) as (server, _):
        scrape = {
            "job_name": "gputop", "scheme": "https", "tls_config": {"ca_file": str(keys / "server.crt")},
            "basic_auth": {"username": "ana", "password": "secret"}, "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}],
        }  # fmt: skip
        with prometheus(tmp_path, scrape) as one:
            until(lambda: one.ask("gputop_x == 1"), 30.0)


def test_descriptors_are_given_back():
    with served() as (server, _):
        get(server)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            get(server)
        until(lambda: len(os.listdir("/proc/self/fd")) <= before + 2)
