"""`gputop --line`: what the line says, and that nothing in it is more than text to the bar that shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

import pytest

from gputop.cli import main, make_parser
from gputop.commands import once
from gputop.commands.fleet import line_of as line_of_fleet
from gputop.commands.replay import sample
from gputop.findings.line import StatusLine, line_of
from gputop.findings.verdict import Culprit, Step, Verdict
from gputop.fleet.overview import Overview
from gputop.model.board import Board, GpuBoard
from gputop.model.frame import Frame, Header
from gputop.recording.reader import Recording
from tests.fleet.nodes import fleet

AGENTS = (Culprit(7, "fluent-bit", 1.0), Culprit(8, "cron", 0.5))
STARVES = Verdict("input-bound", "cpu-contention", 0, 57.6, "GPU 0 lost 58%", "two agents", "high", culprits=AGENTS)


def board(*utils: float | None) -> Board:
    made = Board()
    for i, util in enumerate(utils):
        made.gpus[i] = GpuBoard(i)
        if util is not None:
            made.gpus[i].values["util_pct"] = util
    return made


@pytest.mark.parametrize(("utils", "verdict", "text"), [
    ((42.4,), STARVES, "▲ cpu-contention 58% lost · GPU 42% · fluent-bit, cron"),
    ((90.0, 100.0), Verdict("healthy", step=Step(2.104, "CUDA calls", 1, 1, 1, 1, 1)), "✓ 2 GPUs 95% · 2.1 steps/s"),
    ((0.0,), Verdict("idle", "pause", severity="info"), "– idle · GPU 0%"),
    ((99.0,), Verdict("input-bound", "pause", severity="info"), "✓ pause · GPU 99%"),
    ((5.0,), Verdict("wait-heavy", "unexplained", 0, 95.0, severity="medium"), "▲ wait-heavy 95% lost · GPU 5%"),
    ((None,), Verdict(), "… looking · GPU ?"),
    ((), Verdict("idle"), "– idle · no GPU"),
])  # fmt: skip
def test_the_line_of_a_moment(utils: tuple[float | None, ...], verdict: Verdict, text: str) -> None:
    assert line_of(board(*utils), verdict).text() == text


def test_names_are_no_more_than_text() -> None:
    """tmux reads ``#(…)`` and ``#[…]``, waybar Pango's markup, every terminal escapes."""
    named = (Culprit(7, "#(reboot)<i>\x1b]0;x\x07\u202e", None),)
    hostile = Verdict("input-bound", "disk-io", 0, 50.0, "a <b>&\x1b[31m", "", "high", culprits=named)
    line = line_of(board(1.0), hostile)
    assert line.text() == "▲ disk-io 50% lost · GPU 1% · (reboot)<i>·]0;x··"
    assert line.form("tmux") == f"#[fg=red]{line.text()}#[default]"
    shown = json.loads(line.form("waybar"))
    assert (shown["class"], shown["percentage"]) == ("high", 1)
    assert shown["text"].endswith("(reboot)&lt;i&gt;·]0;x··")
    assert shown["tooltip"] == "a &lt;b&gt;&amp;·[31m"
    assert line.text(ascii_only=True).isascii()
    assert line.text(ascii_only=True).startswith("! disk-io 50% lost | GPU 1%")
    assert len(StatusLine("high", ("x" * 500,)).text()) == 100


def test_a_fleet_says_its_worst_job() -> None:
    late, fine = Overview(), Overview()
    for _ in range(3):
        late.take(fleet(late=3))
        fine.take(fleet())
    assert line_of_fleet(late).text() == "▲ cpu-contention 60% lost · rank 3 node01 · 16 GPUs 94% · 2 of 2 nodes · fluent-bit"
    assert line_of_fleet(fine).text() == "✓ 16 GPUs 95% · 2 of 2 nodes"
    assert line_of_fleet(Overview()).text() == "… looking · no GPU · 0 of 0 nodes"


def played(_: object, *__: object) -> Iterator[Header | Frame]:
    with Recording(sample()) as recording:
        yield recording.header
        yield from recording.frames(end_ns=recording.start_ns + 8 * 10**9)


def test_lines_come_when_they_change_and_once_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(once, "_stream", played)
    monkeypatch.setattr(once, "look", played)
    assert main(["--line", "--no-ascii"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 2 < len(lines) <= 9, "8 s, a line a second at most"
    assert all(before != after for before, after in pairwise(lines))
    assert main(["--once", "--line", "waybar", "--no-ascii"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert {"text", "tooltip", "class"} <= json.loads(line).keys()
    assert main(["--line", "--json"]) == 2


def test_the_demo_has_every_flag_of_the_screen() -> None:
    """And runs it as without any, but tells nobody by alerts."""
    theirs, ours = (vars(make_parser(name)[0].parse_args([])) for name in ("live", "demo"))
    del theirs["version"]
    assert {name: ours[name] for name in theirs} == theirs | {"alert": []}
