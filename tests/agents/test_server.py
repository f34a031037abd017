"""`gputop mcp` before the official client: both transports, both protocols, and what it costs."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from gputop import cli
from gputop.agents import server
from gputop.agents.answer import DEFAULT_BYTES
from gputop.agents.places import Places
from gputop.agents.tools import EXPERIMENTS, TOOLS, call
from gputop.commands.replay import sample
from gputop.system.errors import UserError
from tests.agents.test_tools import ENDLESS
from tests.workloads.environment import ROOT

READY_CPU_S, MOST_PSS_MIB, MOST_DEFINITIONS, ENDED_S = 1.5, 70.0, 8_000, 5.0
PROTOCOLS = {"auto": "2026-07-28", "legacy": "2025-11-25"}


@asynccontextmanager
async def over_stdio(*arguments: str, mode: Any = "auto") -> AsyncIterator[Client]:
    server = StdioServerParameters(command=sys.executable, args=["-m", "gputop", "mcp", *arguments], env=dict(os.environ))
    async with Client(server, mode=mode) as client:
        yield client


def pss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Pss:"))) / 1024


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has taken."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def servers() -> list[int]:
    """The pids of servers that this process has started."""
    return [
        int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat")
        if path.read_text().rpartition(")")[2].split()[1] == str(os.getpid())
        and b"\0mcp\0" in (path.parent / "cmdline").read_bytes()
    ]  # fmt: skip


async def test_over_standard_input() -> None:
    """One session for all that a real server must keep: what it says, what it costs, and that it goes on after endless SQL."""
    async with over_stdio(str(sample())) as client:
        [pid] = servers()
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
        assert time.monotonic() - began <= ENDED_S
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
        assert [one.name for one in experiments] == ["prove"]
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


def test_an_experiment_tells_what_gputop_prove_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def argv_of(*words: str) -> list[str]:
        asked.append(words)
        return [sys.executable, "-c", "print('{\"says\": \"\\\\u001b[2Jevil\"}')"]

    monkeypatch.setattr("gputop.agents.prove.argv_of", argv_of)
    found = call(Places(), "prove", {"trainer_pid": 7, "cause": "cpu-contention"})
    assert asked == [("gputop", "prove", "7", "--cause", "cpu-contention", "--yes", "--json")]
    assert found["result_untrusted"] == {"says": "·[2Jevil"}
    with pytest.raises(UserError, match="this machine"):
        call(Places(), "prove", {"target": "host:x"})


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def url(token: Path) -> Iterator[str]:
    """Of a server that asks for the token."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "gputop", "mcp", str(sample()), "--http", f"127.0.0.1:{port}", "--token-file", str(token)]
    server = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                assert server.poll() is None
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.terminate()
        server.wait(10)


async def test_over_http(url: str) -> None:
    for mode, protocol in PROTOCOLS.items():
        bearing = httpx2.AsyncClient(headers={"Authorization": "Bearer 0123456789abcdef"})
        async with bearing, Client(streamable_http_client(url, http_client=bearing), mode=mode) as client:  # type: ignore[arg-type]
            assert client.protocol_version == protocol
            both = await asyncio.gather(client.call_tool("diagnose", {}), client.call_tool("overview", {}))
            assert both[0].structured_content["cause"] == "cpu-contention"
            assert (await client.call_tool("diagnose", {"target": "/etc/passwd"})).is_error
    async with httpx2.AsyncClient() as stranger:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert (await stranger.post(url, json=body)).status_code == 401
        assert (await stranger.post(url, json=body, headers={"Authorization": "Bearer 0123456789abcdee"})).status_code == 401
        foreign = {"Authorization": "Bearer 0123456789abcdef", "Host": "evil.example"}
        assert (await stranger.post(url, json=body, headers=foreign)).status_code == 421


def test_a_head_that_does_not_end_is_refused(url: str) -> None:
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), 30) as one:
        one.sendall(b"POST /mcp HTTP/1.1\r\n")
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            one.sendall(b"X: " + b"a" * (16 << 20))


@pytest.mark.parametrize(("arguments", "said"), [
    (["--http", ":9"], "a token is needed"),
    (["--http", "0.0.0.0:9", "--token-file", "OPEN"], "chmod 600"),
    (["--http", "--allow-experiments"], "a token is needed"),
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
