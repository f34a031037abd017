"""The caption of `gputop demo`: each act's words, when the cause is found, and an experiment makes the trouble last."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from gputop.commands.demo import HINT_NS, NEWS_NS, Story
from gputop.demo.scenarios import SCENARIOS
from gputop.findings.verdict import Verdict
from gputop.model.board import Board
from gputop.model.frame import Mark
from gputop.sources import simulated

SECOND = 1_000_000_000


class Engine:
    verdict = Verdict(symptom="healthy", cause="none")


class Session:
    def __init__(self) -> None:
        self.engine, self.marks, self.now_ns, self.board = Engine(), list[Mark](), 1000 * SECOND, Board()


@pytest.fixture
def words() -> Iterator[memoryview[int]]:
    fd = simulated.create(1)
    yield simulated.attach(fd)
    os.close(fd)


def _story(words: memoryview[int], name: str = "cpu-contention") -> tuple[Story, Any]:
    return Story(SCENARIOS[name], words), Session()


def _set(words: memoryview[int], act: int, since_s: float, until_s: float = 10.0) -> None:
    now = 1000 * SECOND
    words[simulated.ACT], words[simulated.ACT_SINCE] = act, now - int(since_s * SECOND)
    words[simulated.ACT_UNTIL] = now + int(until_s * SECOND)


def test_a_story_goes_from_healthy_to_found_to_over(words: memoryview[int]) -> None:
    story, session = _story(words)
    said = []

    def say() -> str:
        said.append(story.caption(session))
        return said[-1]

    _set(words, simulated.CALM, 1, 6)
    assert "healthy" in say()
    assert say().endswith("in 6 s")
    _set(words, simulated.TROUBLE, 2)
    assert "two agents take the CPUs" in say()
    session.engine.verdict = Verdict(symptom="input-bound", cause="cpu-contention")
    assert "cpu-contention found after 2 s" in say()
    story._found = dict.fromkeys(story._found, session.now_ns - NEWS_NS)
    assert "e shows why" in say()
    story._found = dict.fromkeys(story._found, session.now_ns - NEWS_NS - HINT_NS)
    assert "s shows the stacks" in say()
    _set(words, simulated.OVER, 5)
    assert "the GPU comes back" in say()
    session.engine.verdict = Verdict(symptom="healthy", cause="none")
    assert "goes back to the dip" in say()
    _set(words, simulated.OVER, (NEWS_NS + 1.5 * HINT_NS) / SECOND)
    assert "SIM sync: the simulated CUDA" in say()
    _set(words, simulated.END, 0)
    assert "ended" in say()
    assert max(map(len, said)) <= 77


def test_an_experiment_makes_the_trouble_last_and_its_end_is_told(words: memoryview[int]) -> None:
    story, session = _story(words)
    _set(words, simulated.TROUBLE, 5)
    session.marks = [Mark(session.now_ns, "experiment begins: log-shipper (903) to idle priority")]
    assert "an experiment" in story.caption(session)
    assert words[simulated.ACT_HOLD] > session.now_ns
    told = "proved, 182 → 311 steps/min, 1.7×, 1.6 to 1.8: log-shipper (903) to idle priority"
    session.marks.append(Mark(session.now_ns, f"experiment {told}"))
    assert "3/4 proved, 182 → 311 steps/min" in story.caption(session)
    session.marks = [Mark(session.now_ns - 6 * SECOND, one.text) for one in session.marks]  # of trouble before this one
    assert "proved" not in story.caption(session)


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_each_scenario_says_what_it_shows(name: str, words: memoryview[int]) -> None:
    story, session = _story(words, name)
    scenario = SCENARIOS[name]
    session.engine.verdict = Verdict(symptom="looking", cause="none")
    _set(words, simulated.TROUBLE if scenario.turns else simulated.STEADY, 0)
    assert scenario.summary.partition(" (needs")[0] in story.caption(session)
    session.engine.verdict = Verdict(symptom=scenario.symptom, cause=scenario.cause)
    told = story.caption(session)
    assert "found" in told
    assert len(told) <= 77
