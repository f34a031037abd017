"""Traces of torch.profiler that stand beside a recording in an export, plain and packed, whole and broken."""

from __future__ import annotations

import gzip
import json
import os
import random
from functools import cache
from pathlib import Path
from typing import Any

from gputop import cli
from tests.fuzzing.kind import Kind, changed_text, changed_within
from tests.recording import fuzz, made

BASE_NS = made.HEADER.unix_ns + 300 * made.MS  # within the recording, which begins 200 ms after its header


def _events(count: int) -> list[dict[str, Any]]:
    slices = [
        {"ph": "X", "cat": "cpu_op", "name": f"aten::mm {i}", "pid": 3000, "tid": 3000 + i % 3, "ts": 1000.5 * i, "dur": 900.25,
         "args": {"External id": i, "Input Dims": [[8, 128], [128, 64]], "Fwd thread id": 0}} for i in range(count)
    ]  # fmt: skip
    named = {"ph": "M", "name": "process_name", "pid": 3000, "args": {"name": "python"}}
    flow = {"ph": "s", "id": 7, "pid": "0", "tid": "stream 7", "ts": "1200.5", "cat": "ac2g", "name": "ac2g"}
    return [named, flow, *slices, {"ph": "i", "s": "t", "name": "Iteration", "pid": 3000, "tid": 1, "ts": 5.0}]


@cache
def seeds() -> list[str]:
    """Texts of traces."""
    whole = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "H100"}], "traceEvents": _events(60), "traceName": "a.json"}
    clocked = [{**one, "ts": BASE_NS / 1000 + i} if "ts" in one else one for i, one in enumerate(_events(20))]
    return [
        json.dumps({**whole, "baseTimeNanoseconds": BASE_NS}), json.dumps({"baseTimeNanoseconds": BASE_NS, **whole}, indent=2),
        json.dumps(clocked), json.dumps({"traceEvents": clocked}).replace('"dur": 900.25', '"dur": inf', 3), json.dumps(_events(0)),
    ]  # fmt: skip


_PLACES = ("inf", "-nan", "NaN", "1e400", "-1e308", "nan(0x8)", "Infinity", "99999999999999999999999999", '"12"', "null", "{}", "[]")
_PUT = ('"', "{", "}", "[", "]", ",", ":", "\\", '{"ph": "X"', '"traceEvents": [', '], "a": [', "{" * 2000, "[" * 100_000, '{"a":' * 2000)


def make(rng: random.Random) -> bytes:
    """A trace."""
    text, kind = rng.choice(seeds()), rng.randrange(6)
    if kind == 0:
        value = changed_within(rng, json.loads(text) if "inf" not in text else [])
        data = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    elif kind == 1:
        for _ in range(rng.choice((1, 3, 20))):
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice((*_PLACES, *_PUT)) + text[at + rng.choice((0, 1, 7)) :]
        data = text.encode()
    elif kind == 2:
        numbers = text.replace("900.25", rng.choice(_PLACES), rng.choice((1, 5, 100)))
        data = numbers[: rng.randrange(1, len(numbers) + 1) if rng.random() < 0.5 else None].encode()
    elif kind == 3:
        data = changed_text(rng, text)
    elif kind == 4:
        data = fuzz.changed_bytes(rng, text.encode())
    else:
        data = _many(rng, text)
    if rng.random() < 0.1:
        data = data.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig")))
    if rng.random() < 0.35:
        data = gzip.compress(data, 1)
        if rng.random() < 0.7:
            data = rng.choice((fuzz.changed_bytes(rng, data), data[: rng.randrange(len(data))], data * 2, data + b"\0" * 9, data + b"x"))
    return data


_LONG = ',{"ph":"X","ts":"' + "9" * 400 + '"}'


def _many(rng: random.Random, text: str) -> bytes:
    """Many small things, each of which costs something."""
    piece = rng.choice(('{"ph": "X", "ts": 1', '{"', "[{", '"', "\\", ", {", '{"ph": "M"},', _LONG, "-inf,", "]"))
    at = rng.randrange(len(text))
    return (text[:at] + piece * rng.choice((1000, 20_000)) + rng.choice(("", text[at:]))).encode()


@cache
def _recording(folder: str) -> str:
    path = Path(folder, "beside.gputop")
    made.record(path, fuzz.frames_of_a_session())
    return str(path)


def drive(path: str) -> None:
    """It is exported, or refused."""
    export(path)


def export(path: str) -> int:
    """The exit code of `gputop export --beside`, which writes JSON or nothing."""
    out = f"{path}.json"
    code = cli.main(["export", _recording(str(Path(path).parent)), "--to", "perfetto", "--beside", path, "-o", out])
    try:
        assert code in (0, 1), code
        assert os.path.exists(out) is (code == 0)
        if code == 0:
            json.loads(Path(out).read_text(), parse_constant=_refuse)
        return code
    finally:
        fuzz.remove(out)


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


KINDS = (Kind("traces", make, drive, 16),)
