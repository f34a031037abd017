"""The shapes of gputop's JSON: kept as they were promised, and true of what is printed.

After an addition: ``python -m tests.api.test_schemas > tests/api/schemas.txt``. What is taken away or changed needs a new major version.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputop.alerts.alert import BEGIN, END
from gputop.cli import main
from gputop.commands.replay import sample
from gputop.commands.schema import SCHEMAS, schema, shape
from gputop.doctor.checks import Bundle, Doctor, DoctorCheck, Part
from gputop.findings.traces import Traces
from gputop.findings.traces import checks as checks_of
from gputop.fleet import document
from gputop.fleet.overview import Overview
from gputop.fleet.summary import summarize
from gputop.loader.sweep import Point, Sweep
from gputop.model.flight import FlightRank, Flights
from gputop.model.ranges import MOST_S
from gputop.model.trace import TracedJob
from gputop.prove.running import untried
from gputop.recording.reader import Recording
from gputop.stacks.document import OffCpuWaits
from gputop.stacks.on_demand import OffCpu, OffCpuStack
from gputop.stream.snapshot import Snapshots
from gputop.traces.flight import Dump, judged
from gputop.traces.reading import read_file
from tests.alerts.made import alert
from tests.fleet.nodes import fleet
from tests.traces.flights import CREATED_NS, call, done, dump
from tests.traces.made import kineto, training

KEPT = Path(__file__).with_name("schemas.txt")
ROOT = Path(__file__).parents[2]
STABILITY = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")


def listed() -> list[str]:
    """``Episode.cause: string`` for each field of each object, a ``?`` behind those that need not occur."""
    nodes = [(title, node) for name in SCHEMAS for title, node in schema(name)["$defs"].items()]
    return sorted({
        f"{title}.{field}{'' if field in node.get('required', ()) else '?'}: {_kind(kind)}"
        for title, node in nodes for field, kind in node.get("properties", {}).items()
    } | {f"{title}: {[_kind(one) for one in node['prefixItems']]}" for title, node in nodes if "prefixItems" in node})  # fmt: skip


def _kind(node: dict[str, Any]) -> str:
    if "$ref" in node:
        return str(node["$ref"]).rpartition("/")[2]
    if "anyOf" in node:
        return " | ".join(sorted(_kind(one) for one in node["anyOf"]))
    if node.get("type") == "array" and isinstance(node.get("items"), dict):
        return f"[{_kind(node['items'])}]"
    if isinstance(inner := node.get("additionalProperties"), dict):
        return f"{{{_kind(inner)}}}"
    return str(node.get("type", "any"))


def test_what_was_promised_is_kept() -> None:
    kept, now = KEPT.read_text(encoding="utf-8").splitlines(), listed()
    assert [line for line in kept if line not in now] == [], "a field is gone, or has become another: that needs a new major version"
    assert now == kept, f"a field is new: {__doc__}"


def real() -> Iterator[tuple[str, bytes]]:
    """(name, JSON as it is printed) of each shape but those of commands, which other tests have."""
    snapshots = Snapshots()
    with Recording(sample()) as recording:
        for item in (recording.header, *recording.frames(end_ns=recording.start_ns + 8 * 10**9)):
            snapshots.take(item)
    yield "snapshot", msgspec.json.encode(snapshots.now(), enc_hook=str)
    summary = summarize(snapshots.following.board, snapshots.following.engine)
    yield "summary", msgspec.json.encode(summary, enc_hook=str)
    overview = Overview()
    overview.take(fleet(late=3))
    yield "fleet", msgspec.json.encode(document.fleet(overview), enc_hook=str)
    for event in (BEGIN, END):
        yield "alert", msgspec.json.encode(alert(event))
    checks = [
        DoctorCheck("nvml", "NVML", "ok", "580.95"),
        DoctorCheck("ebpf", "eBPF", "missing", "no bcc", "apt install python3-bpfcc", True),
    ]
    yield "doctor", Doctor(1, False, checks).json().encode()
    yield "doctor", Doctor(1, True, checks, Bundle("b.zip", [Part("doctor.txt", 7, "this")])).json().encode()
    waits = OffCpuWaits(1, OffCpu((OffCpuStack(7, 8, "sleeping", 9, 2, ("hrtimer_nanosleep",)),), 1.0, 0))
    yield "stacks-off-cpu", msgspec.json.encode(waits)
    yield "prove", msgspec.json.encode(untried("nothing to prove", None, None))
    yield "loader", Sweep("loader", "set", 4, 2, 8.0, (Point(0, 1.5, shares={"idle": 1.0}), Point(2, error="no")), 2, 2, ("a note",)).json()
    reading = read_file(BytesIO(kineto(training()).encode()), "trace.json")
    jobs = [TracedJob(7, "train.py", 1.5, reading, checks_of(reading, {})), TracedJob(8, "train.py", 0.0, None, [], "it is stopped")]
    yield "trace", msgspec.json.encode(Traces(1, jobs))
    dumps = {rank: Dump(rank, dump([*done(2), *([] if rank else [call(3)])], range(4)), CREATED_NS + 60 * 10**9) for rank in range(2)}
    ranks = [FlightRank(0, 7, "2.10", 3), FlightRank(None, 8, error="it is stopped")]
    yield "flight", msgspec.json.encode(Flights(1, [judged(dumps, ranks)]))


def check(name: str, data: bytes) -> None:
    """Fail where the shape does not fit, or leaves a field out, or requires one that is not written."""
    decoded = msgspec.json.decode(data, type=shape(name))
    assert json.loads(msgspec.json.encode(decoded)) == json.loads(data), name
    found = schema(name)
    assert list(_absent(json.loads(data), found, found["$defs"])) == [], name


def _absent(value: Any, node: dict[str, Any], titles: dict[str, Any]) -> Iterator[str]:
    """``Episode.cause``: the fields that the schema requires of the objects in ``value`` and that are not there."""
    for one in node.get("anyOf", ()):
        if isinstance(value, (dict, list)) and ("$ref" in one or one.get("type") in ("array", "object")):
            yield from _absent(value, one, titles)
    if "$ref" in node:
        yield from _absent(value, titles[node["$ref"].rpartition("/")[2]], titles)
    elif isinstance(value, dict):
        properties = node.get("properties", {})
        yield from (f"{node.get('title')}.{field}" for field in node.get("required", ()) if field not in value)
        for field, one in value.items():
            yield from _absent(one, properties.get(field) or node.get("additionalProperties") or {}, titles)
    elif isinstance(value, list) and isinstance(node.get("items"), dict):
        for one in value:
            yield from _absent(one, node["items"], titles)


def test_outputs_are_as_their_shapes_say() -> None:
    checked = set()
    for name, data in real():
        check(name, data)
        checked.add(name)
    assert checked == set(SCHEMAS) - {"explain", "diff", "diff-runs", "stacks", "stacks-lines"}


def test_commands_print_what_their_shapes_say(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    part = ["--json", "--from", "30s", "--until", "33s"]
    with subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        outputs = {}
        both = [str(sample()), str(sample())]
        for name, words in {
            "explain": ["explain", str(sample()), *part], "diff": ["diff", *both, *part], "diff-runs": ["diff", *part, *both, "--", *both],
            "stacks": ["stacks", str(child.pid), "--json"], "stacks-lines": ["stacks", str(child.pid), "--json", "--duration", "1"],
            "snapshot": ["--once", "--json", "--interval", "0.05"],
        }.items():  # fmt: skip
            assert main(words) == 0, words
            outputs[name] = capsysbinary.readouterr().out
        child.kill()
    for name, data in outputs.items():
        check(name, data)


def test_the_command_prints_a_schema_and_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SCHEMAS)
    assert main(["schema", "explain"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["$defs"]["Booked"]["properties"]["gpu_lost_s"] == {
        "anyOf": [{"type": "number", "minimum": 0.0, "maximum": MOST_S}, {"type": "null"}]
    }
    assert main(["schema", "nothing"]) == 2
    assert [name for name in SCHEMAS if f"`{name}`" not in STABILITY] == []


def codes() -> set[int]:
    """The exit codes in the code: of `UserError`, constants that say so, and what `run` and `main` return."""
    found: set[int] = set()
    for path in (ROOT / "gputop").rglob("*.py"):
        text, in_command = path.read_text(encoding="utf-8"), path.parent.name == "commands" or path.name in ("cli.py", "outcome.py")
        if not in_command and not re.search(r"\bcode\b ?=", text):
            continue
        found.update(int(number) for number in re.findall(r"^[A-Z_]+ = (\d+)  # exit code$", text, re.MULTILINE))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("UserError", "_untried"):
                given = [keyword.value for keyword in node.keywords if keyword.arg == "code"] + node.args[1:2] * (
                    getattr(node.func, "id", "") == "UserError"
                )
                found.update(number for one in given for number in _numbers(one))
            if in_command and isinstance(node, ast.FunctionDef) and node.name in ("run", "main", "_outcome"):
                found.update(number for one in ast.walk(node) if isinstance(one, ast.Return) for number in _numbers(one.value))
            if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["code"]:
                found.update(_numbers(node.value))
    return found


def _numbers(node: ast.AST | None) -> Iterator[int]:
    """The whole numbers that an expression may have, without those that it computes with."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _numbers(node.body)
        yield from _numbers(node.orelse)


def test_all_exit_codes_are_on_the_page() -> None:
    table = STABILITY.partition("## Exit codes")[2].partition("\n## ")[0]
    told = {int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert codes() | {0, 1} == told


if __name__ == "__main__":
    print("\n".join(listed()))
