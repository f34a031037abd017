"""Runs with a known slowdown and runs without one, reading by reading through the diagnosis: what is told of each, and since when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from gputop.diagnosis.facts.points import Counted
from gputop.diagnosis.incidents import Incidents
from gputop.diagnosis.slower import Slowdowns
from gputop.findings import runs
from gputop.findings.changepoint import StepCount
from gputop.findings.verdict import Incident
from tests.unit.diagnosis.test_slower import machine, numbers
from tests.unit.diagnosis.test_slower import run as earlier
from tests.unit.test_changepoint import NEAR_S, WITHOUT, Run, pairs, readings

SURELY_TOLD = 0.08
KINDS = [
    Run(swings=(0.015, 90.0)), Run(hiccups=(37, 4.0)), Run(step_s=0.08, noise=0.2, alike=0.2), Run(swings=(0.01, 20.0), checkpoint_s=8.0),
    Run(evaluation=(1500, 25.0, 0.5), hiccups=(150, 6.0)), Run(grows=0.15, swings=(0.01, 60.0), seconds=900.0),
]  # fmt: skip


def told(run: Run, seed: int, by_bytes: bool = False, past: list[runs.Run] | None = None) -> tuple[list[Incident], float]:
    """(the incidents of a run, when it began) as it is watched, twice a second."""
    scene = machine()
    scene.gpus[0]["pcie_mb_per_s"] = 300.0
    scene.play(4.0)
    board, standing, watch, incidents = scene.board, scene.engine.standing, Slowdowns(past or []), Incidents()
    begun_ns, paces = board.t_ns, dict.fromkeys(standing, 5.0)
    gpu = board.gpus[0]
    for one in readings(run, seed):
        board.t_ns = begun_ns + round(1e9 * one.t_s)
        gpu.values["pcie_rx_bytes"], gpu.read_ns["pcie_rx_bytes"] = round(one.steps * 40e6), board.t_ns
        counted = None if by_bytes else _counted(one, board.t_ns)
        watch.note(board, standing, dict.fromkeys(standing, counted).get, paces, {}, incidents)
    return incidents.all, begun_ns / 1e9


def _counted(one: StepCount, t_ns: int) -> Counted:
    return Counted(t_ns, int(one.steps), int(2 * one.steps), int(one.work or 0.0))


def slowdowns(seeds: range) -> Iterator[tuple[float, Run, int]]:
    """Slowdowns of 3 to 40 %, of all kinds of work."""
    for slower, run in pairs():
        for seed in seeds:
            yield slower, run, round(1e4 * slower) + 7919 * seed
    for i, run in enumerate(KINDS):
        for seed in seeds:
            slower = (0.1, 0.15, 0.3)[(i + seed) % 3]
            yield slower, run._replace(slower=slower), 100 * i + seed


def steady(seeds: range) -> Iterator[tuple[Run, int]]:
    for i, run in enumerate((*WITHOUT, *KINDS)):
        for seed in seeds:
            yield run, 1000 * i + seed


class Score(NamedTuple):
    """What was told of many runs."""

    slower: int  # runs with a slowdown that is to be told
    told: int
    near: int  # of these, told of their moment within `NEAR_S`
    held: int  # of these, with their moment in the interval that was told
    false: list[str]  # told of runs without one


def scored(seeds: range, by_bytes: bool = False) -> Score:
    apart: list[tuple[float, float]] = []
    count, false = 0, list[str]()
    for slower, run, seed in slowdowns(seeds):
        if slower < SURELY_TOLD:
            continue
        count += 1
        incidents, begun_s = told(run, seed, by_bytes)
        if incidents:
            one = incidents[-1]
            apart.append((abs(one.start_ns / 1e9 - begun_s - run.onset_s), numbers(one)["since_s"] or 0.0))
    for run, seed in steady(seeds):
        if by_bytes and run.bytes_along:
            continue  # work that grows is no slowdown by its steps' bytes alone
        false += [f"{one.headline}, seed {seed}, {run}" for one in told(run, seed, by_bytes)[0]]
    near, held = (sum(off <= most for off, most in found) for found in ([(off, NEAR_S) for off, _ in apart], apart))
    return Score(count, len(apart), near, held, false)


@pytest.mark.soak
@pytest.mark.parametrize(("by_bytes", "most_missed", "least_near"), [(False, 0.03, 0.95), (True, 0.05, 0.9)])
def test_slowdowns_are_told_of_their_moment_and_steady_runs_are_not_told_slower(
    by_bytes: bool, most_missed: float, least_near: float
) -> None:
    """By bytes a point has 5 s, and steps are not whole in it."""
    found = scored(range(1), by_bytes)
    assert found.false == []
    assert found.told >= (1.0 - most_missed) * found.slower
    assert found.near >= least_near * found.told
    assert found.held >= 0.95 * found.told


@pytest.mark.parametrize(("by_bytes", "near_s"), [(False, NEAR_S), (True, 2 * NEAR_S)])
def test_a_slowdown_is_told_of_its_moment_and_a_steady_run_is_not(by_bytes: bool, near_s: float) -> None:
    run = Run(slower=0.15, hiccups=(60, 4.0), seconds=700.0)
    [one], begun_s = told(run, 3, by_bytes)
    assert abs(one.start_ns / 1e9 - begun_s - run.onset_s) <= near_s
    assert told(run._replace(slower=0.0), 3, by_bytes)[0] == []


def test_each_moment_is_told_as_it_stands_in_one_incident() -> None:
    """An incident's begin may move while more of the new level is seen; there is one for each slowdown."""
    for seed in range(2):
        assert len(told(Run(slower=0.2), seed)[0]) == 1


@pytest.mark.parametrize(("by", "is_told"), [(0.0, False), (0.12, True)])
def test_a_run_of_another_day_is_told_beside_those_before_it(by: float, is_told: bool) -> None:
    past = [earlier(step_ms=ms, start=1000.0 * i) for i, ms in enumerate((205.0, 203.0, 208.0, 206.0, 204.0))]
    run = Run(slower=by, onset_s=-1.0, seconds=400.0, checkpoint_s=0.0)
    incidents, _ = told(run, 11, past=past)
    assert bool(incidents) == is_told
