"""Where alerts go: real servers, sockets that never answer, real processes, and the bytes that a terminal gets."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputop.alerts import command, desktop
from gputop.alerts.alert import BEGIN, END
from gputop.alerts.sender import MOST_WAITING, Alerts, Sender
from gputop.alerts.sinks import sink_of, sinks_of
from gputop.alerts.webhook import slack_message
from gputop.session.following import Following
from gputop.system.errors import UserError
from tests.alerts.made import alert
from tests.pty.terminal import Pty
from tests.unit.diagnosis.test_engine import contended
from tests.wait import until


class Received(http.server.BaseHTTPRequestHandler):
    """Keeps what is posted, and answers what it is told."""

    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken.append((self.path, dict(self.headers), json.loads(body)))
        self.send_response(self.server.answer)
        if self.server.answer in (301, 307):
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(http.server.ThreadingHTTPServer):
    taken: list[tuple[str, dict[str, str], Any]]
    answer = 200


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Received) as one:
        one.taken = []
        serving = threading.Thread(target=one.serve_forever, daemon=True)
        serving.start()
        yield one
        one.shutdown()


@pytest.fixture
def dead() -> Iterator[int]:
    """The port of a socket that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as one:
        yield one.getsockname()[1]


def test_a_webhook_gets_the_document(server: Server) -> None:
    sink_of(f"http://127.0.0.1:{server.server_port}/hook?key=secret").send(alert())
    [(path, headers, body)] = server.taken
    assert path == "/hook?key=secret"
    assert headers["Content-Type"] == "application/json"
    assert body == alert().document


def test_slack_gets_a_message_without_markup_of_names(server: Server) -> None:
    sink_of(f"slack:http://localhost:{server.server_port}/x").send(alert(headline="<!channel> & <http://evil|here>"))
    [(_, _, body)] = server.taken
    assert set(body) == {"text", "attachments"}
    assert "&lt;!channel&gt; &amp; &lt;http" in body["text"]
    assert "<" not in json.dumps(body)
    assert body["attachments"][0]["color"] == "warning"
    assert {"title": "cause", "value": "cpu-contention", "short": True} in body["attachments"][0]["fields"]
    assert slack_message(alert(END))["attachments"][0]["color"] == "good"


@pytest.mark.parametrize(("answer", "told"), [(404, "404"), (500, "500"), (301, "301"), (307, "307")])
def test_a_refusal_is_told_and_a_redirect_is_not_followed(server: Server, answer: int, told: str) -> None:
    server.answer = answer
    with pytest.raises(OSError, match=told):
        sink_of(f"http://127.0.0.1:{server.server_port}/hook").send(alert())
    assert [path for path, _, _ in server.taken] == ["/hook"]


def test_a_dead_webhook_gives_up_in_time(dead: int) -> None:
    began = time.monotonic()
    with pytest.raises(OSError, match="time"):
        sink_of(f"http://127.0.0.1:{dead}/").send(alert())
    assert time.monotonic() - began < 4


def test_a_dead_webhook_delays_neither_the_stream_nor_the_other_sinks(dead: int, tmp_path: Path) -> None:
    told: list[str] = []
    alerts = Alerts(sinks_of([f"http://127.0.0.1:{dead}/secret", f"exec:sh -c 'cat >> {tmp_path}/told'"]), "low", told.append)
    scene, following = contended(), Following()
    following.restate(scene.board.header)
    longest, frames = 0.0, [scene.next_frame(0.1) for _ in range(60)]
    for frame in frames:
        following.take(frame)
        began = time.monotonic()
        alerts.look(following)
        longest = max(longest, time.monotonic() - began)
    assert longest < 0.05, "starting two threads takes no longer"
    until((tmp_path / "told").exists)
    for _ in range(MOST_WAITING + 10):
        alerts.senders[0].put(alert())
    assert alerts.senders[0].dropped >= 9
    began = time.monotonic()
    alerts.close()
    assert time.monotonic() - began < 4
    assert "came too fast" in told[-1]
    assert not any("secret" in line for line in told)


def test_a_failure_is_told_once() -> None:
    class Broken:
        name = "broken"

        def send(self, _alert: object) -> None:
            raise OSError(5, "it is\nbroken")

    told: list[str] = []
    sender = Sender(Broken(), told.append)
    for _ in range(3):
        sender.put(alert())
    until(lambda: sender.failed == 3)
    assert told == ["alert not sent to broken: it is broken"]


def test_a_command_gets_the_document_and_the_variables(tmp_path: Path) -> None:
    script = tmp_path / "told"
    script.write_text(f'#!/bin/sh\ncat > {tmp_path}/document\nenv > {tmp_path}/variables\necho "$1" > {tmp_path}/argument\n')
    script.chmod(0o755)
    sink_of(f"exec:{script} '$HOME; touch {tmp_path}/shell'").send(alert())
    assert json.loads((tmp_path / "document").read_text()) == alert().document
    variables = (tmp_path / "variables").read_text().splitlines()
    wanted = {"GPUTOP_EVENT=begin", "GPUTOP_CAUSE=cpu-contention", "GPUTOP_SEVERITY=medium", "GPUTOP_TRAINER_PID=3821", "GPUTOP_HOST=node7"}
    assert wanted <= set(variables)
    assert (tmp_path / "argument").read_text().startswith("$HOME; touch"), "no shell reads it"
    assert not (tmp_path / "shell").exists()


def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LIMIT_S", 0.5)
    with pytest.raises(OSError, match="killed"):
        sink_of(f"exec:sh -c 'sleep 600 & echo $! > {tmp_path}/pid; wait'").send(alert())
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not Path(f"/proc/{pid}").exists() or ") Z " in Path(f"/proc/{pid}/stat").read_text())


@pytest.mark.parametrize(("text", "told"), [("exec:sh -c 'echo not so >&2; exit 3'", "exit code 3: not so"), ("exec:false", "code 1")])
def test_a_command_that_fails_says_why(text: str, told: str) -> None:
    with pytest.raises(OSError, match=told):
        sink_of(text).send(alert())


def test_a_command_need_not_read_and_may_leave_something_running() -> None:
    began = time.monotonic()
    sink_of("exec:sh -c 'sleep 5 & exit 0'").send(alert())
    assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pager", "write bell"), ("", "write bell"), ("exec:", "no such command"), ("exec:no-such-program-here x", "no such command"),
        ("exec:sh -c 'x", "no closing quotation"), ("http://example.org/hook", "https only"),
        ("http://127.0.0.1.evil.example/", "https only"),
        ("https://", "no address"), ("slack:ftp://x/y", "no address"), ("https://a b/", "no address"), ("https://h:99999/", "no address"),
        ("bell:loud", "write bell"),
    ],
)  # fmt: skip
def test_mistakes_are_told(text: str, told: str) -> None:
    with pytest.raises(UserError, match=told) as failed:
        sink_of(text)
    assert failed.value.code == 2


def test_none_is_no_sink_and_one_twice_is_one() -> None:
    assert sinks_of(["none"]) == []
    assert [one.name for one in sinks_of(["bell", "desktop", "bell", "https://hooks.slack.com/services/T/B/x"])] == [
        "bell", "desktop", "https://hooks.slack.com",
    ]  # fmt: skip


# terminals

SEND = "from tests.alerts.made import alert; from gputop.alerts.sinks import sink_of; import sys\nfor e in sys.argv[2:]: sink_of(sys.argv[1]).send(alert(e))"  # noqa: E501


def shown(sink: str, environ: dict[str, str], *events: str) -> bytes:
    """What a terminal gets while the standard streams go elsewhere."""
    plain = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "PYTHONPATH")} | {"LANG": "C.UTF-8"}
    script = f"exec {sys.executable} -c '{SEND}' {sink} {' '.join(events)} > /dev/null"
    with Raw(["sh", "-c", script], env=plain | environ, cwd=Path(__file__).parents[2]) as terminal:
        assert terminal.exit_code() == 0, terminal.got
        time.sleep(0.05)
        return terminal.got


class Raw(Pty):
    """Keeps all bytes."""

    got = b""

    def _take(self, data: bytes) -> None:
        super()._take(data)
        self.got += data


def test_the_bell_rings_once_when_it_begins() -> None:
    assert shown("bell", {"TERM": "xterm"}, BEGIN, END) == b"\a"


@pytest.mark.parametrize(
    ("environ", "begins"),
    [
        ({"TERM": "xterm-kitty"}, b"\x1b]99;i=gputop:d=0:p=title;gputop: cpu-contention\x1b\\\x1b]99;i=gputop:d=1:p=body;"),
        ({"TERM": "foot"}, b"\x1b]777;notify;gputop: cpu-contention;"),
        ({"TERM": "xterm-256color", "VTE_VERSION": "7600"}, b"\x1b]777;notify;"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, b"\x1b]9;"),
        ({"TERM": "xterm-256color"}, b"\x1b]9;"),
    ],
)
def test_a_notification_is_the_terminals_own(environ: dict[str, str], begins: bytes) -> None:
    got = shown("desktop", environ, BEGIN)
    assert got.startswith(begins)
    assert "▲ node7".encode() in got
    assert got.endswith(b"\x1b\\")
    assert got.count(b"\a") == 0


def test_a_semicolon_of_a_name_begins_no_field() -> None:
    assert desktop.notification(777, "a;b", "c;d\x1b\\\a") == "\x1b]777;notify;a,b;c,d·\\·\x1b\\"


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is missing: apt install tmux")
def test_a_notification_gets_through_tmux(tmp_path: Path) -> None:
    """tmux runs in our terminal, and gputop in tmux: our terminal gets the sequence."""
    socket_path, root = tmp_path / "tmux", Path(__file__).parents[2]
    config = tmp_path / "conf"
    config.write_text("set -g allow-passthrough on\n")
    script = tmp_path / "send.py"
    script.write_text(SEND)
    plain = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    environ = plain | {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TERM": "xterm-256color", "PYTHONPATH": str(root)}
    inner = f"{sys.executable} {script} desktop begin; exec sleep 60"
    tmux = ["tmux", "-f", str(config), "-S", str(socket_path)]
    with Raw([*tmux, "new-session", "-x", "80", "-y", "24", inner], env=environ, cwd=root) as terminal:
        try:
            terminal.wait_for(lambda: b"\x1b]9;\xe2\x96\xb2 node7" in terminal.got, "the notification")
            assert b"\x1bPtmux" not in terminal.got
        finally:
            subprocess.run([*tmux, "kill-server"], env=environ, check=False, timeout=10)
