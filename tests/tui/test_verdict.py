"""The verdict's lines in a narrow terminal."""

from __future__ import annotations

import pytest

from gputop.commands.once import page
from gputop.findings.verdict import Verdict
from gputop.tui.draw.edges import verdict_lines
from gputop.tui.draw.view import View
from tests.tui import scene

HEADLINE = "GPU 0 lost 57% of the last 10 s: train.py (302926) waits for its data"
TAKERS = "python (21859, 21860, 21861 and 4 more), metrics-agent (29981), log-shipper (29980)"
DETAIL = f"4 of 4 workers runnable but not running 76% of the time; {TAKERS} took 1.2 of 4 cores"


def drawn(width: int) -> list[str]:
    shown = verdict_lines(Verdict("input-bound", "cpu-contention", headline=HEADLINE, detail=DETAIL), View(width=width))
    return ["".join(text for text, _ in line) for line in shown]


def test_where_there_is_room_nothing_is_left_out() -> None:
    first, second = drawn(200)
    assert HEADLINE in first
    assert DETAIL in second


def test_the_bound_of_what_would_come_back_stands_where_there_is_room() -> None:
    verdict = Verdict("input-bound", "cpu-contention", headline=HEADLINE, detail=DETAIL, speedup_max=1.7)
    wide, narrow = ("".join(text for text, _ in verdict_lines(verdict, View(width=width))[0]) for width in (160, 80))
    assert f"{HEADLINE}; without it up to 1.70×" in wide
    assert "without" not in narrow


@pytest.mark.parametrize("width", [80, 90, 100, 110, 120])
def test_numbers_stay_where_names_must_go(width: int) -> None:
    first, second = drawn(width)
    assert "GPU 0 lost 57%" in first
    assert ("train.py (302926)" if width > 80 else "train.py") in first
    assert first.rstrip().endswith(" data")
    assert "76%" in second
    assert "python" in second
    assert "and 2 more" in second
    assert "took 1.2 of 4 cores" in second


def test_a_single_look_gives_the_evidence_too() -> None:
    session = scene.session()
    told = session.engine.verdict
    shown = ["".join(text for text, _ in line) for line in page(session, View(width=160))]
    assert told.headline in shown[1]
    assert told.detail[:60] in shown[2]
