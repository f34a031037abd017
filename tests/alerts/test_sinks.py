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
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from gputop.alerts import command, desktop, webhook
from gputop.alerts import sender as sender_module
from gputop.alerts.alert import BEGIN, END, Alert
from gputop.alerts.sender import LEAVE_S, MOST_WAITING, TRIED_S, Alerts, Sender
from gputop.alerts.sinks import Busy, Refused, sink_of, sinks_of
from gputop.alerts.webhook import WHOLE_S, retry_after_s, slack_message
from gputop.model.frame import SECOND_NS
from gputop.stream.following import Following
from gputop.system.errors import UserError
from tests.alerts.made import alert, put
from tests.pty.terminal import Pty
from tests.unit.diagnosis.test_engine import contended
from tests.wait import PATIENCE_S, until


class Received(http.server.BaseHTTPRequestHandler):
    """Keeps what is posted, and answers what it is told."""

    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken.append((self.path, dict(self.headers), json.loads(body)))
        answer = self.server.answers.pop(0) if self.server.answers else self.server.answer
        self.send_response(answer)
        if answer in (301, 307):
            self.send_header("Location", "/elsewhere")
        if self.server.after:
            self.send_header("Retry-After", self.server.after)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(http.server.ThreadingHTTPServer):
    taken: list[tuple[str, dict[str, str], Any]]
    answer = 200
    answers: list[int]  # the first ones, before that
    after = ""  # Retry-After


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Received) as one:
        one.taken, one.answers = [], []
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
    assert body == to_builtins(alert())


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
    with pytest.raises(OSError, match="longer than 3 s"):
        sink_of(f"http://127.0.0.1:{dead}/").send(alert())
    assert time.monotonic() - began < 10 * WHOLE_S


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
    assert longest < WHOLE_S / 2, "nobody waits for its answer"
    until((tmp_path / "told").exists)
    for number in range(100, MOST_WAITING + 110):
        put(alerts.senders[0], number=number)
    assert alerts.senders[0].dropped >= 9
    began = time.monotonic()
    alerts.close()
    assert time.monotonic() - began < 10 * LEAVE_S
    assert any("came too fast" in line for line in told)
    assert not any("secret" in line for line in told)


class Made:
    """A sink that does what it is told, one word an attempt, and keeps what came through."""

    name = "made"

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes, self.tried, self.taken = list(outcomes), list[str](), list[Alert]()
        self.may = threading.Event()
        self.may.set()

    def send(self, one: Alert) -> None:
        self.tried.append(one.event)
        assert self.may.wait(PATIENCE_S)
        if self.outcomes and (failure := self.outcomes.pop(0)) is not None:
            raise failure
        self.taken.append(one)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of a hundredth."""
    monkeypatch.setattr(sender_module, "PAUSES_S", (0.01, 0.05, 0.25, 0.6))
    monkeypatch.setattr(sender_module, "LEAST_S", 0.01)


@pytest.mark.usefixtures("quick")
def test_what_fails_is_tried_again_and_told_once() -> None:
    told: list[str] = []
    sink = Made(OSError(5, "it is\nbroken"), TimeoutError("slow"), Busy("429", 0.1))
    sender = Sender(sink, told.append)
    put(sender)
    until(lambda: sender.sent == 1)
    assert (len(sink.tried), sender.failed, sender.waiting) == (4, 0, 0)
    assert told == ["alert not sent to made: it is broken; it is tried again for 10 min"]


def test_the_pauses_grow_and_the_other_side_may_set_them() -> None:
    sender = Sender(Made(), lambda _: None)
    waiting = sender_module._Waiting((1, 0), alert(), time.monotonic() + TRIED_S)
    sender._queue[waiting.key] = waiting

    def pause_after(error: Exception) -> float:
        sender._fail(waiting, waiting.alert, error)
        return round(sender._due_s - time.monotonic())

    assert [pause_after(OSError("x")) for _ in range(6)] == [1, 5, 25, 60, 60, 60]
    assert pause_after(Busy("x", 120.0)) == 120
    assert pause_after(Busy("x", 0.0)) == 1
    assert pause_after(Busy("x", 1e9)) == pytest.approx(TRIED_S, abs=2), "its last try"
    waiting.until_s = time.monotonic()
    sender._fail(waiting, waiting.alert, OSError("x"))
    assert (sender.failed, sender.waiting) == (1, 0)


@pytest.mark.usefixtures("quick")
def test_what_is_refused_is_not_tried_again_and_the_next_goes_at_once() -> None:
    told: list[str] = []
    sink = Made(Refused("404"))
    sender = Sender(sink, told.append)
    put(sender)
    put(sender, number=2)
    until(lambda: sender.sent == 1)
    assert (sink.tried, sender.failed) == ([BEGIN, BEGIN], 1)
    assert told == ["alert not sent to made: 404"]


@pytest.mark.usefixtures("quick")
def test_one_at_a_time_in_their_order() -> None:
    sink = Made(*[OSError("x")] * 3)
    sender = Sender(sink, lambda _: None)
    for number in (1, 2, 3):
        put(sender, number=number)
    until(lambda: sender.sent == 3)
    assert [one.incident.id for one in sink.taken] == [1, 2, 3]
    assert len(sink.tried) == 6


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("clock_ns", [0, 3_000_000, -7200 * SECOND_NS])
def test_nobody_hears_that_something_began_once_it_is_over(clock_ns: int) -> None:
    """Whether the end comes while it waits, or during a try that fails; and whatever the collector, started again, found the time to be."""
    sink = Made(OSError("x"), OSError("x"))
    sender = Sender(sink, lambda _: None)
    sink.may.clear()
    put(sender)
    until(lambda: sink.tried == [BEGIN])
    put(sender, END, clock_ns=clock_ns, end_ns=52 * SECOND_NS)
    sink.may.set()
    until(lambda: sender.sent == 1)
    assert sink.tried == [BEGIN, END, END]
    assert [one.event for one in sink.taken] == [END]
    assert (sender.failed, sender.waiting) == (0, 0)


def test_an_end_that_comes_during_a_try_that_works_is_sent_after_it() -> None:
    sink = Made()
    sender = Sender(sink, lambda _: None)
    sink.may.clear()
    put(sender)
    until(lambda: sink.tried == [BEGIN])
    put(sender, END, end_ns=52 * SECOND_NS)
    sink.may.set()
    until(lambda: sender.sent == 2)
    assert [one.event for one in sink.taken] == [BEGIN, END]


def test_at_the_end_what_waits_is_tried_once_more_and_what_was_not_sent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "PAUSES_S", (PATIENCE_S,))  # none is tried again meanwhile
    told: list[str] = []
    alerts = Alerts([Made(OSError("x")), Made(OSError("x"), OSError("y")), Made(Busy("z", 300.0))], "low", told.append)  # type: ignore[list-item]
    works, fails, waits = alerts.senders
    for sender in alerts.senders:
        put(sender)
    until(lambda: all(sender._tries == 1 for sender in alerts.senders))
    began = time.monotonic()
    alerts.close()
    assert time.monotonic() - began < LEAVE_S, "there is nothing to wait for"
    assert (works.sent, fails.failed, waits.waiting) == (1, 1, 1)
    assert told[3:] == ["alert not sent to made: y", "1 alert not sent to made: 1 waited for another try"]


@pytest.mark.parametrize(("answers", "after", "took_s"), [([500], "", 1.0), ([503], "2", 2.0), ([429], "1", 1.0), ([429], "DATE", 1.0)])
def test_a_server_that_is_busy_gets_it_later(server: Server, answers: list[int], after: str, took_s: float) -> None:
    server.answers, server.after = answers, formatdate(time.time() + 3, usegmt=True) if after == "DATE" else after
    sender, began = Sender(sink_of(f"http://127.0.0.1:{server.server_port}/"), lambda _: None), time.monotonic()
    put(sender)
    until(lambda: sender.sent == 1)
    assert time.monotonic() - began >= took_s
    assert len(server.taken) == 2


def test_a_server_that_is_not_there_yet_gets_it_later() -> None:
    told: list[str] = []
    with Server(("127.0.0.1", 0), Received, bind_and_activate=False) as one:
        one.taken, one.answers = [], []
        one.server_bind()  # nobody else gets its port, and who connects is refused
        sender = Sender(sink_of(f"http://127.0.0.1:{one.server_port}/"), told.append)
        put(sender)
        until(lambda: told)
        one.server_activate()
        threading.Thread(target=one.serve_forever, daemon=True).start()
        until(lambda: sender.sent == 1)
        one.shutdown()
    assert "refused" in told[0]


@pytest.mark.parametrize("answer", [400, 401, 404, 410, 301])
def test_a_server_that_will_not_have_it_is_asked_once(server: Server, answer: int) -> None:
    server.answer = answer
    sender = Sender(sink_of(f"http://127.0.0.1:{server.server_port}/"), lambda _: None)
    put(sender)
    until(lambda: sender.failed == 1)
    put(sender, number=2)
    until(lambda: sender.failed == 2)
    assert len(server.taken) == 2


@pytest.mark.parametrize(("text", "wanted"), [
    ("0", 0.0), (" 30 ", 30.0), ("99999999999999", 600.0), ("-5", None), ("soon", None), ("", None), ("1e3", None), ("٣", None),
    ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0), ("Thu, 01 Jan 1970 00:02:40 GMT", 60.0), ("Thu, 01 Jan 9999 00:00:00 GMT", 600.0),
    ("Thu, 01 Jan 1970 00:02:40 -0000", 60.0), ("Thu, 99 Jan 1970 99:99:99 GMT", None),
])  # fmt: skip
def test_when_to_come_again_is_a_number_or_a_date(text: str, wanted: float | None) -> None:
    assert retry_after_s(text, 784111777.0 if "1994" in text else 100.0) == wanted


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n", b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 3])
def test_an_answer_that_trickles_has_no_more_time(monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    """A byte now and then is no answer: the bound is for all of it."""
    monkeypatch.setattr(webhook, "WHOLE_S", 0.5)
    over = threading.Event()

    def trickle(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(head)
            while not over.wait(0.05):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=trickle, args=(listener,), daemon=True)
        thread.start()
        sink = sink_of(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        began = time.monotonic()
        with pytest.raises(OSError, match="longer than"):
            sink.send(alert())
        assert time.monotonic() - began < 10 * 0.5
        until(lambda: not sink._left.is_alive())  # type: ignore[attr-defined]
        over.set()
        thread.join(PATIENCE_S)


def test_names_that_are_not_found_in_time_hold_nobody_and_are_sought_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "WHOLE_S", 0.2)
    found, asked = threading.Event(), []

    def getaddrinfo(*arguments: object, **_: object) -> None:
        asked.append(arguments)
        found.wait(PATIENCE_S)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    sink = sink_of("https://hooks.example/x")
    for said in ("longer than", "not come to its end"):
        with pytest.raises(OSError, match=said):
            sink.send(alert())
    until(lambda: asked)
    assert len(asked) == 1
    found.set()
    until(lambda: not sink._left.is_alive())  # type: ignore[attr-defined]
    monkeypatch.setattr(webhook, "WHOLE_S", PATIENCE_S)
    with pytest.raises(OSError, match="Temporary failure"):
        sink.send(alert())


def test_a_body_is_not_waited_for() -> None:
    over = threading.Event()

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx")
            over.wait(PATIENCE_S)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        sink_of(f"http://127.0.0.1:{listener.getsockname()[1]}/").send(alert())
        over.set()


def test_a_terminal_that_is_not_there_is_not_tried_again() -> None:
    script = (
        "import os; os.setsid(); from tests.alerts.made import alert; from gputop.alerts.sinks import sink_of, Refused\n"
        "try: sink_of('desktop').send(alert())\nexcept Refused as error: print(error)"
    )
    # A child of a child: who leads a group of processes may begin no session.
    told = subprocess.run(
        ["sh", "-c", f'{sys.executable} -c "$0"; true', script], capture_output=True, text=True,
        timeout=PATIENCE_S, cwd=Path(__file__).parents[2],
        check=True,
    )  # fmt: skip
    assert "no terminal here" in told.stdout


@pytest.mark.usefixtures("quick")
def test_a_command_that_fails_is_run_again(tmp_path: Path) -> None:
    sender = Sender(sink_of(f"exec:sh -c 'echo x >> {tmp_path}/runs; test $(wc -l < {tmp_path}/runs) -ge 3'"), lambda _: None)
    put(sender)
    until(lambda: sender.sent == 1)
    assert (tmp_path / "runs").read_text() == "x\n" * 3


def test_a_command_gets_the_document_and_the_variables(tmp_path: Path) -> None:
    script = tmp_path / "told"
    script.write_text(f'#!/bin/sh\ncat > {tmp_path}/document\nenv > {tmp_path}/variables\necho "$1" > {tmp_path}/argument\n')
    script.chmod(0o755)
    sink_of(f"exec:{script} '$HOME; touch {tmp_path}/shell'").send(alert())
    assert json.loads((tmp_path / "document").read_text()) == to_builtins(alert())
    variables = (tmp_path / "variables").read_text().splitlines()
    wanted = {"GPUTOP_EVENT=begin", "GPUTOP_CAUSE=cpu-contention", "GPUTOP_SEVERITY=medium", "GPUTOP_TRAINER_PID=3821", "GPUTOP_HOST=node7"}
    assert wanted <= set(variables)
    assert (tmp_path / "argument").read_text().startswith("$HOME; touch"), "no shell reads it"
    assert not (tmp_path / "shell").exists()


def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit_s in (0.5, 5.0, 30.0):  # on a busy machine a shell takes a while to start something
        monkeypatch.setattr(command, "LIMIT_S", limit_s)
        with pytest.raises(OSError, match="killed"):
            sink_of(f"exec:sh -c 'sleep 600 & echo $! > {tmp_path}/pid; wait'").send(alert())
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            break
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not Path(f"/proc/{pid}").exists() or ") Z " in Path(f"/proc/{pid}/stat").read_text())


@pytest.mark.parametrize(("text", "told"), [("exec:sh -c 'echo not so >&2; exit 3'", "exit code 3: not so"), ("exec:false", "code 1")])
def test_a_command_that_fails_says_why(text: str, told: str) -> None:
    with pytest.raises(OSError, match=told):
        sink_of(text).send(alert())


def test_a_command_need_not_read_and_may_leave_something_running() -> None:
    began = time.monotonic()
    sink_of("exec:sh -c 'sleep 30 & exit 0'").send(alert())
    assert time.monotonic() - began < 20


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


def test_sinks_of_one_name_are_told_apart_without_a_secret() -> None:
    address = "https://hooks.slack.com/services/T/B/secret"
    names = [one.name for one in sinks_of([f"{address}1", "exec:true 1", f"slack:{address}2", "exec:true 2"])]
    assert names == ["https://hooks.slack.com #1", "exec:true #1", "https://hooks.slack.com #2", "exec:true #2"]


# terminals

SEND = "from tests.alerts.made import alert; from gputop.alerts.sinks import sink_of; import sys\nfor e in sys.argv[2:]: sink_of(sys.argv[1]).send(alert(e))"  # noqa: E501


def shown(sink: str, environ: dict[str, str], *events: str) -> bytes:
    """What a terminal gets while the standard streams go elsewhere."""
    plain = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "PYTHONPATH")} | {"LANG": "C.UTF-8"}
    script = f"exec {sys.executable} -c '{SEND}' {sink} {' '.join(events)} > /dev/null"
    with Raw(["sh", "-c", script], env=plain | environ, cwd=Path(__file__).parents[2]) as terminal:
        assert terminal.exit_code() == 0, terminal.got
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
            subprocess.run([*tmux, "kill-server"], env=environ, check=False, timeout=PATIENCE_S)
