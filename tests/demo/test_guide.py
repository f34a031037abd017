"""The guide of `gputop demo`: each act's words, the key that it waits for, ticks, and what holds the trouble."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from gputop.commands.guide import BOX, NEWS_NS, QUESTION, RESULT_NS, SKIP, Guide, steps_of
from gputop.demo.scenarios import SCENARIOS
from gputop.findings.verdict import Verdict
from gputop.model.board import Board
from gputop.model.frame import Mark
from gputop.prove.applying import Pace
from gputop.sources import simulated
from gputop.system.install import FROM_HERE, OWN_NODE
from gputop.system.text import cell_width

SECOND = 1_000_000_000
NOW = 1000 * SECOND


class Engine:
    verdict = Verdict(symptom="healthy", cause="none")


class Session:
    def __init__(self) -> None:
        self.engine, self.marks, self.now_ns, self.board = Engine(), list[Mark](), NOW, Board()


class Applied:
    """A fix in force, as the guide sees it."""

    def __init__(self, since_ns: int = NOW - SECOND, after: Pace | None = None) -> None:
        self.since_ns, self.before, self._after = since_ns, Pace(9.2, 41.0), after

    def pace(self, _session: object) -> Pace | None:
        return self._after


class Shown:
    """A guide, what it is shown, and what it shows."""

    def __init__(self, words: memoryview[int], name: str, can_apply: bool = True) -> None:
        self.scenario = SCENARIOS[name]
        self.guide, self.session, self._words = Guide(self.scenario, words, can_apply), Session(), words
        self.applied: Any = None
        self.over = ""

    def act(self, act: int, since_s: float, until_s: float = 10.0) -> None:
        now = self.session.now_ns
        self._words[simulated.ACT], self._words[simulated.ACT_SINCE] = act, now - int(since_s * SECOND)
        self._words[simulated.ACT_UNTIL] = now + int(until_s * SECOND)

    def finds(self) -> None:
        """Trouble has its verdict, long enough for the first key to be asked for."""
        self.act(simulated.TROUBLE if self.scenario.turns else simulated.STEADY, 5.0)
        self.session.engine.verdict = Verdict(symptom=self.scenario.symptom, cause=self.scenario.cause)
        self.text()
        self.session.now_ns += NEWS_NS

    def text(self) -> str:
        session: Any = self.session
        line = self.guide.line(session, self.applied, self.over)
        text = "".join(part for part, _ in line)
        assert cell_width(text) <= 78, text
        return text


@pytest.fixture
def words() -> Iterator[memoryview[int]]:
    fd = simulated.create(1)
    yield simulated.attach(fd)
    os.close(fd)


def _holds(words: memoryview[int], session: Session) -> bool:
    return words[simulated.ACT_HOLD] > session.now_ns


def test_a_demo_goes_from_healthy_to_found_and_waits_for_each_key(words: memoryview[int]) -> None:
    shown = Shown(words, "cpu-contention")
    shown.act(simulated.CALM, 1, 6)
    assert "healthy" in shown.text()
    assert "in 6 s" in shown.text()
    shown.act(simulated.TROUBLE, 2)
    assert "two agents take the CPUs" in shown.text()
    shown.session.engine.verdict = Verdict(symptom="input-bound", cause="cpu-contention")
    assert "cpu-contention found after 2 s" in shown.text()
    shown.session.now_ns += NEWS_NS
    for _ in range(3):
        assert "press e" in shown.text()
        shown.session.now_ns += 60 * SECOND
    assert _holds(words, shown.session) is False
    shown.text()
    assert _holds(words, shown.session)
    shown.guide.did("explain")
    shown.over = BOX
    assert "✓e" in shown.text()
    assert "Esc" in shown.text()
    shown.over = ""
    assert "press x" in shown.text()
    shown.guide.did("apply")
    shown.over = QUESTION
    assert "y does it" in shown.text()
    shown.over = ""
    assert "press x" in shown.text(), "a question is no fix"
    shown.applied = Applied()
    assert "✓x" in shown.text()
    assert "is measured" in shown.text()
    shown.applied = Applied(after=Pace(19.4, 97.0))
    assert "9.2 → 19.4 steps/s, 2.1×, GPU 41 → 97 %" in shown.text()
    shown.session.now_ns += RESULT_NS
    assert "press u" in shown.text()
    assert _holds(words, shown.session)
    shown.guide.did("undo_fix")
    shown.applied = None
    assert "✓u" in shown.text()
    assert "press ←" in shown.text()
    shown.guide.did("scrub(-1)")
    shown.session.now_ns += 60 * SECOND
    began = shown.session.now_ns
    ended = {shown.text() for shown.session.now_ns in range(began, began + 4 * RESULT_NS, RESULT_NS)}
    assert any(OWN_NODE in text and FROM_HERE in text for text in ended)
    assert not _holds(words, shown.session)


def test_trouble_that_is_found_as_another_cause_by_turns_is_found(words: memoryview[int]) -> None:
    shown = Shown(words, "straggler")
    shown.act(simulated.TROUBLE, 2)
    (other,) = shown.scenario.also
    shown.session.engine.verdict = Verdict(symptom="input-bound", cause=other)
    assert f"{other} found after 2 s" in shown.text()


def test_keys_are_ticked_in_any_order_and_tab_goes_on_without_one(words: memoryview[int]) -> None:
    shown = Shown(words, "throttled")
    shown.finds()
    shown.guide.did("scrub(-10)")
    shown.guide.did("undo_fix")
    text = shown.text()
    assert "✓←" in text
    assert "✓u" not in text, "nothing was applied"
    assert "press e" in text
    shown.guide.did(SKIP)
    assert "press x" in shown.text()
    assert "✓e" not in shown.text()
    shown.guide.did(SKIP)
    shown.guide.did(SKIP)
    assert OWN_NODE in shown.text(), "the last one was made before"
    shown.guide.did(SKIP)
    shown.text()


def test_where_the_trouble_has_passed_the_key_waits_for_the_next(words: memoryview[int]) -> None:
    shown = Shown(words, "cpu-contention")
    shown.finds()
    shown.guide.did("explain")
    shown.act(simulated.OVER, 5, 12)
    shown.session.engine.verdict = Verdict(symptom="healthy", cause="none")
    assert "again in 12 s; then x" in shown.text()
    shown.act(simulated.END, 0)
    assert "ended" in shown.text()


def test_an_experiment_makes_the_trouble_last_and_its_end_is_told(words: memoryview[int]) -> None:
    shown = Shown(words, "cpu-contention")
    shown.act(simulated.TROUBLE, 5)
    session = shown.session
    session.marks = [Mark(session.now_ns, "experiment begins: log-shipper (903) to idle priority")]
    assert "an experiment" in shown.text()
    assert _holds(words, session)
    told = "proved, 182 → 311 steps/min, 1.7×"
    session.marks.append(Mark(session.now_ns, f"experiment {told}"))
    assert told in shown.text()
    session.marks = [Mark(session.now_ns - 6 * SECOND, one.text) for one in session.marks]  # of trouble before this one
    assert "proved" not in shown.text()


@pytest.mark.parametrize("can_apply", [True, False])
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_each_scenario_shows_what_it_is_and_asks_only_for_keys_that_do_something(
    name: str, can_apply: bool, words: memoryview[int]
) -> None:
    shown = Shown(words, name, can_apply)
    scenario = shown.scenario
    shown.session.engine.verdict = Verdict(symptom="looking", cause="none")
    shown.act(simulated.TROUBLE if scenario.turns else simulated.STEADY, 0)
    assert scenario.summary in shown.text()
    shown.session.engine.verdict = Verdict(symptom=scenario.symptom, cause=scenario.cause)
    assert "found" in shown.text()
    keys = {step.key for step in steps_of(scenario, can_apply)}
    assert ("x" in keys) == (scenario.turns and can_apply)
    assert "e" in keys
    shown.session.now_ns += NEWS_NS
    for step in steps_of(scenario, can_apply):
        assert f"press {step.key}" in shown.text()
        shown.guide.did(SKIP)
