"""Fixes are spelt as the training's own loader is."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputop.diagnosis.measure.feeders import more_in_flight, with_workers
from gputop.model.roles import Role
from tests.unit.diagnosis.causes import alone, too_few
from tests.unit.diagnosis.causes_behind import threads_on_the_disk
from tests.unit.diagnosis.scene import ON_CPU, Scene


def job(scene: Scene):
    facts = scene.play(6).engine.facts
    assert facts is not None
    return facts.jobs[0]


def test_torchs_workers():
    assert with_workers(job(too_few()), 4, "prefetch_factor=4") == "DataLoader(..., num_workers=4, prefetch_factor=4)"


@pytest.mark.parametrize(
    ("loader", "spelt"),
    [
        ("torch", "multiprocessing.Pool(4)"),
        ("multiprocessing", "multiprocessing.Pool(4)"),
        ("grain", "grain.MultiprocessingOptions(num_workers=4)"),
        ("tensorflow", "dataset.map(..., num_parallel_calls=4).prefetch(4)"),
        ("dali", "Pipeline(..., num_threads=4)"),
    ],
)
def test_workers_of_another_library_and_those_that_a_script_made(loader: str, spelt: str):
    found = job(too_few())
    first = replace(found.workers[0], role=Role("worker", loader=loader))
    assert with_workers(replace(found, is_torchs=False, workers=[first]), 4, "prefetch_factor=4") == spelt


@pytest.mark.parametrize(("libs", "spelt"), [(["torch"], "DataLoader(..., num_workers=4)"), (["jax"], "multiprocessing.Pool(4)")])
def test_a_trainer_without_workers_gets_those_of_a_library_that_it_has(libs: list[str], spelt: str):
    scene = alone(40.0, 0.6, [ON_CPU]).drop(101, 102)
    scene.procs[100].info["libs"] = libs
    assert with_workers(job(scene), 4) == spelt


def test_how_many_threads_read_is_their_authors_business():
    reading = threads_on_the_disk()
    assert more_in_flight(job(reading)) == ""
    assert reading.engine.verdict.cause == "disk-io"
    assert [fix.command for fix in reading.engine.verdict.fixes if "in flight" in fix.text] == [""]
