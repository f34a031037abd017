"""Programs that a trainer started and reads from load for it: what they wait for is told, and nothing that its number contradicts."""

from __future__ import annotations

import re

import pytest

from tests.unit.diagnosis.scene import AWAIT, HIDDEN, ON_CPU, POLL_SOCKET, READ_PIPE, SLEEP, Proc, Scene

LOADER = ["python", "load.py", "--part", "0"]


def fed(*looks: dict, run: float = 0.0, probed: bool = False, known: bool = True, programs: int = 2) -> Scene:
    """A trainer that reads from programs of its own at a pipe; who holds the other end is ``known``, or the probe sees who wakes it."""
    scene = Scene(gpus={0: {"util_pct": 20.0, "power_w": 200.0, "power_limit_w": 700.0, "pids": [100]}}, cpus=4, probed=probed)
    pids = [300 + i for i in range(programs)]
    ends = {"other_ends": pids} if known and not probed else {}
    scene.add(Proc(100, run=0.02, looks=[READ_PIPE], info={"uses_cuda": True, "sockets": "none"} | ends))
    scene.add(*(Proc(pid, ppid=100, cmdline=LOADER, run=run, looks=list(looks), start_ticks=50_200) for pid in pids))
    if probed:
        scene.wakeups = {(100, pid): 0.78 / programs for pid in pids}
    return scene


def contradicts(text: str) -> bool:
    """Whether a share of nothing is said to be what takes the time."""
    return bool(re.search(r"(on a CPU|on) 0(\.0)?(%| CPUs)", text)) and ("cannot keep up" in text or "too slow" in text)


@pytest.mark.parametrize("probed", [False, True], ids=["by /proc", "probed"])
def test_loaders_that_sleep_are_told_as_that_as_those_of_multiprocessing_are(probed: bool):
    verdict = fed(SLEEP, probed=probed).play(8).engine.verdict
    assert (verdict.symptom, verdict.cause) == ("input-bound", "slow-transform")
    assert "timer" in verdict.detail
    assert all(f"load.py ({pid})" in verdict.detail for pid in (300, 301))
    assert not contradicts(verdict.detail)
    assert all("cheaper" not in fix.text for fix in verdict.fixes)


@pytest.mark.parametrize("probed", [False, True], ids=["by /proc", "probed"])
@pytest.mark.parametrize("look", [SLEEP, AWAIT, HIDDEN, READ_PIPE, POLL_SOCKET], ids=["timer", "lock", "unknown", "pipe", "poll"])
@pytest.mark.parametrize("known", [True, False])
def test_of_programs_that_do_not_compute_nobody_says_that_their_work_is_too_slow(look: dict, probed: bool, known: bool):
    scene = fed(look, probed=probed, known=known).play(8)
    verdict = scene.engine.verdict
    assert verdict.cause != "none"
    assert not contradicts(verdict.detail)
    assert "worker" not in verdict.detail or "it has no workers" in verdict.detail
    assert scene.engine.ledger.gpu_lost_s > 0.7 * 0.8 * scene.engine.ledger.gpu_total_s


def test_loaders_that_wait_for_a_store_do_so():
    assert fed(POLL_SOCKET).play(8).engine.verdict.cause == "network-io"


@pytest.mark.parametrize("probed", [False, True], ids=["by /proc", "probed"])
def test_loaders_that_compute_are_not_asleep(probed: bool):
    verdict = fed(ON_CPU, run=0.95, probed=probed).play(8).engine.verdict
    assert verdict.cause in ("too-few-workers", "main-thread-preprocessing", "slow-transform")
    assert "timer" not in verdict.detail
    assert not contradicts(verdict.detail)


def test_who_ended_its_wait_is_not_said_to_run_where_it_sleeps():
    path = fed(SLEEP, probed=True).play(8).engine.verdict.path
    assert [step.state for step in path if step.pid in (300, 301)] == ["sleeps"]
    assert path[-1].name == "load.py"
