"""Pauses that come again and again and take much: told as a fault, unlike one that is rare."""

from __future__ import annotations

import pytest

from gputop.diagnosis.facts.pauses import Span, merged, repeated
from gputop.findings import policy
from tests.unit.diagnosis.scene import Scene
from tests.unit.diagnosis.test_pauses import blurred, evaluating, saving

S = 1_000_000_000


def noted(count: int, every_s: float, each_s: float, spans: tuple[Span, ...] = ()) -> list[Span]:
    """So many pauses; the last one has just ended."""
    for i in range(count):
        since = round((100 + i * every_s) * S)
        spans = (*merged([*spans, (since, since + S // 10), (since, since + round(each_s * S))], since + round(each_s * S)),)
    return [*spans]


def test_what_they_take_is_told_from_the_beginning_of_one_to_that_of_another():
    told = repeated(noted(policy.OFTEN, 6.0, 2.0), round((100 + 6.0 * (policy.OFTEN - 1) + 2.0) * S))
    assert told is not None
    assert (told.count, told.each_s, told.share) == (policy.OFTEN, 2.0, pytest.approx(1 / 3))
    assert told.told() == "4 pauses of 2.0 s each took 33% of the last 20 s"


def test_a_few_or_short_ones_are_not():
    assert repeated(noted(policy.OFTEN - 1, 6.0, 2.0), 200 * S) is None
    assert repeated(noted(policy.OFTEN, 10.0, 2.0), 132 * S) is None


def test_nor_those_after_which_no_other_came():
    assert repeated(noted(policy.OFTEN, 6.0, 2.0), 125 * S) is not None
    assert repeated(noted(policy.OFTEN, 6.0, 2.0), 150 * S) is None


def test_they_are_forgotten_in_the_end():
    assert merged(noted(policy.OFTEN, 6.0, 2.0), 1000 * S) == []


def severities(scene: Scene) -> list[tuple[str, str]]:
    return [(one.cause, one.severity) for one in scene.engine.incidents]


def test_a_third_of_the_time_is_told_as_a_fault_with_what_it_took():
    scene = saving(3.0, 1.5, 6)
    verdict, incident = scene.engine.verdict, scene.engine.incidents[0]
    assert (verdict.symptom, verdict.cause, verdict.severity) == ("idle", "pause", "medium")
    assert verdict.headline.endswith("pauses again and again")
    assert verdict.detail.endswith("; 6 pauses of 1.5 s each took 33% of the last 24 s")
    assert [(one.metric, one.value) for one in verdict.evidence[:3]] == [("pauses", 6), ("pause_s", 1.5), ("pauses_pct", 33.3)]
    assert (incident.cause, incident.severity) == ("pause", "medium")
    scene.gpus[0]["util_pct"] = 98.0
    scene.play(12, 0.1)
    assert (scene.engine.verdict.cause, incident.severity) == ("none", "medium")


def test_pauses_that_take_less_are_none():
    assert set(severities(saving(8.0, 2.0, 6))) == {("pause", "info")}


def test_nor_is_a_long_rare_one_nor_those_that_come_with_it():
    scene = saving(20.0, 15.0, 1)
    assert severities(scene) == [("pause", "info")]
    for idle_s in (1.0, 1.0):
        scene.gpus[0]["util_pct"] = 98.0
        scene.play(0.6, 0.1).gpus[0]["util_pct"] = 0.0
        scene.play(idle_s, 0.1)
    assert severities(scene) == [("pause", "info")]
    assert "took" not in scene.engine.verdict.detail


def test_long_ones_count_by_their_part_of_the_time_though_each_is_an_incident_of_its_own():
    """The window of each is lost in full."""
    scene = saving(40.0, 20.0, 5)
    assert severities(scene) == [("pause", "info")] * 3 + [("pause", "medium")] * 2
    assert scene.engine.verdict.severity == "medium"


def test_calls_show_them_where_readings_are_too_coarse():
    """And the steps between them do not count."""
    scene = blurred()
    assert severities(scene) == [("pause", "info")]
    scene = blurred(cycles=5)
    assert severities(scene) == [("pause", "medium")]


def test_turns_to_another_loader_are_counted_too():
    """Its GPU has some work meanwhile, and so they cost less than they take."""
    assert severities(evaluating(6, 4)) == [("pause", "info")]
    assert severities(evaluating(6, 4, cycles=5))[-1] == ("pause", "low")
