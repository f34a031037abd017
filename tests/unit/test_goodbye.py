"""Words of the goodbye: one ledger, the worst causes with culprits and fix, money that adds up."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from msgspec.structs import replace

from gputop.findings.explanation import Booked, Episode, Explanation
from gputop.findings.money import GpuHourPrice
from gputop.findings.text import goodbye_lines, ledger_lines
from gputop.findings.verdict import Culprit, Fix
from gputop.model.frame import Header
from gputop.stream.following import Following
from gputop.system.colour import painted
from tests.tui import scene

HEADER = Header(host="node7")
ONWARD = (("gputop prove", "tries it"), ("gputop record -o run.gputop", "keeps it"))


@pytest.fixture(scope="module")
def found() -> Explanation:
    """A training that starves for ten seconds."""
    following = Following()
    for item in scene.frames(100, True):
        following.take(item)
    explained = following.engine.explain()
    assert explained.ledger.gpu_lost_s
    return explained


def said(found: Explanation, price: GpuHourPrice | None = None, header: Header = HEADER) -> list[str]:
    return [painted(line, on=False) for line in goodbye_lines(found, header, 250.0, price, ONWARD)]


def booked(**by_cause: float) -> Booked:
    parts = {cause.replace("_", "-"): seconds for cause, seconds in by_cause.items()}
    return Booked(200.0, sum(parts.values()), parts, [], None)


def test_it_has_the_ledger_of_explain_the_culprits_and_the_fix(found: Explanation) -> None:
    lines = said(found)
    assert lines[0] == "node7 was watched for 4 min"
    assert lines[1] == painted(next(iter(ledger_lines(found.ledger))), on=False), "one ledger, one rounding"
    worst = max(found.incidents, key=lambda one: one.gpu_lost_s)
    text = "\n".join(lines)
    assert f"▲ {worst.cause}: " in text
    assert all(f"{one.name} ({one.pid})" in text for one in worst.culprits[:1])
    commands = [fix.command for fix in worst.fixes if fix.command and not fix.look]
    assert commands
    assert any(line.split(maxsplit=1)[1:] == [commands[0]] for line in lines)
    assert lines[-2].split()[:3] == ["next", "gputop", "prove"]
    assert lines[-1].split()[:2] == ["gputop", "record"]


def test_costs_of_causes_sum_to_the_whole(found: Explanation) -> None:
    ledger = booked(cpu_contention=33.333, disk_io=33.333, gil_contention=33.334)
    lines = said(replace(found, ledger=ledger), GpuHourPrice(Fraction(36), "EUR"))
    costs = [float(cost) for line in lines for cost in re.findall(r"([\d.]+) EUR", line)]
    assert costs[0] == pytest.approx(sum(costs[1:]))
    assert costs[0] == 1.0
    assert "EUR" not in "\n".join(said(replace(found, ledger=ledger)))


def test_a_little_money_is_not_none(found: Explanation) -> None:
    lines = said(replace(found, ledger=booked(disk_io=0.3)), GpuHourPrice(Fraction(1), "EUR"))
    assert "less than 0.01 EUR" in lines[1]


def test_the_three_worst_causes_are_named_the_worst_first(found: Explanation) -> None:
    ledger = booked(disk_io=5.0, gil_contention=9.0, cpu_contention=1.0, network_io=7.0, unexplained=0.001)
    text = "\n".join(said(replace(found, ledger=ledger, incidents=[])))
    assert re.findall(r"^▲ ([\w-]+): ", text, re.MULTILINE) == ["gil-contention", "network-io", "disk-io"]


def test_a_cause_of_next_to_nothing_is_left_out(found: Explanation) -> None:
    ledger = booked(disk_io=50.0, sync_storm=0.2)
    assert "sync-storm" not in "\n".join(said(replace(found, ledger=ledger, incidents=[])))


def test_nothing_lost_is_two_lines_and_what_comes_next(found: Explanation) -> None:
    well = replace(found, ledger=booked(), incidents=[])
    assert len(said(well)) == 2 + len(ONWARD)
    none = replace(found, ledger=Booked(None, None, {}, [], None), incidents=[])
    assert "none counted" in said(none)[1]
    assert "0.0" not in said(none)[1]


def test_trouble_that_costs_nothing_yet_is_named_while_it_lasts(found: Explanation) -> None:
    grows = _episode(found, cause="host-memory-growth", gpu_lost_s=0.0, end_unix_s=None, headline="memory of train.py grows")
    text = "\n".join(said(replace(found, ledger=booked(), incidents=[grows])))
    assert "host-memory-growth" in text
    over = replace(grows, end_unix_s=grows.start_unix_s + 1.0)
    assert "host-memory-growth" not in "\n".join(said(replace(found, ledger=booked(), incidents=[over])))


def test_names_of_others_control_no_terminal_and_many_are_a_number(found: Explanation) -> None:
    culprits = [Culprit(900 + i, f"hog{i}\x1b[2J", 1.0) for i in range(9)]
    worst = _episode(found, cause="cpu-contention", culprits=culprits, fixes=[Fix("Look", "top\x1b[31m", look=True), Fix("Wait")])
    lines = said(replace(found, ledger=booked(cpu_contention=9.0), incidents=[worst]), header=Header(host="n\x1b]0;x\x07", simulated=True))
    assert "\x1b" not in "".join(lines)
    assert "and 6 more" in "\n".join(lines)
    assert "  fix   Wait" in lines, "what changes something comes before what only shows more"
    assert "SIMULATED" in lines[0]


def _episode(found: Explanation, **values: object) -> Episode:
    worst = max(found.incidents, key=lambda one: one.gpu_lost_s)
    return replace(worst, **values)
