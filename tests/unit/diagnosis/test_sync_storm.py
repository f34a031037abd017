"""sync-storm without the probe: who sleeps often need not wait for the GPU, and who spins is met at it."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import msgspec
import pytest

from gputop.diagnosis.facts.points import _met
from gputop.model.frame import MainSamples
from tests.unit.diagnosis.causes_gpu import sync_storm

NOTHING = MainSamples(1, 0, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(("sleeps", "batches", "written", "is_storm"), [
    (1500, 40, 0, True), (900, 45, 0, False), (1500, 40, 3_000_000, False), (1500, 40, 300_000, True),
])  # fmt: skip
def test_sleeps_are_a_storm_where_steps_and_writes_do_not_make_them(sleeps: int, batches: int, written: int, is_storm: bool):
    """Two workers with so many batches each."""
    scene = sync_storm()
    scene.procs[100].switches, scene.procs[100].write_bytes = sleeps, written
    for pid in (101, 102):
        scene.procs[pid].switches = batches
    assert (scene.play(6).engine.verdict.cause == "sync-storm") == is_storm


@pytest.mark.parametrize(("wait_s", "other_s"), [(0.0002, 0.0002), (0.0005, 0.001), (0.004, 0.004), (0.05, 0.02), (0.00034, 0.00008)])
def test_waits_that_samples_miss_are_estimated(wait_s: float, other_s: float):
    """Of random lengths, looked at every half millisecond for as long as a window's samples reach."""
    chance, period_s, spans = random.Random(5), 0.0005, 40.0
    t_s, waiting, met, looked_s = 0.0, False, [], 0.0
    while t_s < spans:
        until_s = t_s + chance.expovariate(1.0 / (wait_s if waiting else other_s))
        while looked_s < until_s:
            met.append(waiting)
            looked_s += period_s
        t_s, waiting = until_s, not waiting
    begun = sum(now and not before for before, now in pairwise(met))
    waited_ns = round(sum(met) * period_s * 1e9)
    found = _met(NOTHING, MainSamples(1, round(spans * 1e9), waited_ns, 0, 0, begun, len(met), sum(met)))
    assert found is not None
    true = 1.0 / (wait_s + other_s)
    assert true / 2 <= found.waits_per_s <= 2 * true or found.waits_per_s >= 400.0
    assert math.isclose(found.sync, wait_s / (wait_s + other_s), rel_tol=0.15)


def test_what_was_sampled_before_the_window_stands_where_it_has_no_more():
    one = MainSamples(1, 500_000_000, 250_000_000, 0, 0, 10, 800, 500)
    assert _met(one, one) == _met(NOTHING, one)
    assert _met(NOTHING, NOTHING) is None


def test_a_driver_that_is_not_understood_tells_nothing():
    """Whose waits stand in no function that it exports."""
    one = MainSamples(1, 500_000_000, 20_000_000, 0, 0, 10, 800, 40, unknown_ns=300_000_000)
    assert _met(NOTHING, one) is None
    assert _met(NOTHING, msgspec.structs.replace(one, sync_ns=310_000_000)) is not None
    assert _met(NOTHING, msgspec.structs.replace(one, unknown_ns=40_000_000)) is not None
