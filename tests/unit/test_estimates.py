"""What no window saw is estimated from the windows around it."""

from __future__ import annotations

import random

import pytest

from gputop.sources.ebpf.estimates import Estimates

CALL, PID, MS = 3, 77, 1_000_000
WHO = PID | CALL << 32
COUNT, TOTAL = 0, 1


def unseen(estimates: Estimates, at_ms: float) -> float:
    return estimates.unseen(WHO, round(at_ms * MS))[0].get(COUNT, 0.0)


def window(estimates: Estimates, at_ms: float, ms: float, calls: float) -> None:
    estimates.add_window(round(at_ms * MS), round(ms * MS), {WHO: {COUNT: calls}} if calls else {}, {})


def test_the_time_before_the_first_window_and_between_windows_is_filled_in() -> None:
    estimates = Estimates()
    estimates.begin(CALL, 100 * MS, [PID])
    assert unseen(estimates, 110) == 0.0, "nothing is known yet"
    window(estimates, 120, 10, 50)  # 5 in a ms
    assert unseen(estimates, 130) == pytest.approx(20 * 5), "what the window saw is in the record"
    assert unseen(estimates, 230) == pytest.approx(20 * 5 + 100 * 5)
    window(estimates, 230, 10, 50)
    assert unseen(estimates, 240) == pytest.approx(20 * 5 + 100 * 5)


def test_a_process_that_was_not_there_before_begins_with_its_first_window() -> None:
    estimates = Estimates()
    estimates.begin(CALL, 0, [])
    window(estimates, 1000, 10, 10)
    assert unseen(estimates, 1010) == 0.0
    assert unseen(estimates, 1110) == pytest.approx(100)


def test_calls_that_had_not_returned_count_once() -> None:
    estimates = Estimates()
    estimates.begin(CALL, 0, [PID])
    estimates.add_window(0, 10 * MS, {WHO: {COUNT: 1, TOTAL: 4 * MS}}, {WHO: {COUNT: 1, TOTAL: 4 * MS}})
    assert estimates.unseen(WHO, 10 * MS)[0] == {COUNT: 1.0, TOTAL: 4.0 * MS}


def test_calls_that_end_are_estimated_no_more_and_an_exact_count_goes_on_from_there() -> None:
    estimates = Estimates()
    estimates.begin(CALL, 0, [PID])
    window(estimates, 0, 10, 100)
    for at in (100, 200, 300):
        window(estimates, at, 10, 0)
    before = unseen(estimates, 400)
    assert unseen(estimates, 1000) == before, "three windows without calls"
    estimates.end(CALL, 1000 * MS)
    assert estimates.unseen(WHO, 2000 * MS) == ({COUNT: before}, False)
    assert estimates.share(CALL) == 1.0


def test_the_share_is_that_of_the_last_windows() -> None:
    estimates = Estimates()
    assert estimates.share(CALL) == 1.0
    estimates.begin(CALL, 0, [])
    assert estimates.share(CALL) == 0.0
    for at in range(100, 2000, 100):
        window(estimates, at - 5, 5, 1)
        assert 0.04 < estimates.share(CALL) < 0.07


def test_the_sum_is_unbiased_where_calls_come_in_bursts() -> None:
    """Windows of 5 ms at random times see 1000 calls/s, made in the first 20 ms of each step of 100 ms."""
    drawn, estimates, seen, at = random.Random(1), Estimates(), 0.0, 0.0
    estimates.begin(CALL, 0, [PID])
    while at < 200_000:
        calls = sum(5.0 for ms in range(round(at), round(at) + 5) if ms % 100 < 20)
        window(estimates, round(at), 5, calls)
        seen += calls
        at += drawn.uniform(100, 300)
    truth = at
    assert unseen(estimates, at) + seen == pytest.approx(truth, rel=0.1)
