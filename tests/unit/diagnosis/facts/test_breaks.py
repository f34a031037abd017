"""Breaks of a GPU, from its readings alone."""

from __future__ import annotations

import random

import pytest

from gputop.diagnosis.facts.pauses import Breaks

TICK_NS = 100_000_000


def told(readings: list[float]) -> tuple[Breaks, int]:
    """A GPU with these readings, 0..1, one each 100 ms, and the time after them."""
    breaks, t_ns = Breaks(), 10**12
    for util in readings:
        t_ns += TICK_NS
        breaks.note(util, t_ns)
    return breaks, t_ns


def test_what_is_lost_is_counted_with_its_edges():
    breaks, _ = told([1.0] * 6 + [0.4, 0.0, 0.0, 0.0, 0.5] + [1.0] * 6)
    assert breaks.lost_s(0) == pytest.approx(0.1 * (0.6 + 3 * 1.0 + 0.5))


def test_one_that_lasts_counts_as_far_as_it_has_come():
    breaks, t_ns = told([1.0] * 6 + [0.0] * 5)
    assert breaks.lost_s(0) == pytest.approx(0.5)
    assert breaks.lost_s(t_ns - 2 * TICK_NS) == pytest.approx(0.2)


def test_one_that_the_window_has_left_is_forgotten():
    breaks, t_ns = told([1.0] * 6 + [0.0] * 5 + [1.0] * 30)
    assert breaks.lost_s(t_ns - 25 * TICK_NS) == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_a_gpu_whose_every_step_waits_has_none(seed: int):
    chance = random.Random(seed)
    breaks, _ = told([min(1.0, max(0.0, chance.gauss(0.55, 0.2))) for _ in range(300)])
    assert breaks.lost_s(0) < 0.5


@pytest.mark.parametrize("readings", [[0.0] * 50, [1.0] * 50, [1.0] * 6 + [0.0, 0.0] + [1.0] * 6, [1.0, 1.0, 0.0, 0.0, 0.0] * 10])
def test_neither_rest_nor_work_nor_a_blink_is_one(readings: list[float]):
    assert told(readings)[0].lost_s(0) == 0.0


def test_a_gap_in_time_ends_all():
    breaks, t_ns = told([1.0] * 6 + [0.0] * 2)
    breaks.note(0.0, t_ns + 5 * 10**9)
    assert breaks.lost_s(0) == 0.0


def test_a_gpu_that_has_sunk_is_told_from_one_at_rest():
    breaks, t_ns = told([1.0] * 6 + [0.1] * 10 + [1.0] * 3)
    assert breaks.lost_s(0) == 0.0
    assert breaks.sunk_s(0) == pytest.approx(0.9)
    assert breaks.sunk_s(t_ns - 8 * TICK_NS) == pytest.approx(0.45)
    assert told([1.0] * 6 + [0.4] * 20)[0].sunk_s(0) == 0.0
    assert told([1.0] * 6 + [0.1] * 5 + [1.0] * 6)[0].sunk_s(0) == 0.0


def test_a_step_that_waits_is_no_break_however_fine_the_readings_are():
    """60 ms of work and 107 ms of waiting, read every 100 ms: now and then nothing at all, but never for long."""
    breaks, _ = told([1.0] * 10 + [0.33, 0.27, 0.61, 0.0, 0.6] * 6)
    assert breaks.lost_s(0) == 0.0
    assert breaks.spans(0) == []
