"""Who is stalled, and the words for what they wait for."""

from __future__ import annotations

from gputop.findings.verdict import Culprit, ProcState, Verdict, Victim
from gputop.model.board import Board
from gputop.model.frame import SchedThread
from gputop.model.roles import Role
from gputop.stream.stalled import family, stalled_pids, waits

ROLES = {
    3: Role("worker", 1, None, 1, "torch", "worker 1"), 2: Role("worker", 1, None, 0, "torch", "worker 0"),
    1: Role("trainer", 1, 0, None, "torch", "train.py rank 0"), 9: Role("helper", 1, label="helper"),
    21: Role("trainer", 21, 1, None, "torch", "train.py rank 1"),
}  # fmt: skip


def state(pid: int, word: str, share: float = 0.6, **more: object) -> ProcState:
    return ProcState(pid, word, fractions={word: share}, **more)  # type: ignore[arg-type]


def test_the_stalled_with_their_trainer_and_everybody_where_nobody_is() -> None:
    free = {1: state(1, "computing"), 2: state(2, "running"), 3: state(3, "ahead"), 21: state(21, "computing")}
    assert stalled_pids(ROLES, free) == [1, 21, 2, 3]
    assert stalled_pids(ROLES, free | {3: state(3, "runnable", starving=True)}) == [1, 3]
    assert stalled_pids({}, {}) == []


def test_a_trainer_comes_with_its_workers() -> None:
    assert family(1, ROLES) == [1, 2, 3]
    assert family(3, ROLES) == [3]
    assert family(77, ROLES) == [77]


def test_words() -> None:
    board = Board()
    board.threads[3] = SchedThread(3, 3, 0, 0, 0, 0, 0, 0, 0, max_run_delay_ns=41_000_000)
    verdict = Verdict(culprits=(Culprit(903, "fluent-bit", 1.4),), victims=(Victim(3, "worker", "worker 1"),))
    states = {
        1: state(1, "waiting-data", 0.58), 2: state(2, "blocked", 0.9, waits={"pipe": 0.1, "lock": 0.8}),
        3: state(3, "runnable", 0.61, starving=True), 21: state(21, "computing"),
    }  # fmt: skip
    assert waits(board, ROLES, states, verdict) == {
        1: "waits for data 58 % of the time, from worker 1",
        2: "blocked 90 % of the time, mostly on: lock",
        3: "wanted a CPU and had none 61 % of the time, behind fluent-bit (903), longest 41 ms",
    }
