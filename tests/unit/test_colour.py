"""Colour of commands: which stream takes it, and that the text is the same with and without."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import pytest

from gputop.findings import message
from gputop.findings.text import without_colour
from gputop.findings.verdict import Evidence, Fix
from gputop.system.colour import SGR, painted, takes_colour, trimmed
from tests.wait import PATIENCE_S


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("environ", "terminal", "pipe"), [
    ({"TERM": "xterm"}, True, False),
    ({}, False, False),
    ({"TERM": "dumb"}, False, False),
    ({"TERM": "xterm", "NO_COLOR": "1"}, False, False),
    ({"TERM": "xterm", "NO_COLOR": ""}, True, False),
    ({"TERM": "xterm", "CLICOLOR": "0"}, False, False),
    ({"TERM": "xterm", "CLICOLOR": "1"}, True, False),
    ({"TERM": "dumb", "CLICOLOR_FORCE": "1"}, True, True),
    ({"TERM": "xterm", "CLICOLOR_FORCE": "0"}, True, False),
    ({"FORCE_COLOR": "1"}, True, True),
    ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
])  # fmt: skip
def test_which_stream_takes_colour(environ: dict[str, str], terminal: bool, pipe: bool) -> None:
    assert (takes_colour(Terminal(), environ), takes_colour(io.StringIO(), environ)) == (terminal, pipe)


def test_a_meaning_is_a_sequence_around_its_text_and_nothing_without_colour() -> None:
    line = [("▲ lost", "crit"), ("  ", "title"), ("it", ""), (" rest", "unheard-of")]
    assert painted(line, on=False) == "▲ lost  it rest"
    assert painted(line, on=True) == f"\x1b[{SGR['crit']}m▲ lost\x1b[0m  it rest"
    assert "90" not in re.findall(r"\d+", "".join(SGR.values())), "bright black is invisible in some palettes"
    assert trimmed([("a ", ""), ("  ", "title"), ("", "")]) == [("a", "")]


def _run(*arguments: str, **environ: str) -> bytes:
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS")}
    command = [sys.executable, "-m", "gputop", *arguments]
    return subprocess.run(command, env=env | environ, capture_output=True, timeout=PATIENCE_S, check=True).stdout


@pytest.mark.parametrize("command", [("explain", "--sample"), ("explain", "--sample", "--last", "20s")])
def test_a_pipe_has_the_same_bytes_whatever_the_terminal_is_and_colour_changes_no_text(command: tuple[str, ...]) -> None:
    plain = _run(*command, TERM="xterm-256color", COLUMNS="200")
    assert b"\x1b" not in plain
    assert plain == _run(*command, TERM="dumb", COLUMNS="40") == _run(*command, FORCE_COLOR="1", NO_COLOR="1")
    coloured = _run(*command, FORCE_COLOR="1")
    assert b"\x1b[" in coloured
    assert without_colour(coloured.decode()) == plain.decode()


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_message_keeps_its_width_and_never_breaks_a_command(width: int) -> None:
    command = "for p in 1001 1002 1003 1004 1005 1006 1007 1008 1009 1010 1011 1012 1013; do taskset -apc 0-63 $p; done"
    text = "Let the processes of the job run on all the CPUs that the machine has, and see who holds them to these"
    found = [Fix("See who pins it", "taskset -pc 1001", look=True), Fix(text, command)]
    lines = [painted(line, on=False) for line in (*message.fixes(found, width), *message.why([Evidence("m_n", 72.0, "%", text)], width))]
    assert max(len(line) for line in lines if command not in line) <= width
    assert [line.split()[0] for line in lines if line[2:8].strip()] == ["fix", "look", "why"]
    assert sum(command in line for line in lines) == 1
    told = " ".join(" ".join(lines).split())
    assert told == f"fix {command} {text} look taskset -pc 1001 See who pins it why 72 % {text}"


def test_the_lane_shows_when_it_was_lost_at_any_width() -> None:
    points = [(100.0 + i, 10.0 if 20 <= i < 40 else 95.0) for i in range(60)]
    for width in (30, 68, 200):
        bars, under, *_ = (painted(line, on=False)[8:] for line in message.lane(points, [(120.0, 140.0)], width))
        assert len(bars) <= max(10, width - 8)
        low = [x for x, bar in enumerate(bars) if bar == message.BARS[0]]
        assert low
        assert all(under[x] == "▔" for x in low)
        assert under.count("▔") <= len(low) + 2
    assert not list(message.lane(points[:1], [], 80))


def test_what_is_not_measured_has_no_number() -> None:
    (line,) = message.why([Evidence("psi_io_pct", None, "%", "PSI io some")], 80)
    assert "not measured" in painted(line, on=False)
    assert "None" not in painted(line, on=False)
