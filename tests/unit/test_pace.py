"""When a long stretch of a recording is looked at often: at a turn, and not for noise."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Frame, Gpu, GpuProc, ProcInfo, ProcSample
from gputop.stream.pace import OFTEN_NS, SELDOM_NS, LookPace


class _Machine:
    """A GPU and a trainer (pid 100), second by second."""

    def __init__(self) -> None:
        self.board, self.pace, self.second = Board(), LookPace(), 0
        self.state, self.pids = "S", [100]

    def turns(self, util: float, **values: object) -> bool:
        """Whether something turns in the next second."""
        self.second += 1
        t_ns = self.second * SECOND_NS
        gpu = Gpu(0, t_ns, util_pct=util, procs=[GpuProc(pid) for pid in self.pids])
        proc = ProcSample(100, 1, t_ns, self.state, 0, 0, 1 << 20, 1)
        frame = replace(Frame(self.second, t_ns, gpus=[gpu], procs=[proc]), **values)
        turned = self.pace.turns(frame, self.board, {100})
        self.board.fold(frame)
        return turned

    @property
    def every_ns(self) -> int:
        return self.pace.every_ns(self.board.t_ns)


@pytest.fixture
def machine() -> _Machine:
    """A machine of which nothing turns for a minute."""
    found = _Machine()
    for _ in range(60):
        found.turns(90.0)
    assert found.every_ns == SELDOM_NS
    return found


@pytest.mark.parametrize("util", [0.0, 40.0, 69.0])
def test_work_that_ends_and_comes_back_turns_twice(machine: _Machine, util: float) -> None:
    assert machine.turns(util)
    assert machine.every_ns == OFTEN_NS
    assert not any(machine.turns(util) for _ in range(20))
    assert machine.every_ns == SELDOM_NS
    assert machine.turns(90.0)


def test_noise_and_steps_of_seconds_do_not_turn() -> None:
    rng, noisy, steps = random.Random(7), _Machine(), _Machine()
    noise = [noisy.turns(min(100.0, max(0.0, rng.gauss(60.0, 12.0)))) for _ in range(1000)]
    waves = [steps.turns(0.0 if i % 4 == 3 else 100.0) for i in range(1000)]
    assert sum(noise[60:]) <= 5
    assert not any(waves[60:])


def test_who_comes_goes_or_stops_is_a_turn(machine: _Machine) -> None:
    born = ProcInfo(200, 5, ppid=100)
    assert machine.turns(90.0, infos=[born])
    assert not machine.turns(90.0, infos=[born])
    assert not machine.turns(90.0, infos=[ProcInfo(300, 5, ppid=1)], gone=[300])
    machine.state = "T"
    assert machine.turns(90.0)
    assert not machine.turns(90.0)
    machine.pids = [100, 200]
    assert machine.turns(90.0)
    assert machine.turns(90.0, gone=[100])
