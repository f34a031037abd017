"""Each scene of `EXPECTED` is played once for each pace, and all that holds of every scene is looked at."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest

from gputop.diagnosis import Engine
from gputop.diagnosis.causes import judges
from gputop.findings.explanation import Explanation, from_elsewhere
from gputop.findings.path import sentence, who
from gputop.findings.sentence import pack, plain, unpack
from gputop.findings.verdict import PATH_STATES, TRAINER_STATES, WORKER_STATES, Verdict
from tests.corpus.judging import contradictions
from tests.unit.diagnosis.all_causes import ALL
from tests.unit.diagnosis.scene import Scene

UNADVISED = ("unexplained",)  # causes for which nothing is to be changed yet

ELSEWHERE = ("gpu-lost", "output-blocked", "pause", "worker-respawn")  # their scenes stand in tests of their own

PACES = [
    pytest.param(make, step_s, marks=pytest.mark.soak if step_s < 1.0 and number % 3 else (), id=f"{make.__name__}-{step_s}")
    for number, make in enumerate(ALL) for step_s in (0.2, 1.0)
]  # fmt: skip
"""Each scene at a look a second, every third also at five; the other two thirds are `make soak`."""


@pytest.mark.parametrize(("make", "step_s"), PACES)
def test_cause_is_named(make: Callable[[], Scene], step_s: float) -> None:
    scene = make()
    worked = dict(scene.gpus[0])
    if not scene.engine.fed_ns:  # or it has played its beginning itself
        scene.gpus[0]["util_pct"] = 100.0
        scene.play(1.0, step_s)
        scene.gpus[0] = worked
    scene.play(12, step_s)
    explained = scene.engine.explain()
    verdict = scene.engine.verdict
    assert (verdict.symptom, verdict.cause) == ALL[make]
    assert (explained.verdict.symptom, explained.verdict.cause) == ALL[make]
    assert verdict.detail
    assert verdict.fixes
    assert verdict.cause in UNADVISED or not verdict.fixes[0].look, "something is to be changed, and not only looked at"
    assert [*contradictions(explained)] == []
    assert all(evidence.text and evidence.metric for evidence in verdict.evidence)
    has_its_walk(verdict)
    is_kept(scene.engine, explained)
    keeps_to_its_lists(scene.engine)


def test_each_cause_has_a_scene() -> None:
    found = {cause for _, cause in ALL.values()}
    assert {judge.cause for judge in judges()} - found <= {*ELSEWHERE}, "write scenes in causes.py, for it and against it, and list them"
    assert not found & {*ELSEWHERE}


def has_its_walk(verdict: Verdict) -> None:
    """From somebody of the job or its GPU; each share is one, each state has words, and who is waited for comes next."""
    assert verdict.path
    assert all(0.0 <= step.share <= 1.0 and step.state in PATH_STATES for step in verdict.path)
    assert verdict.path[0].pid is not None or verdict.path[0].name.startswith("GPU ")
    assert all(one.on.startswith(who(other.pid, other.name)) for one, other in pairwise(verdict.path) if other.pid is not None)
    assert 0.0 < verdict.confidence <= 1.0
    assert sentence(verdict.path)


def is_kept(engine: Engine, explained: Explanation) -> None:
    """A recording gives back what was said."""
    assert from_elsewhere(unpack(pack(engine.found()), Explanation)) == explained
    assert msgspec.json.encode(explained) == msgspec.json.encode(plain(engine.found()))


def keeps_to_its_lists(engine: Engine) -> None:
    facts = engine.facts
    assert facts is not None
    for job in facts.jobs:
        assert set(job.trainer.state.fractions) <= set(TRAINER_STATES)
        assert {word for worker in job.workers for word in worker.state.fractions} <= set(WORKER_STATES)
