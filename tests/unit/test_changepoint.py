"""The moment from which a run is slower: told of real step times, and of nothing that only looks like it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from math import exp, log, sqrt
from typing import NamedTuple

import pytest

from gputop.findings.changepoint import PaceChange, Point, StepCount, find, find_counted, points_of
from gputop.findings.intervals import Level, beside, between, between_runs, level, t_quantile

NEAR_S = 5.0  # within which the moment is told


class Run(NamedTuple):
    """How a run makes its steps."""

    step_s: float = 0.2
    slower: float = 0.0  # relative, from ``onset_s`` on
    onset_s: float = 420.0
    seconds: float = 780.0
    noise: float = 0.05  # standard deviation of a step's logarithm
    alike: float = 0.6  # correlation of a step with the next
    checkpoint_s: float = 3.0  # each 200 steps
    evaluation: tuple[int, float, float] = (0, 0.0, 1.0)  # each so many steps, for so many seconds, with steps of so many times the length
    grows: float = 0.0  # relative growth of a step over the run, as sequences grow
    warm_up: float = 1.5  # relative length of the first steps beyond the usual, declining over 40 steps
    look_s: float = 0.5  # from one reading to the next
    bytes_along: bool = False  # whether the bytes of a step follow its length
    swings: tuple[float, float] = (0.0, 1.0)  # standard deviation of the machine's own pace, and for how many seconds it stays alike
    hiccups: tuple[int, float] = (0, 1.0)  # each so many steps, a step of so many times the length


def readings(run: Run, seed: int) -> list[StepCount]:
    """Counters of the run, as they are read."""
    rng, t_s, wave, found = random.Random(seed), 0.0, 0.0, list[StepCount]()
    count, moved, due_s, evaluated_s, swing = 0, 0.0, 0.0, 0.0, 0.0

    def read(until_s: float) -> None:
        nonlocal due_s
        while due_s < until_s:
            found.append(StepCount(due_s, count, moved))
            due_s += run.look_s

    while t_s < run.seconds:
        every, lasts_s, length = run.evaluation
        wave = run.alike * wave + sqrt(1.0 - run.alike**2) * rng.gauss(0.0, run.noise)
        own = 1.0 + run.grows * t_s / run.seconds
        if run.bytes_along:
            own *= 1.0 + run.slower * (t_s >= run.onset_s)
        step_s = run.step_s * own * exp(wave) * (1.0 + run.warm_up * exp(-count / 40))
        step_s *= 1.0 + run.slower * (t_s >= run.onset_s and not run.bytes_along)
        if run.swings[0]:
            stays = exp(-run.step_s / run.swings[1])
            swing = stays * swing + sqrt(1.0 - stays**2) * rng.gauss(0.0, run.swings[0])
            step_s *= exp(swing)
        if run.hiccups[0] and count % run.hiccups[0] == 0:
            step_s *= run.hiccups[1]
        if evaluated_s > 0.0:
            step_s *= length
            evaluated_s -= step_s
        elif every and count % every == every - 1:
            evaluated_s = lasts_s
            if not length:
                read(t_s + lasts_s)
                t_s, evaluated_s = t_s + lasts_s, 0.0
        if run.checkpoint_s and count % 200 == 199:
            step_s += run.checkpoint_s * rng.uniform(0.8, 1.2)
        read(t_s + step_s)
        t_s, count, moved = t_s + step_s, count + 1, moved + 1e6 * own
    return found


def told(run: Run, seed: int) -> PaceChange | None:
    return find_counted(readings(run, seed))


def pairs() -> Iterator[tuple[float, Run]]:
    """Twenty runs with slowdowns of 3 to 40 %, of all kinds of work."""
    kinds = [
        Run(), Run(step_s=0.05, noise=0.1), Run(step_s=0.6, noise=0.03, seconds=1300.0, onset_s=800.0), Run(evaluation=(900, 30.0, 0.0)),
        Run(evaluation=(1100, 25.0, 0.5), alike=0.3), Run(grows=0.1, noise=0.03), Run(warm_up=6.0, checkpoint_s=6.0),
        Run(alike=0.8, noise=0.04), Run(step_s=0.12, onset_s=260.0, seconds=460.0),
        Run(step_s=0.3, look_s=1.0, checkpoint_s=0.0, seconds=1100.0, onset_s=700.0),
    ]  # fmt: skip
    for i in range(20):
        slower = 0.03 + 0.37 * (i / 19) ** 1.3
        yield slower, kinds[i % len(kinds)]._replace(slower=slower)


@pytest.mark.parametrize(("slower", "run"), pairs())
def test_what_makes_a_run_slower_is_told_with_its_moment(slower: float, run: Run) -> None:
    found = told(run, seed=round(1e4 * slower))
    if slower < 0.08 and found is None:
        return  # so little may pass
    assert found is not None
    assert abs(found.since_s - run.onset_s) <= NEAR_S or slower < 0.08
    assert found.low_s <= found.since_s <= found.high_s
    assert found.slower.low_pct - 2.0 <= 100 * slower <= found.slower.high_pct + 2.0
    assert found.after_s > found.before_s


WITHOUT = [
    *(run._replace(slower=0.0) for _, run in list(pairs())[:10]),
    Run(grows=0.4), Run(grows=0.9, noise=0.02), Run(evaluation=(700, 45.0, 0.4)), Run(evaluation=(700, 50.0, 1.6)),
    Run(noise=0.15, alike=0.9), Run(warm_up=10.0, seconds=260.0), Run(slower=0.3, bytes_along=True), Run(slower=-0.2),
    Run(checkpoint_s=12.0, evaluation=(1500, 60.0, 0.0)), Run(step_s=1.2, noise=0.08, seconds=2400.0),
]  # fmt: skip


@pytest.mark.parametrize("run", WITHOUT)
def test_nothing_is_told_of_a_run_that_keeps_its_pace(run: Run) -> None:
    for seed in range(2):
        assert told(run, seed) is None


@pytest.mark.parametrize("more", [
    {"evaluation": (900, 25.0, 0.5)}, {"evaluation": (1200, 40.0, 1.5)}, {"hiccups": (50, 10.0), "step_s": 0.05},
])  # fmt: skip
def test_evaluations_of_a_sixth_of_the_time_and_long_steps_hide_no_slowdown_and_move_no_moment(more: dict[str, object]) -> None:
    run = Run(slower=0.12, onset_s=410.0, seconds=900.0, checkpoint_s=0.0, **more)  # type: ignore[arg-type]
    for seed in range(2):
        found = told(run, seed)
        assert found is not None
        assert found.low_s <= run.onset_s <= found.high_s
        assert abs(found.since_s - run.onset_s) <= 2 * NEAR_S
        assert found.slower.pct == pytest.approx(12, abs=2)
        assert told(run._replace(slower=0.0), seed) is None


def test_a_slowdown_that_has_ended_is_none_now() -> None:
    seen = readings(Run(slower=0.25, onset_s=200.0, seconds=420.0), 5)
    back = [StepCount(seen[-1].t_s + one.t_s, seen[-1].steps + one.steps) for one in readings(Run(seconds=200.0, warm_up=0.0), 6)]
    assert find_counted(seen) is not None
    assert find_counted([*seen, *back]) is None


def test_it_is_told_after_a_minute_and_a_quarter_and_not_before() -> None:
    seen = readings(Run(slower=0.3), 3)
    first = next(end_s for end_s in range(430, 600, 5) if find_counted([one for one in seen if one.t_s <= end_s]) is not None)
    assert 420 + 75 <= first <= 420 + 110


def test_intervals_of_the_moment_and_of_the_change_hold_as_often_as_they_promise() -> None:
    shapes = (Run(), Run(step_s=0.5, alike=0.8), Run(swings=(0.015, 90.0)), Run(step_s=0.08, noise=0.2), Run(hiccups=(37, 4.0)))
    held = [
        (found.low_s <= 300.0 <= found.high_s, found.slower.low <= log(1.15) <= found.slower.high)
        for shape in shapes for seed in range(16)
        if (found := told(shape._replace(slower=0.15, onset_s=300.0, seconds=520.0), seed)) is not None
    ]  # fmt: skip
    assert len(held) >= 0.8 * 80
    assert sum(moment for moment, _ in held) >= 0.9 * len(held)
    assert sum(change for _, change in held) >= 0.85 * len(held), "swings of minutes are longer than what is seen of a level"


@pytest.mark.parametrize("lasts_s", [3.0, 6.0, 12.0])
def test_steps_about_a_time_in_which_a_run_stands_still_are_as_long_as_others(lasts_s: float) -> None:
    """The run stood still for a part of the seconds before and after as well, which is no pace."""
    found = [StepCount(t, int(5 * min(t, 60.3) + 5 * max(0.0, t - 60.3 - lasts_s)), 1e6 * t) for t in range(150)]
    points = points_of(found)
    assert {round(exp(one.log_s), 3) for one in points} <= {0.2, 0.199, 0.201}
    [over] = [one for one in points if one.start_s < 61 < one.end_s]
    assert over.end_s - over.start_s >= lasts_s
    assert len(over.inner_s) == 4


@pytest.mark.parametrize("more", [{"checkpoint_s": 6.0}, {"checkpoint_s": 0.0, "hiccups": (37, 4.0)}, {"evaluation": (300, 8.0, 0.5)}])
def test_what_is_slow_for_a_moment_just_before_does_not_move_the_moment(more: dict[str, object]) -> None:
    """The slowdown begins at each phase of the run's checkpoints, long steps or fast evaluations."""
    run = Run(slower=0.2, warm_up=0.0, **more)  # type: ignore[arg-type]
    found = [(onset_s, told(run._replace(onset_s=onset_s), 8)) for onset_s in range(400, 446, 3)]
    apart = [abs(one.since_s - onset_s) for onset_s, one in found if one is not None]
    assert len(apart) == 16
    assert sum(off <= NEAR_S for off in apart) >= 14


def test_a_moment_within_an_excursion_is_told_with_all_of_it_as_its_interval() -> None:
    """Steps of an evaluation say nothing of a slowdown that begins in it."""
    points = [Point(t, t + 3.0, log(0.2 * (0.4 if 200 <= t < 230 else 1.0 if t < 215 else 1.2)) + 0.01 * (-1) ** t, None, 15.0)
              for t in range(0, 420, 3)]  # fmt: skip
    found = find(points)
    assert found is not None
    assert found.low_s <= 204 <= 226 <= found.high_s


def test_a_counter_that_begins_again_makes_no_point() -> None:
    steady = [StepCount(t, 5.0 * t) for t in range(60)]
    again = [StepCount(60 + t, 5.0 * t) for t in range(60)]
    points = points_of([*steady, *again])
    assert {round(exp(one.log_s), 6) for one in points} == {0.2}
    assert all(a.end_s <= b.start_s for a, b in pairwise(points))
    assert find([]) is None


def noise(rng: random.Random, count: int, mean: float, alike: float) -> list[float]:
    wave, found = 0.0, list[float]()
    for _ in range(count):
        wave = alike * wave + sqrt(1 - alike**2) * rng.gauss(0.0, 0.05)
        found.append(mean + wave)
    return found


@pytest.mark.parametrize("alike", [0.0, 0.7])
def test_an_interval_of_neighbours_that_are_alike_holds_the_truth(alike: float) -> None:
    rng, held = random.Random(4), 0
    for _ in range(200):
        sides = [level(noise(rng, 120, mean, alike)) for mean in (0.0, 0.1)]
        assert sides[0] is not None
        assert sides[1] is not None
        found = between(sides[0], sides[1])
        held += found.low <= 0.1 <= found.high
    assert held >= 0.9 * 200


def test_runs_that_differ_among_themselves_widen_the_interval() -> None:
    rng = random.Random(1)

    def runs(mean: float) -> Level:
        found = level(noise(rng, 60, mean, 0.0))
        assert found is not None
        return found

    apart = between_runs([runs(0.0), runs(0.1), runs(-0.1)], [runs(0.12), runs(0.22), runs(0.02)])
    alike = between_runs([runs(0.0), runs(0.0), runs(0.0)], [runs(0.12), runs(0.12), runs(0.12)])
    assert apart.low < 0.0 < alike.low
    assert between_runs([runs(0.0)], [runs(0.03)]).low < 0.0, "one run a side: runs may differ by a per cent"
    assert level([0.1]) is None


def test_a_run_stands_beside_three_at_least() -> None:
    run = level(noise(random.Random(2), 100, log(1.18), 0.3))
    assert run is not None
    assert beside(run, [0.0, 0.01]) is None
    found = beside(run, [0.0, 0.01, -0.01, 0.005, -0.005])
    assert found is not None
    assert found.pct == pytest.approx(18, abs=3)
    assert found.low > log(1.1)
    spread = beside(run, [0.0, 0.2, -0.2])
    assert spread is not None
    assert spread.low < 0.0
    assert t_quantile(0.975, 4) == pytest.approx(2.776, abs=1e-3)
