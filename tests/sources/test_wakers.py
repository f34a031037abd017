"""Who wakes trainers that have no workers."""

from __future__ import annotations

from gputop.model.frame import SECOND_NS, Wakeup
from gputop.sources.ebpf.wakes import KEPT_NS, Wakers

TRAINER, THREAD, ACTOR, SELDOM = 100, 101, 900, 901


def wake(waker: int, wait_s: float, wakee: int = TRAINER, pid: int | None = None) -> Wakeup:
    return Wakeup(wakee, waker, waker if pid is None else pid, 1, round(wait_s * SECOND_NS))


def play(wakers: Wakers, seconds: int, told: list[list[Wakeup]], alone: frozenset[int] = frozenset({TRAINER})) -> frozenset[int]:
    """One reading a second from ``seconds`` on."""
    for second, wakeups in enumerate(told, seconds):
        wakers.add(wakeups, alone, second * SECOND_NS)
    return wakers.pids


def test_who_ends_much_of_a_trainers_sleep_is_told_at_once_and_forgotten_when_it_no_longer_does() -> None:
    wakers = Wakers()
    first, second = [wake(ACTOR, 50.0), wake(SELDOM, 1.0)], [wake(ACTOR, 50.4), wake(SELDOM, 1.001)]
    assert play(wakers, 1, [first]) == frozenset()
    assert play(wakers, 2, [second]) == {ACTOR}
    kept_s = KEPT_NS // SECOND_NS
    assert play(wakers, 3, [[]] * (kept_s - 1)) == {ACTOR}
    assert play(wakers, 2 + kept_s, [[]]) == frozenset()


def test_neither_its_own_threads_nor_interrupts_nor_who_wakes_somebody_else() -> None:
    told = [[wake(THREAD, s, pid=TRAINER), wake(0, s), wake(ACTOR, s, wakee=THREAD)] for s in (1.0, 1.5)]
    assert play(Wakers(), 1, told) == frozenset()


def test_nobody_where_all_trainers_have_workers() -> None:
    wakers = Wakers()
    assert play(wakers, 1, [[wake(ACTOR, 1.0)], [wake(ACTOR, 1.5)]]) == {ACTOR}
    assert play(wakers, 3, [[wake(ACTOR, 2.0)]], alone=frozenset()) == frozenset()
