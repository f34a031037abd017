"""What the scheduler's programs do not see while they are detached is estimated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gputop.model.board import wakeup_key
from gputop.model.frame import SchedThread, Wakeup
from gputop.sources.ebpf.switches import BUDGET, SWITCH_NS, cost_share, width_s
from gputop.sources.ebpf.unseen import Unseen

MS = 1_000_000
WINDOW, GAP = 100 * MS, 900 * MS


def woken(times: int) -> Wakeup:
    return Wakeup(7, 8, 8, times, times * MS // 10)


def wakeups(first: int = 0) -> Unseen[Wakeup]:
    unseen: Unseen[Wakeup] = Unseen(wakeup_key, ("wait_ns", "times"))
    unseen.begin([woken(first)])
    return unseen


def everybody(_: object) -> bool:
    return True


def cycles(unseen: Unseen[Wakeup], per_window: int, first: int = 0, paces: dict[int, float] | None = None) -> Iterator[int]:
    """The times told at the end of each window and each gap, while the programs count ``per_window``."""
    counted = first
    while True:
        counted += per_window
        [seen] = unseen.see([woken(counted)])
        unseen.close_window(WINDOW, everybody)
        yield seen.times
        [seen] = unseen.at(GAP, paces or {}, lambda *_: True)
        yield seen.times
        unseen.open_window(GAP, paces or {})


def test_steady_work_is_counted_whole() -> None:
    told = cycles(wakeups(500), 10, 500)
    assert [next(told) for _ in range(6)] == [510, 600, 610, 700, 710, 800]


def test_counts_follow_the_kernels_own_count_of_a_thread_and_times_the_clock() -> None:
    """It ran half as often as in the windows."""
    unseen = wakeups()
    told = cycles(unseen, 10, paces={7: GAP / 2})
    assert [next(told) for _ in range(3)] == [10, 55, 65]
    [seen] = unseen.at(GAP, {7: 0.0}, lambda *_: True)
    assert (seen.times, seen.wait_ns) == (65, 20 * MS)  # 2 ms in two windows, 18 ms between


def test_an_entry_that_was_deleted_goes_on() -> None:
    unseen = wakeups(100)
    [seen] = unseen.see([woken(3)])
    assert seen.times == 103
    unseen.close_window(WINDOW, everybody)
    [seen] = unseen.at(GAP, {}, lambda *_: True)
    assert seen.times == pytest.approx(103 + 27, abs=1)


def test_what_has_ended_is_forgotten() -> None:
    unseen = wakeups()
    told = cycles(unseen, 10)
    [next(told) for _ in range(3)]
    unseen.close_window(WINDOW, lambda _: False)
    assert unseen.at(GAP, {}, lambda *_: True) == []
    unseen.end()
    assert not unseen.is_needed


def test_once_the_programs_stay_attached_estimates_stand() -> None:
    unseen = wakeups()
    told = cycles(unseen, 10)
    [next(told) for _ in range(3)]
    unseen.open_window(GAP, {})
    unseen.end()
    assert [one.times for one in unseen.see([woken(25)])] == [25 + 2 * 90]
    assert [one.times for one in unseen.see([woken(26)])] == [26 + 2 * 90]


def thread(sleeping_ns: int, preempted_ns: int = 0, hist: int = 0) -> SchedThread:
    return SchedThread(7, 7, 0, 0, preempted_ns, sleeping_ns, 0, 5, 0, 0, {3: hist} if hist else {}, 1, "sleeping")


def test_a_sleep_that_the_programs_let_last_through_a_gap_is_counted_once() -> None:
    """A sum goes on growing with the state that a thread was seen in last."""
    unseen: Unseen[SchedThread] = Unseen(lambda one: (one.tid, one.start_ns), ("preempted_ns", "sleeping_ns", "hist"))
    unseen.begin([thread(0)])
    sums = []
    for cycle in range(4):
        ended = cycle * (WINDOW + GAP) + WINDOW
        sums += [one.sleeping_ns for one in unseen.see([thread(ended)])]
        unseen.close_window(WINDOW, everybody)
        sums += [one.sleeping_ns for one in unseen.at(GAP, {}, lambda *_: True)]
        unseen.open_window(GAP, {})
    assert sums == [WINDOW, WINDOW + GAP, 2 * WINDOW + GAP, 2 * (WINDOW + GAP), *(
        cycle * (WINDOW + GAP) + part for cycle in (2, 3) for part in (WINDOW, WINDOW + GAP))]  # fmt: skip


def test_sums_never_fall_and_histograms_grow_with_them() -> None:
    unseen: Unseen[SchedThread] = Unseen(lambda one: (one.tid, one.start_ns), ("preempted_ns", "sleeping_ns", "hist"))
    unseen.begin([thread(0)])
    unseen.see([thread(0, 50 * MS, 20)])
    unseen.close_window(WINDOW, everybody)
    [before] = unseen.at(GAP, {}, lambda *_: True)
    assert (before.preempted_ns, before.hist) == (500 * MS, {3: 200})
    unseen.open_window(GAP, {})
    [seen] = unseen.see([thread(0, 40 * MS, 20)])  # the state that it was in when the programs were detached had been counted in
    assert seen.preempted_ns == before.preempted_ns


def test_threads_that_pass_one_another_on_many_cpus_lose_what_all_their_switches_cost() -> None:
    """Each CPU switches seldom, but one thread runs at a time; many that work on their own lose a part each."""
    assert cost_share(1_000, {}) == pytest.approx(1_000 * SWITCH_NS / 1e9)
    assert cost_share(1_000, {7: (50_000, 0.9, 0.0)}) == pytest.approx(50_000 * SWITCH_NS / 1e9)
    assert cost_share(1_000, {7: (50_000, 50.0, 9.0)}) == pytest.approx(1_000 * SWITCH_NS / 1e9)


def test_who_waits_for_a_cpu_half_of_the_time_loses_twice_the_share_of_what_it_gets() -> None:
    assert cost_share(0, {7: (5_000, 0.5, 0.5)}) == pytest.approx(10_000 * SWITCH_NS / 1e9)
    assert cost_share(0, {7: (5_000, 0.1, 0.0)}) == pytest.approx(5_000 * SWITCH_NS / 1e9)


@pytest.mark.parametrize("cost", [0.01, 0.09, 0.4, 2.0])
def test_a_window_costs_no_more_than_the_budget_of_some_seconds(cost: float) -> None:
    assert cost * width_s(cost) <= max(BUDGET * 4.0, cost * 0.05) + 1e-9
