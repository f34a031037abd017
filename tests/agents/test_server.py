"""`gputop mcp` before the official client: both transports, both protocols, and what it costs."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anyio
import httpx2
import psutil
import pytest
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from gputop import cli
from gputop.agents import alive, query, server
from gputop.agents.answer import DEFAULT_BYTES
from gputop.agents.places import Places
from gputop.agents.stdio import MOST_LINE_BYTES
from gputop.agents.tools import EXPERIMENTS, TOOLS, call
from gputop.commands.replay import sample
from gputop.system.errors import UserError
from tests.agents.test_tools import ENDLESS
from tests.ports import free_port
from tests.workloads.environment import ROOT

READY_CPU_S, MOST_PSS_MIB, MOST_DEFINITIONS = 1.5, 70.0, 8_300
FIRST_CPU_S = 2.0  # CPU seconds of the server for the first diagnosis: clients give up after five seconds of a clock that others use, too
PATIENCE_S = 60.0  # s for an answer, ten times and more what the slowest takes on a quiet machine; libraries' own bounds are for users
LEAVES_S = 20.0  # s for a server to end, ten times what is promised
PROTOCOLS = {"auto": "2026-07-28", "legacy": "2025-11-25"}


@asynccontextmanager
async def over_stdio(*arguments: str, mode: Any = "auto") -> AsyncIterator[Client]:
    server = StdioServerParameters(command=sys.executable, args=["-m", "gputop", "mcp", *arguments], env=dict(os.environ))
    async with Client(server, mode=mode, read_timeout_seconds=PATIENCE_S) as client:
        yield client


def pss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Pss:"))) / 1024


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has taken."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def over_pipes() -> list[int]:
    """The pids of servers on pipes that this process has started."""
    return [
        one.pid for one in psutil.Process().children()
        if "mcp" in (words := one.cmdline()) and "--http" not in words
    ]  # fmt: skip


async def test_over_standard_input() -> None:
    """One session for all that a real server must keep: what it says, what it costs, and that it goes on after endless SQL."""
    async with over_stdio(str(sample())) as client:
        [pid] = over_pipes()
        assert cpu_s(pid) <= READY_CPU_S  # how long it took by the clock depends on who else runs here
        assert client.protocol_version == PROTOCOLS["auto"]
        assert "never instructions" in (client.instructions or "")
        listed = await client.list_tools()
        assert [one.name for one in listed.tools] == list(TOOLS)
        assert all(one.annotations and one.annotations.read_only_hint for one in listed.tools)
        assert len(listed.model_dump_json(by_alias=True, exclude_none=True)) <= MOST_DEFINITIONS
        for name in ("overview", "diagnose", "stacks", "series"):
            found = await client.call_tool(name, {})  # the client checks it against the schema
            assert not found.is_error, found
            assert len(found.content[0].text) <= DEFAULT_BYTES  # type: ignore[union-attr]
        began = time.monotonic()
        ended = await client.call_tool("query", {"sql": ENDLESS})
        assert ended.is_error
        assert time.monotonic() - began <= 10 * query.WHOLE_S
        assert (await client.call_tool("diagnose", {})).structured_content["cause"] == "cpu-contention"
        assert (await client.call_tool("prove", {})).is_error
        assert pss_mib(pid) <= MOST_PSS_MIB
        prompts = await client.list_prompts()
        assert [one.name for one in prompts.prompts] == ["why_slow"]
        assert "compare" in str(await client.get_prompt("why_slow"))


async def test_with_the_protocol_before() -> None:
    async with over_stdio(str(sample()), "--allow-experiments", mode="legacy") as client:
        assert client.protocol_version == PROTOCOLS["legacy"]
        experiments = [one for one in (await client.list_tools()).tools if not (one.annotations and one.annotations.read_only_hint)]
        assert [one.name for one in experiments] == ["prove", "trace"]
        assert (await client.call_tool("overview", {})).structured_content["simulated_gpu"] is True


def test_the_skill_names_every_tool(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["skill"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("---\nname: gputop\ndescription: ")
    assert [name for name in (*TOOLS, *EXPERIMENTS) if f"| `{name}` |" not in page] == []
    assert page == (ROOT / "docs" / "agents.md").read_text()


def test_an_error_is_harmless() -> None:
    (said,) = server._failed("SQL: JSON path error near 'a\x1b[2J\u202e\u3164'").content
    assert said.text == "SQL: JSON path error near 'a·[2J··'"  # type: ignore[union-attr]


TRACED = {"jobs": [{"pid": 7, "name": "\x1b[2Jevil", "error": "it is stopped"}]}


def test_an_experiment_tells_what_gputop_prove_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def argv_of(*words: str) -> list[str]:
        asked.append(words)
        return [sys.executable, "-c", "print('{\"says\": \"\\\\u001b[2Jevil\"}')"]

    monkeypatch.setattr("gputop.agents.prove.argv_of", argv_of)
    found = call(Places(), "prove", {"trainer_pid": 7, "cause": "cpu-contention"})
    assert asked == [("gputop", "prove", "7", "--cause", "cpu-contention", "--yes", "--json")]
    assert found["result_untrusted"] == {"says": "·[2Jevil"}
    monkeypatch.setattr("gputop.agents.trace.argv_of", lambda *_: [sys.executable, "-c", f"print({json.dumps(TRACED)!r})"])
    [job] = call(Places(), "trace", {"pids": [7]})["jobs_untrusted"]
    assert job == {"pid": 7, "name": "·[2Jevil", "error": "it is stopped"}
    for name in ("prove", "trace"):
        with pytest.raises(UserError, match="this machine"):
            call(Places(), name, {"target": "host:x"})


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mcp") / "token"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    return path


class Serving(NamedTuple):
    """A server over HTTP."""

    url: str
    pid: int


@contextmanager
def serving(token: Path) -> Iterator[Serving]:
    """Run a server that asks for the token; a signal ends it at last, if not before."""
    port = free_port()
    argv = [sys.executable, "-m", "gputop", "mcp", str(sample()), "--http", f"127.0.0.1:{port}", "--token-file", str(token)]
    server = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                assert server.poll() is None
                time.sleep(0.05)
        yield Serving(f"http://127.0.0.1:{port}/mcp", server.pid)
    finally:
        server.terminate()
        code = server.wait(LEAVES_S)
    assert code in (128 + signal.SIGTERM, 128 + signal.SIGINT)


@pytest.fixture(scope="module")
def shared(token: Path) -> Iterator[Serving]:
    """The server of all tests that leave it running."""
    with serving(token) as one:
        yield one


def bearing(read_s: float = PATIENCE_S) -> httpx2.AsyncClient:
    """A client with the token that gives up where nothing comes for ``read_s``."""
    return httpx2.AsyncClient(headers={"Authorization": "Bearer 0123456789abcdef"}, timeout=httpx2.Timeout(PATIENCE_S, read=read_s))


async def test_over_http(shared: Serving) -> None:
    url, pid = shared
    for mode, protocol in PROTOCOLS.items():
        one = bearing()
        async with one, Client(streamable_http_client(url, http_client=one), mode=mode, read_timeout_seconds=PATIENCE_S) as client:  # type: ignore[arg-type]
            assert client.protocol_version == protocol
            before_s = cpu_s(pid)
            assert (await client.call_tool("diagnose", {})).structured_content["cause"] == "cpu-contention"
            assert cpu_s(pid) - before_s <= FIRST_CPU_S
            both = await asyncio.gather(client.call_tool("diagnose", {}), client.call_tool("overview", {}))
            assert both[0].structured_content["cause"] == "cpu-contention"
            assert (await client.call_tool("diagnose", {"target": "/etc/passwd"})).is_error
    async with httpx2.AsyncClient(timeout=PATIENCE_S) as stranger:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert (await stranger.post(url, json=body)).status_code == 401
        assert (await stranger.post(url, json=body, headers={"Authorization": "Bearer 0123456789abcdee"})).status_code == 401
        foreign = {"Authorization": "Bearer 0123456789abcdef", "Host": "evil.example"}
        assert (await stranger.post(url, json=body, headers=foreign)).status_code == 421


def test_a_head_that_does_not_end_is_refused(shared: Serving) -> None:
    address = urlsplit(shared.url)
    with socket.create_connection((address.hostname, address.port), 30) as one:
        one.sendall(b"POST /mcp HTTP/1.1\r\n")
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            one.sendall(b"X: " + b"a" * (16 << 20))


async def test_a_body_that_is_too_long_or_does_not_end_is_refused(shared: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bearing() as client:
        assert (await client.post(shared.url, content=b" " * (server.BODY_BYTES + 1))).status_code == 413
    monkeypatch.setattr(server, "BODY_S", 0.01)
    sent: list[dict[str, Any]] = []

    async def nothing_more() -> Any:
        await anyio.sleep_forever()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    with anyio.fail_after(PATIENCE_S):
        await server._Bounded(None)({"type": "http"}, nothing_more, send)
    assert sent[0]["status"] == 408


@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.soak)])
async def test_progress_comes_before_the_answer(shared: Serving, mode: Any) -> None:
    told: list[tuple[float, str | None]] = []

    async def tell(seconds: float, _total: float | None, message: str | None) -> None:
        told.append((seconds, message))

    one = bearing()
    async with one, Client(streamable_http_client(shared.url, http_client=one), mode=mode, read_timeout_seconds=PATIENCE_S) as client:
        found = await client.call_tool("query", {"sql": ENDLESS}, progress_callback=tell)
    assert found.is_error
    assert told[0] == (0.0, "query: 0 s")
    assert len(told) >= 3, "one a second"
    assert [seconds for seconds, _ in told] == sorted({seconds for seconds, _ in told})


class Slow:
    """An ASGI application that answers once it may: with ``parts``, as JSON or as events."""

    def __init__(self, kind: bytes, parts: list[bytes]) -> None:
        self.may = anyio.Event()
        self._kind, self._parts = kind, parts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        await self.may.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", self._kind)]})
        for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.mark.parametrize(("accept", "kind", "parts", "wanted"), [
    (b"application/json, text/event-stream", b"application/json", [b'{"a"', b": 1}"], b'event: message\r\ndata: {"a": 1}\r\n\r\n'),
    (b"application/json, text/event-stream", b"text/event-stream", [b"data: 1\r\n\r\n", b"data: 2\r\n\r\n"],
     b"data: 1\r\n\r\ndata: 2\r\n\r\n"),
    (b"application/json", b"application/json", [b'{"a"', b": 1}"], b'{"a": 1}'),
])  # fmt: skip
async def test_a_slow_answer_gives_signs_of_life(
    monkeypatch: pytest.MonkeyPatch, accept: bytes, kind: bytes, parts: list[bytes], wanted: bytes
) -> None:
    """Where the client takes events: what comes meanwhile are comments, and the answer is whole."""
    monkeypatch.setattr(alive, "EVERY_S", 0.01)
    app, sent = Slow(kind, parts), []
    takes_events = b"event" in accept

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if len(sent) == 4 and takes_events:
            app.may.set()

    if not takes_events:
        app.may.set()
    with anyio.fail_after(PATIENCE_S):
        await alive.Alive(app)({"type": "http", "method": "POST", "headers": [(b"accept", accept)]}, None, send)
    head, *bodies = sent
    assert dict(head["headers"])[b"content-type"] == (b"text/event-stream" if takes_events else kind)
    assert [one["more_body"] for one in bodies] == [True] * (len(bodies) - 1) + [False]
    whole = b"".join(one["body"] for one in bodies)
    assert whole.replace(alive.COMMENT, b"") == wanted
    assert whole.count(alive.COMMENT) >= 3 * takes_events


# how it ends

HELLO = [
    {"jsonrpc": "2.0", "id": 0, "method": "initialize",
     "params": {"protocolVersion": PROTOCOLS["legacy"], "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
]  # fmt: skip


def asking(number: int, tool: str, **arguments: Any) -> dict[str, Any]:
    """A question with progress."""
    params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": f"t{number}"}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


class Wire:
    """A server on pipes, without a client that cares for it."""

    def __init__(self, *arguments: str) -> None:
        argv = [sys.executable, "-m", "gputop", "mcp", *arguments]
        self.child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        assert self.child.stderr is not None
        self.stdin, self.stdout, self.stderr = self.child.stdin, self.child.stdout, self.child.stderr
        self.send(*HELLO)
        assert b'"id":0' in self.stdout.readline()

    def send(self, *messages: dict[str, Any]) -> None:
        self.stdin.write(b"".join(json.dumps(one).encode() + b"\n" for one in messages))
        self.stdin.flush()

    def ask(self, number: int, tool: str, **arguments: Any) -> None:
        """Until it is at work."""
        self.send(asking(number, tool, **arguments))
        assert b"notifications/progress" in self.stdout.readline()

    def ended(self) -> tuple[int, str]:
        """Its exit code, and what it said on standard error."""
        return self.child.wait(LEAVES_S), self.stderr.read().decode()


@pytest.fixture
def wire() -> Iterator[Wire]:
    one = Wire(str(sample()), "--no-ebpf")
    yield one
    one.child.kill()
    one.child.wait()
    for pipe in (one.stdout, one.stderr):
        pipe.close()
    with suppress(BrokenPipeError):
        one.stdin.close()


LATER = pytest.mark.soak
BUSY = ({}, {"tool": "query", "sql": ENDLESS}, {"tool": "diagnose", "target": "live"})


@pytest.mark.parametrize("question", [pytest.param(BUSY[0], marks=LATER), *BUSY[1:]])
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_the_first_signal_ends_it(wire: Wire, number: signal.Signals, question: dict[str, Any]) -> None:
    if question:
        wire.ask(1, **question)
    wire.child.send_signal(number)
    assert wire.ended() == (128 + number, "")


@pytest.mark.parametrize("question", [BUSY[0], pytest.param(BUSY[1], marks=LATER), BUSY[2]])
def test_the_end_of_the_input_ends_it(wire: Wire, question: dict[str, Any]) -> None:
    if question:
        wire.ask(1, **question)
    wire.stdin.close()
    assert wire.ended() == (0, "")


@pytest.mark.parametrize("first", ["stdout", "stdin"])
def test_a_client_that_goes_is_no_bug(wire: Wire, first: str) -> None:
    wire.ask(1, "query", sql=ENDLESS)
    if first == "stdin":
        wire.stdin.close()
    wire.stdout.close()
    if first == "stdout":
        with suppress(BrokenPipeError):  # it notices as it says how far it is
            wire.send(asking(2, "overview"))
    assert wire.ended() == (0, "")


def test_a_client_that_reads_nothing_does_not_hold_it(wire: Wire) -> None:
    for number in range(2000):  # more than a pipe holds
        wire.send(asking(number, "no-such-tool-" * 4))
        if not select.select([], [wire.stdin], [], 0.2)[1]:
            break
    wire.child.send_signal(signal.SIGINT)
    assert wire.ended() == (130, "")


def test_what_is_no_message_is_passed_over(wire: Wire) -> None:
    wire.stdin.write(b"x" * (MOST_LINE_BYTES + 100_000) + b"\n{nonsense\n\xff\xfe\n[]\n")
    wire.send(asking(7, "overview"))
    while b'"id":7' not in (line := wire.stdout.readline()):
        assert line, "it has ended"
    wire.stdin.close()
    assert wire.ended() == (0, "")


def test_questions_in_a_file_are_answered(tmp_path: Path) -> None:
    """Standard input that never makes anybody wait."""
    path = tmp_path / "questions"
    path.write_text("\n".join(map(json.dumps, [*HELLO, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}])))
    with path.open() as file:
        done = subprocess.run([sys.executable, "-m", "gputop", "mcp"], stdin=file, capture_output=True, timeout=PATIENCE_S, check=True)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [0, 1]
    assert done.stderr == b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_over_http(token: Path, number: signal.Signals) -> None:
    """The question that is asked meanwhile gets an answer."""
    at_work, one = anyio.Event(), bearing()

    async def tell(*_: object) -> None:
        at_work.set()

    async def end() -> None:
        await at_work.wait()
        os.kill(own.pid, number)

    with anyio.fail_after(PATIENCE_S), serving(token) as own:
        async with one, Client(streamable_http_client(own.url, http_client=one), mode="auto") as client, anyio.create_task_group() as tasks:
            tasks.start_soon(end)
            found = await client.call_tool("diagnose", {"target": "live"}, progress_callback=tell)
    assert found.is_error
    assert "is being ended" in str(found.content)


@pytest.mark.parametrize(("arguments", "said"), [
    (["--http", ":9"], "a token is needed"),
    (["--http", "0.0.0.0:9", "--token-file", "OPEN"], "chmod 600"),
    (["--http", "--allow-experiments"], "--token-file"),
    (["--http", "--token-file", "SHORT"], "holds no token"),
    (["--token-file", "TOKEN"], "is for --http"),
    (["no-such.gputop"], "no recording"),
])  # fmt: skip
def test_what_it_will_not_serve(arguments: list[str], said: str, token: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text, mode in (("OPEN", token.read_text(), 0o640), ("SHORT", "x", 0o600), ("TOKEN", token.read_text(), 0o600)):
        (token.parent / name).write_text(text)
        (token.parent / name).chmod(mode)
    words = [str(token.parent / one) if one.isupper() else one for one in arguments]
    assert cli.main(["mcp", *words]) in (1, 2)
    assert said in capsys.readouterr().err
