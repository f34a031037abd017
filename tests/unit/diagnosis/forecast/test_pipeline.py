"""The queueing model of the input pipeline, in cases that a pencil solves, and what holds for all of them."""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Iterator
from itertools import pairwise

import pytest
from msgspec.structs import replace

from gputop.diagnosis.forecast.pipeline import Band, Fit, Pipeline
from tests.unit.diagnosis.forecast.simulated_loader import Machine, play


def with_workers(one: Pipeline, workers: int) -> Band:
    return one.change(lambda found, fit: (replace(found, workers=workers), fit))


ONE = Pipeline(step=0.1, workers=1, run=0.1, gpu=0.05, gpu_wait=0.05, cpus=8)


def test_two_workers_of_100_ms_feed_a_gpu_of_50_ms():
    """The GPU is the slowest then; one at each end may lose a little to chance."""
    band = with_workers(ONE, 2)
    assert band.factor == pytest.approx(2.0, rel=1e-4)
    assert 1.7 < band.low <= band.factor <= band.high == pytest.approx(2.0, rel=1e-3)
    assert with_workers(ONE, 8).factor == pytest.approx(2.0, rel=1e-4)


def test_workers_share_a_cpu():
    assert with_workers(replace(ONE, cpus=1.0), 4).factor == pytest.approx(1.0, rel=0.01)


def test_workers_that_are_ahead_of_the_gpu_bring_nothing_and_may_go():
    """Four of them take 40 ms of each 100 ms: at two they take 80 ms, at one 160 ms."""
    idle = Pipeline(step=0.1, workers=4, run=0.16, gpu=0.1, gpu_wait=0.1, cpus=8)
    assert [with_workers(idle, count).factor for count in (8, 2, 1)] == pytest.approx([1.0, 1.0, 0.625], rel=1e-3)


def test_a_hog_of_one_thread_takes_a_third_of_two_cpus_from_two_workers():
    """Three threads on two CPUs: all take 1.5 times as long. With four workers they are five on two."""
    kept = Pipeline(step=0.075, workers=2, run=0.1, ready=0.05, gpu=0.01, gpu_wait=0.01, cpus=2, others=0.667)
    assert kept.change(lambda one, fit: (one, replace(fit, crowd=0.0, kept=0.0))).factor == pytest.approx(1.5, rel=0.01)
    assert with_workers(kept, 4).factor == pytest.approx(1.2, rel=0.01)


def test_more_workers_get_no_more_of_a_cpu_from_a_session_that_weighs_as_much_as_theirs():
    """One worker and one hog on two CPUs: with autogroup a second worker gets nothing of the hog's CPU; else both run two thirds."""
    beside = Pipeline(step=0.1, workers=1, run=0.1, gpu=0.01, gpu_wait=0.01, cpus=2, others=1.0, grouped=True)
    assert with_workers(beside, 4).factor == pytest.approx(1.0, rel=0.05)
    band = with_workers(replace(beside, grouped=False), 2)
    assert band.factor == pytest.approx(4 / 3, rel=0.05)
    assert band.low < 1.0, "nobody knows what the strangers weigh"


def test_a_hog_that_yields_is_less_than_its_cpu_time():
    """A niced one takes half a CPU and keeps nobody waiting: it is no thread among the workers."""
    kept = Pipeline(step=0.05, workers=2, run=0.1, ready=0.0, gpu=0.01, gpu_wait=0.01, cpus=2, others=0.5)
    assert kept.change(lambda one, fit: (one, replace(fit, crowd=0.0, kept=0.0))).factor == pytest.approx(1.0, rel=0.01)


def test_waits_apart_from_the_cpu_are_shared_by_more_workers():
    remote = Pipeline(step=0.1, workers=1, run=0.02, apart=0.08, gpu=0.01, gpu_wait=0.01, cpus=1)
    assert with_workers(remote, 4).factor == pytest.approx(4.0, rel=0.2)
    assert with_workers(remote, 20).factor == pytest.approx(5.0, rel=0.02)  # the one CPU is full


def test_a_disk_that_delivers_all_it_can_is_no_faster_for_more_workers():
    slow = Pipeline(step=0.1, workers=2, run=0.02, disk=0.18, gpu=0.01, gpu_wait=0.01, cpus=4, disk_used=1.0)
    assert with_workers(slow, 4).factor == pytest.approx(1.0, rel=0.01)
    assert slow.change(lambda one, fit: (replace(one, disk=0.0), fit)).factor == pytest.approx(10.0, rel=0.02)


def test_the_main_thread_loads_beside_nothing():
    """80 ms of loading and 20 ms of the GPU in turn: beside one another the slower takes its 80, two workers leave 40."""
    alone = Pipeline(step=0.1, workers=0, run=0.08, gpu=0.02, gpu_wait=0.02, cpus=4)
    assert [with_workers(alone, count).factor for count in (1, 2, 8)] == pytest.approx([1.25, 2.5, 5.0], rel=1e-3)


def test_fewer_workers_than_one_load_in_the_main_thread():
    assert with_workers(ONE, 0).factor == pytest.approx(0.1 / 0.15, rel=1e-3)


def test_a_quota_holds_whatever_the_workers():
    held = Pipeline(step=0.1, workers=2, run=0.1, throttled=0.1, gpu=0.01, gpu_wait=0.01, cpus=8, quota=1.0)
    assert with_workers(held, 8).factor == pytest.approx(1.0, rel=0.01)
    assert held.change(lambda one, fit: (replace(one, quota=None), fit)).factor == pytest.approx(2.0, rel=0.01)


def test_what_no_stage_explains_stays():
    """Both sides idle for half of the step: whatever delays them, it is not the workers' number."""
    odd = Pipeline(step=0.1, workers=1, run=0.02, gpu=0.02, gpu_wait=0.02, cpus=4)
    assert with_workers(odd, 8).factor < 1.5


def made(count: int) -> Iterator[Pipeline]:
    chance = random.Random(7)
    for _ in range(count):
        workers, cpus = chance.randint(1, 12), float(chance.choice((1, 2, 4, 8, 64)))
        run, gpu, own = chance.uniform(0.01, 0.9) * min(workers, cpus), chance.uniform(0.0, 0.6), chance.uniform(0.0, 0.1)
        yield Pipeline(
            workers=workers, run=run, ready=chance.random() * (workers - run), own=own, gpu=gpu, gpu_wait=gpu * chance.random(), cpus=cpus,
            others=chance.choice((0.0, chance.random() * (cpus - run))), disk=chance.choice((0.0, 0.05)),
        )  # fmt: skip


@pytest.mark.parametrize("one", made(60), ids=range(60))
def test_no_factor_is_beyond_what_cpus_and_gpu_can_do(one: Pipeline):
    """Nor is a band the wrong way round."""
    for count in (1, one.workers, 2 * one.workers, 32):
        factor, low, high = with_workers(one, count)
        assert low <= factor <= high
        assert factor <= 1.0 / max(one.gpu or 0.0, one.run / one.cpus, 1e-9) * 1.001
    assert with_workers(one, one.workers).factor == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("one", made(60), ids=range(60))
def test_more_workers_hurt_only_where_cpus_are_short(one: Pipeline):
    """Threads for which there are CPUs do not wait for one another."""
    roomy = replace(one, ready=0.0, others=0.0, cpus=256.0)
    factors = [with_workers(roomy, count).factor for count in (1, 2, 4, 8, 16)]
    assert all(after >= before * 0.999 for before, after in pairwise(factors))


def test_a_change_of_nothing_brings_nothing():
    def nothing(one: Pipeline, fit: Fit) -> tuple[Pipeline, Fit]:
        return one, fit

    assert all(one.change(nothing).factor == pytest.approx(1.0) for one in made(20))


def changed(chance: random.Random) -> tuple[float, Band]:
    """A made machine and one change: how much faster it really is, and what was predicted."""
    before = Machine(
        workers=chance.choice((1, 2, 3, 4, 6, 8)), run=chance.choice((5, 10, 20, 40)), asleep=chance.choice((0, 0, 20, 60)),
        own=chance.choice((0, 1, 4, 10)), gpu=chance.choice((2, 8, 15, 30)), cpus=chance.choice((1, 2, 4, 8)),
        hogs=chance.choice((0, 0, 1, 2, 4)), duty=chance.choice((1.0, 1.0, 0.5)), uneven=chance.choice((0.0, 0.3, 0.9)),
        every=chance.choice((1, 1, 10)),
    )  # fmt: skip
    seen, pace = play(before, 5.0, 1)
    kind, count = chance.choice(("workers", "workers", "hogs", "cpus", "gpu")), chance.choice((1, 2, 4, 8, 12))
    changes = {
        "workers": ({"workers": count}, lambda one, fit: (replace(one, workers=count), fit)),
        "hogs": ({"hogs": 0}, lambda one, fit: (one, replace(fit, crowd=0.0, kept=0.0))),
        "cpus": ({"cpus": 2 * before.cpus}, lambda one, fit: (replace(one, cpus=2 * one.cpus), fit)),
        "gpu": ({"gpu": before.gpu / 2}, lambda one, fit: (replace(one, gpu=one.gpu / 2), fit)),
    }  # fmt: skip
    other, change = changes[kind]
    return play(dataclasses.replace(before, **other), 5.0, 2)[1] / pace, seen.change(change)


def test_simulated_machines_do_what_was_predicted():
    """Real threads before real CPUs are compared by `make what-if`."""
    chance = random.Random(11)
    found = [changed(chance) for _ in range(40)]
    assert statistics.median(abs(band.factor / real - 1.0) for real, band in found) <= 0.05
    far = [(real, band) for real, band in found if abs(band.factor / real - 1.0) > 0.3 and not band.low <= real <= band.high]
    assert len(far) <= 1
    assert sum(0.97 * band.low <= real <= 1.03 * band.high for real, band in found) >= 38
    assert max(real for real, _ in found) > 1.8, "some changes matter"
