"""What agents write: lines of JSON-RPC on standard input, and arguments of tools, over sound recordings and over hostile ones."""

from __future__ import annotations

import json
import os
import random
import struct
import unicodedata
from pathlib import Path
from typing import Any, cast
from unittest import mock

import anyio
import msgspec
from mcp.server.stdio import stdio_server

from gputop.agents import tools
from gputop.agents.answer import MOST_BYTES
from gputop.agents.places import Places
from gputop.agents.server import Desk, make
from gputop.agents.stdio import Lines, Output
from gputop.system import crash
from tests.fuzzing.kind import ODD_TEXTS, Kind, changed_json, changed_within, in_pieces
from tests.recording import fuzz

WINDOWS = ("", "all", "60s", "5m", "0..1", "..", "10%..50%", "50%..", "..1", "1e9s", "999999999h", "14:03..14:05", "-1..2", "x", "٣s")
TOOLS = tuple(name for name in tools.TOOLS if name != "query")  # that one starts a process: few of these
_SOUND: dict[str, tuple[Any, ...]] = {
    "window": WINDOWS, "before_window": WINDOWS, "after_window": WINDOWS, "max_bytes": (1000, 1001, 3000, 8000, 20_000),
    "limit": (1, 2, 8, 30), "cursor": (0, 1, 5, 99, 100_000), "pids": ([], [1000], [1000, -1, 1 << 40], list(range(64))),
    "min_severity": ("info", "high"), "id": (0, 1, 2), "points": (1, 7, 120),
    "fields": (["gpu.util_pct"], ["no such"], ["gpu.util_pct", "gpu.power_w", "host.load1"], [""], ["\0"]),
}  # fmt: skip
_ODD = ("hosts", "host:x", "a\0b", "/dev/zero", "\ud800", [], None, 0.5, list(range(65)), [1 << 80], "../../etc/passwd")
_INTS = (0, 1, 2, 8, 32, 500, 1000, 8000, 20_000, 20_001, -1, 1 << 31, 1 << 63, 1 << 80)
_SQL = ("SELECT * FROM proc", ".tables", ".schema gpu", ".schema", "SELECT 1;;", "SELECT \0", "SELECT '" + "x" * 900, "PRAGMA x", ".x", " ")


def _asked(rng: random.Random, name: str) -> dict[str, Any]:
    """Arguments as somebody may write them."""
    fields = tools.question_of(tools.tool(name)).__struct_fields__
    asked = {field: rng.choice(_SOUND.get(field, ("",))) for field in rng.sample(fields, rng.choice((0, 0, 1, 2)))}
    if rng.random() < 0.35:
        asked[rng.choice(fields)] = rng.choice((*_ODD, *ODD_TEXTS, *_INTS))
    if name == "query":
        asked.setdefault("sql", rng.choice(_SQL))
    if name == "compare":
        asked = {"before_window": "..50%", "after_window": "50%..", **asked}
    if name == "incidents" and rng.random() < 0.3:
        asked["id"] = 1
    return cast(dict[str, Any], changed_within(rng, asked, (1,))) if asked and rng.random() < 0.1 else asked


# tools

_LENGTH = struct.Struct("<I")


def calls(rng: random.Random) -> bytes:
    """A tool with its arguments, and the recording that it is asked about."""
    name = "query" if rng.random() < 0.004 else rng.choice(TOOLS)
    data = rng.choice(fuzz.seeds()) if rng.random() < 0.4 else fuzz.made_from(rng.randrange(1 << 40))[0]
    said = json.dumps([name, _asked(rng, name)]).encode()
    return _LENGTH.pack(len(said)) + said + data


def calls_drive(path: str) -> None:
    """The answer is bounded, and what comes from elsewhere is marked and harmless."""
    data = Path(path).read_bytes()
    (size,) = _LENGTH.unpack_from(data)
    name, asked = json.loads(data[_LENGTH.size : _LENGTH.size + size])
    file = f"{path}.asked.gputop"
    Path(file).write_bytes(data[_LENGTH.size + size :])
    places = Places([file], anywhere=False)
    try:
        found = tools.call(places, name, asked)
        text = msgspec.json.encode(found)
        most = asked.get("max_bytes", MOST_BYTES)
        assert len(text) <= max(1000, most), (len(text), most)
        _check_marked(found, "")
        if (step := found["next"]) is not None:
            assert [step["tool"], step["arguments"]] != [name, asked], "it goes on with the same question"
    finally:
        fuzz.remove(file)
        places.close()


def _check_marked(value: Any, key: str) -> None:
    if isinstance(value, str):
        if key.endswith("_untrusted"):
            assert not any(unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp") for one in value), (key, value)
    elif isinstance(value, dict):
        for name, one in value.items():
            _check_marked(one, key if key.endswith("_untrusted") else name)
    elif isinstance(value, list):
        for one in value:
            _check_marked(one, key)


# lines

_HELLO = (
    {"jsonrpc": "2.0", "id": 0, "method": "initialize",
     "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
)  # fmt: skip


def _messages(rng: random.Random) -> list[Any]:
    name = rng.choice((*TOOLS, "no such", "__init__", ""))
    asked = _asked(rng, name) if name in TOOLS else {}
    return [
        {"method": "tools/list", "params": {}}, {"method": "tools/call", "params": {"name": name, "arguments": asked}},
        {"method": "tools/call", "params": {"name": name, "arguments": asked, "_meta": {"progressToken": rng.choice((1, "x", None))}}},
        {"method": "prompts/get", "params": {"name": "why_slow", "arguments": {}}}, {"method": "ping"}, {"method": "resources/list"},
        {"method": "notifications/cancelled", "params": {"requestId": rng.choice((1, 2, "x"))}}, {"result": {}}, {"error": {"code": 1}},
        {"method": "logging/setLevel", "params": {"level": "debug"}}, {"method": "completion/complete", "params": {}},
    ]  # fmt: skip


_NO_MESSAGES = (b"[]", b"\xff", b"", b"[" * 50_000, b"x" * (5 << 20), b'{"id":' + b"9" * 5000)


def lines(rng: random.Random) -> bytes:
    """A client's lines."""
    found = [json.dumps(one).encode() for one in _HELLO[: rng.choice((2, 2, 2, 2, 1, 0))]]
    for number in range(rng.choice((1, 3, 8))):
        one = {"jsonrpc": "2.0", "id": number + 1, **rng.choice(_messages(rng))}
        if "result" not in one and one.get("method", "").startswith("notifications"):
            one.pop("id")
        found.append(changed_json(rng, one) if rng.random() < 0.6 else json.dumps(one).encode())
    if rng.random() < 0.1:
        found.insert(rng.randrange(len(found) + 1), rng.choice(_NO_MESSAGES))
    data = rng.choice((b"\n", b"\n", b"\n", b"\r\n")).join(found) + b"\n" * rng.randrange(2)
    return fuzz.changed_bytes(rng, data) if rng.random() < 0.15 else data


def lines_drive(path: str) -> None:
    """Each answer is a line of JSON, no error is a bug of ours, and the end of the input is the end."""
    data, bugs = Path(path).read_bytes(), list[BaseException]()
    file = f"{path}.asked.gputop"
    Path(file).write_bytes(fuzz.seeds()[1])
    places = Places([file], anywhere=False)
    desk = Desk(places)
    out = os.memfd_create("out")

    async def serve() -> None:
        reads, writes = os.pipe()
        server = make(desk, TOOLS)

        async def write() -> None:
            for piece in in_pieces(random.Random(len(data)), data):
                rest = piece
                while rest:
                    await anyio.wait_writable(writes)
                    rest = rest[os.write(writes, rest[:4096]) :]
            os.close(writes)

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write)
                async with stdio_server(cast(Any, Lines(reads, lambda: desk.is_busy)), cast(Any, Output(out))) as (takes, gives):
                    await server.run(takes, gives, server.create_initialization_options())
        finally:
            os.close(reads)

    def log(error: BaseException) -> str:
        bugs.append(error)
        return "a bug"

    with mock.patch.object(crash, "log", log):
        try:
            anyio.run(serve)
            if bugs:
                raise bugs[0]
            for line in os.pread(out, 64 << 20, 0).splitlines():
                answer = json.loads(line)
                assert answer["jsonrpc"] == "2.0"
                assert len(line) < 100_000 or "tools" in answer.get("result", {}), len(line)
        finally:
            os.close(out)
            places.close()
            fuzz.remove(file)


KINDS = (Kind("mcp-calls", calls, calls_drive, 10), Kind("mcp-lines", lines, lines_drive, 8))
