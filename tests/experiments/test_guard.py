"""An experiment changes what it says, and puts it back exactly, whoever dies."""

from __future__ import annotations

import os

from gputop.experiments.change import Plan
from gputop.experiments.guardian import Guard
from gputop.experiments.interventions import plan
from gputop.experiments.journal import leftovers
from tests.experiments.processes import THREADS, case, running


def _policies(pid: int) -> set[int]:
    return {os.sched_getscheduler(int(tid)) for tid in os.listdir(f"/proc/{pid}/task")}


def test_idle_priority_is_on_off_and_put_back() -> None:
    with running() as trainer, running(THREADS) as hog:
        made = plan(case(trainer, hog))
        assert isinstance(made, Plan)
        with Guard(made) as guard:
            guard.on()
            assert _policies(hog.pid) == {os.SCHED_IDLE}
            guard.off()
            assert _policies(hog.pid) == {os.SCHED_OTHER}
            guard.on()
        assert _policies(hog.pid) == {os.SCHED_OTHER}
    assert leftovers() == []
