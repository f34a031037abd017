"""Whatever others send, each reader takes it or refuses it in a line: no other error, bounded memory, bounded time (`tests.fuzzing`)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest import mock

import pytest

from gputop.fleet import link
from gputop.fleet.link import UP
from gputop.stream.reach import Target
from tests.fuzzing import agents, fleet, kinds, traces, web
from tests.fuzzing.kind import Kind
from tests.recording import fuzz

INPUTS = int(os.environ.get("GPUTOP_FUZZ", "200"))
"""Of all kinds together; ask for more after a change of what reads: GPUTOP_FUZZ=100000."""
AT_LENGTH = 4  # times as many of other inputs in `make soak`, and any number in `make fuzz`
FIRST = int(os.environ.get("GPUTOP_FUZZ_FROM", "0"))


@pytest.mark.parametrize("kind", kinds.KINDS, ids=lambda kind: kind.name)
def test_changed_inputs_are_read_or_refused_in_a_line_within_bounds(kind: Kind) -> None:
    check(kind, FIRST, kinds.counts(INPUTS)[kind])


@pytest.mark.soak
@pytest.mark.parametrize("kind", kinds.KINDS, ids=lambda kind: kind.name)
def test_and_many_more_of_them(kind: Kind) -> None:
    few = kinds.counts(INPUTS)[kind]
    check(kind, FIRST + few, AT_LENGTH * few)


def check(kind: Kind, first: int, count: int) -> None:
    """Read inputs of a kind from number ``first`` on; name those that went wrong."""
    found = fuzz.campaign(kinds.inputs(kind, count, first), prepare=kinds.prepare)
    assert not found, f"{len(found)} of {count} went wrong:\n" + "\n".join(found[:5])


# What was not changed comes through, or nothing of the above would be read far.


def test_a_sound_node_is_up(tmp_path: Path) -> None:
    path = tmp_path / "node"
    for number, seed in enumerate(fleet.seeds()):
        path.write_bytes(seed)
        assert fleet.read_stream(str(path), Target(fleet.EVIL)) == UP, number
        path.write_bytes(fleet.to_lines(seed))
        assert fleet.read_stream(str(path), Target(fleet.EVIL, "srun", "4711")) == UP, number


def test_sound_traces_are_exported(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    codes = []
    for text in traces.seeds():
        path.write_text(text)
        codes.append(traces.export(str(path)))
    assert codes == [0, 0, 0, 0, 1], "the last is of another time"


@pytest.mark.parametrize("name", agents.TOOLS)
def test_tools_answer_about_what_was_not_changed(name: str, tmp_path: Path) -> None:
    asked = json.dumps([name, {}]).encode()
    path = tmp_path / "call"
    path.write_bytes(len(asked).to_bytes(4, "little") + asked + fuzz.seeds()[-1])
    agents.calls_drive(str(path))


def test_a_request_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "request"
    path.write_bytes(b"GET /metrics HTTP/1.1\r\nAccept: */*\r\n\r\n")
    assert web.answer_of(str(path)).startswith(b"HTTP/1.0 200 OK\r\n")


def test_a_bug_that_a_node_meets_is_seen() -> None:
    """Gputop hides it behind the node's row; here it counts."""

    def drive(path: str) -> None:
        with mock.patch.object(link, "read_summary", side_effect=ZeroDivisionError):
            fleet.blocks_drive(path)

    [found] = fuzz.campaign([fuzz.Input("bug", lambda: fleet.seeds()[0], drive)], prepare=kinds.prepare)
    assert "ZeroDivisionError" in found
