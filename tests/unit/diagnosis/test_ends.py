"""A training that ends lets go of its workers, its modules and its GPU, and wants none of it any more."""

from __future__ import annotations

import pytest

from gputop.findings.verdict import LOOKING
from tests.unit.diagnosis.causes import alone, starved
from tests.unit.diagnosis.scene import FUTEX, ON_CPU, Scene

STEPS = {(100, "cuMemcpyHtoDAsync"): (10, 0.05, 10 << 20), (100, "cuStreamSynchronize"): (10, 0.3, 0)}


def ending(scene: Scene, seconds: float) -> Scene:
    """Its workers are gone, its GPU rests, its main thread takes the interpreter down."""
    scene.drop(101, 102).gpus[0] |= {"util_pct": 0.0, "sm_active_pct": 0.0}
    scene.procs[100].run, scene.procs[100].looks = 0.95, [ON_CPU]
    return scene.play(seconds)


@pytest.mark.parametrize("then", ["gone", "dead", "the stream ends"])
def test_taking_down_what_is_done_is_no_loss(then: str):
    """Nor where the stream ends with the command, before anybody could see it gone, or its parent asked for it."""
    scene = ending(alone(98.0, 0.1, [FUTEX]).play(6), 1.6)
    assert scene.engine.verdict.symptom == LOOKING
    assert " has let its workers go: " in scene.engine.verdict.headline
    if then == "gone":
        scene.drop(100).play(3)
    elif then == "dead":
        scene.procs[100].looks = [{"state": "Z"}]
        scene.play(0.2)
    found = scene.engine.explain()
    assert found.verdict.symptom == "healthy"
    assert found.ledger.gpu_lost_s < 0.2


@pytest.mark.parametrize("gone", [True, False])
def test_what_was_lost_before_is_put_down_to_what_it_was(gone: bool):
    scene = ending(starved(util=10.0, run=1.0, looks=[ON_CPU]).play(6), 1.6)
    if gone:
        scene.drop(100).play(3)
    found = scene.engine.explain()
    assert found.ledger.by_cause["too-few-workers"] >= 0.95 * found.ledger.gpu_lost_s
    assert found.ledger.gpu_lost_s == pytest.approx(0.9 * 6, abs=0.4)
    assert [one.cause for one in found.incidents] == ["too-few-workers"]
    assert found.incidents[0].gpu_lost_s == pytest.approx(found.ledger.by_cause["too-few-workers"], abs=0.02)


def test_one_that_goes_on_without_workers_is_judged_again():
    scene = ending(alone(98.0, 0.1, [FUTEX]).play(6), 5.0)
    assert scene.engine.verdict.cause in ("pause", "main-thread-preprocessing")
    assert scene.engine.explain().ledger.gpu_lost_s > 3.5


def test_one_that_works_its_gpu_without_them_is_not_left_unjudged():
    scene = alone(98.0, 0.1, [FUTEX]).play(6).drop(101, 102)
    assert scene.play(1).engine.verdict.symptom == "healthy"


def test_the_pace_is_that_of_the_training_also_when_it_is_over():
    scene = alone(98.0, 0.1, [FUTEX])
    scene.probed, scene.calls = True, dict(STEPS)
    scene.play(6).calls = dict.fromkeys(STEPS, (0, 0.0, 0))
    assert ending(scene, 1.6).engine.explain().verdict.steps_per_s == pytest.approx(10.0, abs=0.5)
    assert scene.drop(100).play(3).engine.explain().verdict.steps_per_s == pytest.approx(10.0, abs=0.5)
