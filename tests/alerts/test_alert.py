"""What is told, when, and in which words."""

from __future__ import annotations

import json

import msgspec
import pytest

from gputop.alerts.alert import BEGIN, END, MOST_TEXT, Damper, IncidentFilter, lines
from gputop.findings.verdict import Culprit, Fix, Incident, page_of
from gputop.model.frame import SECOND_NS
from gputop.stream.following import Following
from gputop.system.colour import painted
from tests.alerts.made import alert, incident
from tests.corpus import accuracy, split
from tests.corpus.runs import load
from tests.unit.diagnosis.test_engine import contended

HEALTHY_EACH = 3  # of the recorded healthy workloads one of so many is looked at: the corpus's own test judges all


def test_an_incident_is_told_once_when_it_begins_and_once_when_it_ends() -> None:
    teller, one = IncidentFilter("medium"), incident()
    assert teller.news([one]) == [(BEGIN, one)]
    one.lost_s, one.severity = 30.0, "high"
    assert teller.news([one]) == []
    one.end_ns = 30 * SECOND_NS
    assert teller.news([one]) == [(END, one)]
    assert teller.news([one]) == []


def test_it_is_told_when_it_has_come_to_the_severity_and_stays_told_below_it() -> None:
    teller, one = IncidentFilter("medium"), incident(severity="low")
    assert teller.news([one]) == []
    one.severity = "medium"
    assert teller.news([one]) == [(BEGIN, one)]
    one.severity = "low"
    assert teller.news([one]) == []
    one.end_ns = 30 * SECOND_NS
    assert teller.news([one]) == [(END, one)]


@pytest.mark.parametrize("changed", [{"cause": "pause", "severity": "high"}, {"severity": "info"}, {"end_ns": 1}])
def test_a_pause_is_never_told_nor_what_is_no_fault_or_over(changed: dict[str, object]) -> None:
    assert IncidentFilter("low").news([incident(**changed)]) == []


def test_two_at_once_are_two_and_ids_of_another_boot_are_others() -> None:
    teller = IncidentFilter("low")
    assert len(teller.news([incident(1), incident(2, cause="disk-io")])) == 2
    assert [event for event, _ in teller.news([incident(1, start_ns=99 * SECOND_NS)])] == [END, END, BEGIN]


def test_one_that_turned_out_to_be_part_of_another_is_over() -> None:
    teller, one, hang = IncidentFilter("medium"), incident(1), incident(2, cause="hung-worker")
    teller.news([one])
    assert teller.news([hang]) == [(END, one), (BEGIN, hang)]


def sent(damper: Damper, at_s: float, *news: tuple[str, Incident]) -> list[tuple[str, int, int]]:
    """(event, number of the incident, how often it came)."""
    return [(event, one.id, times) for event, one, times in damper.sent(list(news), round(at_s * SECOND_NS))]


def at(number: int, start_s: float, **changed: object) -> Incident:
    return incident(number, start_ns=round(start_s * SECOND_NS), **changed)


def test_what_comes_and_goes_is_sent_once_and_then_every_ten_minutes_with_how_often() -> None:
    damper, found = Damper(), []
    for number in range(1, 41):
        start_s = 60.0 * number
        one = at(number, start_s)
        found += [(start_s, *row) for row in sent(damper, start_s, (BEGIN, one))]
        one.end_ns = round((start_s + 30) * SECOND_NS)
        found += [(start_s + 30, *row) for row in sent(damper, start_s + 30, (END, one))]
    assert found[:2] == [(60.0, BEGIN, 1, 1), (90.0, END, 1, 1)]
    assert found[2:4] == [(660.0, BEGIN, 11, 10), (690.0, END, 11, 1)]
    begins = [at_s for at_s, event, *_ in found if event == BEGIN]
    assert begins == [60.0, 660.0, 1260.0, 1860.0]
    assert len(found) == 2 * len(begins)


def test_what_was_held_back_is_told_after_ten_minutes_whether_it_lasts_or_not() -> None:
    for lasts in (True, False):
        damper = Damper()
        assert sent(damper, 0, (BEGIN, at(1, 0)), (BEGIN, at(7, 0, cause="disk-io"))) == [(BEGIN, 1, 1), (BEGIN, 7, 1)]
        second = at(2, 100)
        assert sent(damper, 60, (END, at(1, 0)), (BEGIN, second)) == [(END, 1, 1)]
        if not lasts:
            second.end_ns = 200 * SECOND_NS
            assert sent(damper, 200, (END, second)) == []
        assert sent(damper, 599) == []
        assert sent(damper, 600) == [(BEGIN if lasts else END, 2, 1)]
        assert sent(damper, 1199) == []
        assert sent(damper, 1201, *([(END, second)] if lasts else [])) == ([(END, 2, 1)] if lasts else [])


def test_what_is_another_or_worse_is_not_held_back() -> None:
    damper = Damper()
    assert sent(damper, 0, (BEGIN, at(1, 0))) == [(BEGIN, 1, 1)]
    assert sent(damper, 9, (END, at(1, 0))) == [(END, 1, 1)]
    assert sent(damper, 10, (BEGIN, at(2, 10))) == []
    assert sent(damper, 11, (BEGIN, at(3, 11, trainer_pid=7)), (BEGIN, at(4, 11, cause="disk-io"))) == [(BEGIN, 3, 1), (BEGIN, 4, 1)]
    assert sent(damper, 12, (BEGIN, at(5, 12, severity="high"))) == [(BEGIN, 5, 2)]
    assert sent(damper, 13, (BEGIN, at(6, 13, trainer_pid=None, gpu=0)), (BEGIN, at(7, 13, trainer_pid=None, gpu=1))) == [
        (BEGIN, 6, 1), (BEGIN, 7, 1),
    ]  # fmt: skip


def test_another_boot_knows_nothing_of_it() -> None:
    damper = Damper()
    sent(damper, 5000, (BEGIN, at(1, 5000)))
    assert sent(damper, 30, (END, at(1, 5000)), (BEGIN, at(1, 30))) == [(END, 1, 1), (BEGIN, 1, 1)]


def test_how_often_it_came_is_told_in_words_and_as_a_number() -> None:
    one, last = alert(times=9), alert(END, times=9, end_ns=52 * SECOND_NS)
    assert one.text.startswith("▲ node7: input-bound ← cpu-contention (medium, 9 times in 10 min): GPU 0")
    assert last.text.startswith("✓ node7: input-bound ← cpu-contention is over after 42 s, 9 times in 10 min: GPU 0")
    assert (one.times, one.facts["times"]) == (9, "9")
    assert "times" not in alert().facts


def test_the_text_says_where_what_and_who() -> None:
    text = alert().text
    assert text.startswith("▲ node7: input-bound ← cpu-contention (medium): GPU 0 lost 3.5 of 5.0 s: train.py (3821) waits for its data")
    assert "hog (903) took" in text
    assert alert(END, end_ns=52 * SECOND_NS).text.startswith("✓ node7: input-bound ← cpu-contention is over after 42 s: GPU 0 lost")
    assert alert(cause="host-memory-growth", symptom="healthy").text.startswith("▲ node7: host-memory-growth (medium)")


def test_the_document_is_the_incident_as_explain_tells_it() -> None:
    found = json.loads(msgspec.json.encode(alert()))
    assert (found["schema"], found["event"], found["host"], found["trainer"]) == (1, "begin", "node7", "train.py")
    assert found["incident"]["start_unix_s"] == 1010.0
    assert found["incident"]["end_unix_s"] is None
    assert found["incident"]["culprits"] == [{"pid": 903, "name": "hog", "cpu_s": 1.4}]


def test_names_are_cleaned_and_neither_command_lines_nor_long_texts_are_sent() -> None:
    one = alert(culprits=[Culprit(903 + i, "a\x1b]0;evil\x07\u202eb", 1.0) for i in range(100)], headline="x\x1b[2J" + "y" * 9000)
    sent = msgspec.json.encode(one).decode()
    assert "hunter2" not in sent
    assert "--api-key" not in sent
    assert not set(sent) & set("\x1b\x07\u202e")
    assert len(one.text) <= MOST_TEXT
    assert len(one.incident.culprits) == 16
    assert len(sent) < 16_000


@pytest.mark.parametrize("width", [40, 80])
def test_on_a_terminal_it_is_a_message_with_the_fix_and_its_end_one_line(width: int) -> None:
    fixes = [Fix("See who", "ls -l /proc/903/fd", look=True), Fix("Let hog wait for the others", "chrt --idle --pid 0 903")]
    begun = [painted(line, on=False) for line in lines(alert(fixes=fixes, headline="x\x1b[2J" + " y" * 90), width, "12:00:00 ")]
    assert begun[0] == "12:00:00 ▲ input-bound ← cpu-contention  (node7, medium)"
    assert "  fix   chrt --idle --pid 0 903" in begun
    assert "ls -l" not in "".join(begun)
    assert "\x1b" not in "".join(begun)
    assert max(map(len, begun[1:])) <= width
    assert alert(fixes=fixes).facts["fix"] == "chrt --idle --pid 0 903"
    assert "fix" not in alert(fixes=fixes[:1]).facts
    (over,) = lines(alert(END, end_ns=52 * SECOND_NS), width)
    assert painted(over, on=False) == "✓ input-bound ← cpu-contention  (node7, over after 42 s)"
    (ended,) = lines(alert(END), width)
    assert "over after 10 s" in painted(ended, on=False), "the job has ended, and its incident with it"


def test_what_is_not_known_is_left_out_of_the_facts() -> None:
    assert "trainer_pid" not in alert(trainer_pid=None, gpu=None, victims=[]).facts
    assert alert().facts["culprits"] == "hog (903)"


def test_an_alert_leads_to_the_page_of_its_cause() -> None:
    assert alert().facts["help_url"] == alert().incident.help_url == page_of("cpu-contention")
    assert "help_url" not in alert(cause="of-a-plug-in").facts


def test_a_stream_with_a_fault_is_told_within_seconds() -> None:
    scene, following, teller, told = contended(), Following(), IncidentFilter("medium"), []
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
            following, teller = Following(), IncidentFilter("medium")
            for _ in following.through(run.items(mode)):
                raised += [(run.workload, mode, one.cause) for _, one in teller.news(following.engine.incidents)]
    assert seen >= 25
    assert raised == []
