"""What is told, when, and in which words."""

from __future__ import annotations

import json

import msgspec
import pytest

from gputop.alerts.alert import BEGIN, END, MOST_TEXT, Teller
from gputop.diagnosis.model import Culprit
from gputop.model.frame import SECOND_NS
from gputop.session.following import Following
from tests.alerts.made import alert, incident
from tests.corpus import accuracy, split
from tests.corpus.runs import load
from tests.unit.diagnosis.test_engine import contended

HEALTHY_EACH = 3  # of the recorded healthy workloads one of so many is looked at: the corpus's own test judges all


def test_an_incident_is_told_once_when_it_begins_and_once_when_it_ends() -> None:
    teller, one = Teller("medium"), incident()
    assert teller.news([one]) == [(BEGIN, one)]
    one.lost_s, one.severity = 30.0, "high"
    assert teller.news([one]) == []
    one.end_ns = 30 * SECOND_NS
    assert teller.news([one]) == [(END, one)]
    assert teller.news([one]) == []


def test_it_is_told_when_it_has_come_to_the_severity_and_stays_told_below_it() -> None:
    teller, one = Teller("medium"), incident(severity="low")
    assert teller.news([one]) == []
    one.severity = "medium"
    assert teller.news([one]) == [(BEGIN, one)]
    one.severity = "low"
    assert teller.news([one]) == []
    one.end_ns = 30 * SECOND_NS
    assert teller.news([one]) == [(END, one)]


@pytest.mark.parametrize("changed", [{"cause": "pause", "severity": "high"}, {"severity": "info"}, {"end_ns": 1}])
def test_a_pause_is_never_told_nor_what_is_no_fault_or_over(changed: dict[str, object]) -> None:
    assert Teller("low").news([incident(**changed)]) == []


def test_two_at_once_are_two_and_ids_of_another_boot_are_others() -> None:
    teller = Teller("low")
    assert len(teller.news([incident(1), incident(2, cause="disk-io")])) == 2
    assert [event for event, _ in teller.news([incident(1, start_ns=99 * SECOND_NS)])] == [END, END, BEGIN]


def test_one_that_turned_out_to_be_part_of_another_is_over() -> None:
    teller, one, hang = Teller("medium"), incident(1), incident(2, cause="hung-worker")
    teller.news([one])
    assert teller.news([hang]) == [(END, one), (BEGIN, hang)]


def test_the_text_says_where_what_and_who() -> None:
    text = alert().text
    assert text.startswith("▲ node7: input-bound ← cpu-contention (medium): GPU 0 lost 3.5 of 5.0 s: train.py (3821) waits for its data")
    assert "hog (903) took" in text
    assert alert(END, end_ns=52 * SECOND_NS).text.startswith("✓ node7: input-bound ← cpu-contention is over after 42 s: GPU 0 lost")
    assert alert(cause="host-memory-growth", symptom="healthy").text.startswith("▲ node7: host-memory-growth (medium)")


def test_the_document_is_the_incident_as_explain_tells_it() -> None:
    found = json.loads(msgspec.json.encode(alert().document))
    assert (found["schema"], found["event"], found["host"], found["trainer"]) == (1, "begin", "node7", "train.py")
    assert found["incident"]["start_unix_s"] == 1010.0
    assert found["incident"]["end_unix_s"] is None
    assert found["incident"]["culprits"] == [{"pid": 903, "name": "hog", "cpu_s": 1.4}]


def test_names_are_cleaned_and_neither_command_lines_nor_long_texts_are_sent() -> None:
    one = alert(culprits=[Culprit(903 + i, "a\x1b]0;evil\x07\u202eb", 1.0) for i in range(100)], headline="x\x1b[2J" + "y" * 9000)
    sent = msgspec.json.encode(one.document).decode()
    assert "hunter2" not in sent
    assert "--api-key" not in sent
    assert not set(sent) & set("\x1b\x07\u202e")
    assert len(one.text) <= MOST_TEXT
    assert len(one.document["incident"]["culprits"]) == 16
    assert len(sent) < 16_000


def test_what_is_not_known_is_left_out_of_the_facts() -> None:
    assert "trainer_pid" not in alert(trainer_pid=None, gpu=None, victims=[]).facts
    assert alert().facts["culprits"] == "hog (903)"


def test_a_stream_with_a_fault_is_told_within_seconds() -> None:
    scene, following, teller, told = contended(), Following(), Teller("medium"), []
    following.restate(scene.board.header)
    for _ in range(80):
        following.take(scene.next_frame(0.1))
        told += [(event, one.cause, (scene.board.t_ns, one.start_ns)) for event, one in teller.news(following.engine.incidents)]
    assert [(event, cause) for event, cause, _ in told] == [(BEGIN, "cpu-contention")]


def test_recorded_healthy_workloads_raise_no_alert() -> None:
    raised, seen = [], 0
    for path in accuracy.paths(half=split.LEARN):
        run = load(path)
        if run.cause != "none" or run.workload.endswith("-kept-samples"):  # that one leaks, which is told
            continue
        seen += 1
        if seen % HEALTHY_EACH:
            continue
        for mode in run.streams:
            following, teller = Following(), Teller("medium")
            for _ in following.through(run.items(mode)):
                raised += [(run.workload, mode, one.cause) for _, one in teller.news(following.engine.incidents)]
    assert seen >= 25
    assert raised == []
