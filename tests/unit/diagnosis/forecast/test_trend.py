"""What grows steadily, and what only looks so for a while."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, log
from random import Random

import pytest

from gputop.diagnosis.forecast.trend import Steady, Trend

MIB, HOUR_S, START_NS = 1 << 20, 3600, 10**15


def told(of: Callable[[float], float], seconds: int, every_s: float = 1.0) -> list[tuple[float, Steady]]:
    """(s, growth) of each reading at which ``of`` was found to grow."""
    trend, found = Trend(), []
    for n in range(int(seconds / every_s)):
        trend.add(of(n * every_s), START_NS + int(n * every_s * 1e9))
        if trend.steady is not None:
            found.append((n * every_s, trend.steady))
    return found


def test_steady_growth_is_found_in_24_s_with_its_rate():
    found = told(lambda s: (500 + 5 * s) * MIB, 60)
    assert 20 < found[0][0] <= 25
    assert {round(one.per_s) for _, one in found} == {5 * MIB}
    assert all(one.low_per_s <= one.per_s <= one.high_per_s and one.to_come == inf for _, one in found)


def test_the_band_holds_the_rate_nine_times_of_ten_beneath_batches_that_come_and_go():
    inside = 0
    for seed in range(40):
        chance = Random(seed)
        _, last = told(lambda s, chance=chance: (0.3 * s + 80 * chance.random()) * MIB, 1500)[-1]
        assert last.per_s == pytest.approx(0.3 * MIB, rel=0.1)
        inside += last.low_per_s <= 0.3 * MIB <= last.high_per_s
    assert 32 <= inside <= 40


def test_half_a_day_is_seen_where_it_grows_by_a_megabyte_a_minute():
    chance = Random(1)
    (first_s, _), *_, (_, last) = told(lambda s: (s / 60 + 30 * chance.random()) * MIB, 14 * HOUR_S, 3.0)
    assert first_s < 2 * HOUR_S
    assert last.seconds > 11 * HOUR_S
    assert last.per_s == pytest.approx(MIB / 60, rel=0.05)


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_does_not_grow(seed: int):
    chance = Random(seed)
    assert told(lambda _: 100 * chance.random(), 2 * HOUR_S) == []


def test_an_allocator_that_takes_a_piece_now_and_then_does_not_grow():
    longest = lambda s: 20 * MIB * int(3 * log(1 + s))  # noqa: E731 (longer sequences come ever more rarely)
    assert told(longest, 4 * HOUR_S) == []
    assert told(lambda s: 512 * MIB * int(s / 900), 1700) == []


def test_pieces_that_are_taken_again_and_again_grow():
    [*_, (_, last)] = told(lambda s: 20 * MIB * int(s / 37), HOUR_S)
    assert last.per_s == pytest.approx(20 * MIB / 37, rel=0.1)


def test_what_fills_and_empties_in_each_epoch_grows_in_the_first_alone():
    assert max(s for s, _ in told(lambda s: (s % 120) * 10 * MIB, HOUR_S)) < 130


def test_epochs_that_leave_something_behind_grow():
    _, last = told(lambda s: (s % 120 + s / 60) * 10 * MIB, 2 * HOUR_S)[-1]
    assert last.per_s == pytest.approx(MIB / 6, rel=0.1)


@pytest.mark.parametrize("filled_s", [30.0, 300.0])
def test_a_cache_that_is_read_at_random_never_says_that_more_than_its_size_is_to_come(filled_s: float):
    found = told(lambda s: 4096 * MIB * (1 - exp(-s / filled_s)), int(6 * filled_s))
    assert found
    assert all(one.to_come < 4096 * MIB or s < 60 for s, one in found)  # before that it is a straight line


def test_growth_that_has_ended_is_soon_none():
    assert max(s for s, _ in told(lambda s: 10 * MIB * min(s, 60.0), 600)) <= 85
    assert max(s for s, _ in told(lambda s: 10 * MIB * min(s, 1200.0), 4000)) <= 1600


def test_a_gap_that_is_longer_than_it_can_bridge_begins_a_new_trend():
    trend = Trend()
    for s in [*range(60), *range(600, 612)]:
        trend.add(s * MIB, START_NS + s * 10**9)
    assert trend.steady is None


def test_one_large_step_is_no_part_of_any_growth():
    found = told(lambda s: (s / 100 + 500 * (s > 300)) * MIB, HOUR_S)
    assert found
    assert max(one.grown for _, one in found) < 100 * MIB
