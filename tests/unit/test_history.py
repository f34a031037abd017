"""The axis of the last ten minutes: packed, it gives what a list of all readings gives."""

from __future__ import annotations

import math
import random

import pytest

from gputop.stream.history import STRETCH, History

TICK = 100_000_000
KEY = ("gpu.util_pct", 0)
GIVEN = {
    "dense": lambda i: float(i % 97),
    "the same": lambda _: 40.0,
    "once a second": lambda i: float(i) if i % 10 == 3 else None,
    "now and then": lambda i: 1.5 if i % 701 == 5 else None,
    "changing its pace": lambda i: float(i % 7) if i < 600 or i % 9 == 0 else None,
    "late": lambda i: float(i) if i > 1000 else None,
}


def kept(given: str, ticks: int) -> tuple[History, list[tuple[int, float]]]:
    """A history, and what it was given."""
    history, told = History(TICK), []
    for i in range(ticks):
        history.tick((i + 1) * TICK)
        value = GIVEN[given](i)
        if value is not None:
            history.put(*KEY, value)
            told.append(((i + 1) * TICK, value))
    return history, told


@pytest.mark.parametrize("given", GIVEN)
def test_any_slice_is_what_was_put_there(given: str) -> None:
    history, told = kept(given, 5 * STRETCH + 100)
    rng = random.Random(2)
    for _ in range(200):
        start, end = sorted(rng.randrange(history.times[-1] + 2 * TICK) for _ in range(2))
        within = [(t_ns, value) for t_ns, value in told if start <= t_ns < end]
        assert history.values(KEY, start, end) == within
        mean, top = history.cell(KEY, start, end), history.cell(KEY, start, end, peak=True)
        assert math.isnan(mean) if not within else mean == pytest.approx(sum(value for _, value in within) / len(within))
        assert math.isnan(top) if not within else top == max(value for _, value in within)
        latest = [value for t_ns, value in told if end - 40 * TICK <= t_ns <= end]
        found = history.at(KEY, end, 40 * TICK)
        assert math.isnan(found) if not latest else found == latest[-1]


@pytest.mark.parametrize("given", GIVEN)
def test_the_oldest_go_and_the_rest_stays_in_its_place(given: str) -> None:
    history, told = kept(given, 6000 + 3 * STRETCH + 10)
    assert 6000 <= history.ticks < 6000 + STRETCH
    assert history.trimmed + history.ticks == 6000 + 3 * STRETCH + 10
    oldest = history.times[0]
    assert history.values(KEY, 0, 1 << 62) == [(t_ns, value) for t_ns, value in told if t_ns >= oldest]


def test_states_keep_step_with_the_axis() -> None:
    history = History(TICK)
    for i in range(6000 + 2 * STRETCH):
        history.tick((i + 1) * TICK)
        history.put_state(7, 1 + i // 1000, history.times[-1] - 1)
    assert [history.state_cell(7, i * 1000 * TICK + TICK, (i + 1) * 1000 * TICK) for i in range(1, 6)] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("cell_ns", [TICK * 2 // 7, TICK, 5 * TICK])
def test_cells_that_all_rows_share_are_those_of_each_row(cell_ns: int) -> None:
    """What is kept of a cell's ticks is of this tick and this length alone: later ticks, a trimmed axis and other cells are seen."""
    history, rng = History(TICK), random.Random(4)
    for i in range(6000 + 2 * STRETCH):
        history.tick((i + 1) * TICK + (i % 300 == 7) * TICK // 3)
        if i % 20 == 19:
            history.put_state(7, rng.randrange(3), history.times[-1] - 20 * TICK)
        if i % 997 < 3:
            runs = history.states.get(7)
            newest = history.times[-1] // cell_ns
            for k in range(newest - 40, newest + 3) if runs is not None else ():
                assert history.cell_of_runs(runs, k, cell_ns) == history.state_cell(7, k * cell_ns, (k + 1) * cell_ns)
                assert history.cell_of_runs(runs, k, 2 * cell_ns) == history.state_cell(7, 2 * k * cell_ns, 2 * (k + 1) * cell_ns)


def test_a_state_is_known_until_it_was_last_put() -> None:
    history = History(TICK)
    assert history.states_known_ns(7) == 0
    for i in range(30):
        history.tick((i + 1) * TICK)
        if i == 19:
            history.put_state(7, 2, 0)
    assert history.states_known_ns(7) == 20 * TICK
    assert history.states_known_ns(8) == 0


def test_a_clock_that_went_back_begins_anew() -> None:
    history, _ = kept("dense", STRETCH + 5)
    history.tick(TICK)
    assert history.ticks == 1
    assert history.values(KEY, 0, 1 << 62) == []
