"""A run whose CUDA calls are not counted: what tells its pace then, what is told of it, and where nothing does, why."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gputop.diagnosis.runpace import is_beat
from gputop.findings import runs
from gputop.findings.runs import NO_STEP, Run
from gputop.findings.verdict import SLOWER, Incident
from gputop.model.frame import Frame, Mark
from tests.unit.diagnosis.scene import Proc, Scene, training
from tests.unit.diagnosis.test_slower import DT_S, STEPS, changes, machine, numbers, paced, told
from tests.unit.diagnosis.test_slower import run as earlier

MB_PER_S = 300.0


def unprobed(mb_per_s: float = MB_PER_S, **values: object) -> Scene:
    """A healthy training of which NVML alone tells."""
    scene = training(run=0.3)
    scene.gpus[0] |= {"name": "NVIDIA H200", "power_limit_w": 700.0, "pcie_width": 16, "pcie_mb_per_s": mb_per_s, **values}
    return scene


def moved(scene: Scene, mb_per_s: float) -> Scene:
    scene.gpus[0]["pcie_mb_per_s"] = mb_per_s
    return scene


def slowed(by: float, before_s: int = 200, after_s: int = 130) -> Scene:
    scene = unprobed().play(before_s, DT_S)
    return moved(scene, MB_PER_S / (1.0 + by)).play(after_s, DT_S)


def row(scene: Scene) -> Run:
    [one] = [one for one in scene.engine.runs()[1] if one.pid == 100]
    return one


def test_bytes_to_its_gpu_tell_a_slower_run_and_no_length_of_a_step() -> None:
    scene = slowed(0.25)
    [one] = told(scene)
    assert abs(one.start_ns - scene.board.header.t_ns - 200e9) <= 5e9
    assert "25 % longer for as many bytes to its GPUs since" in one.headline
    found = numbers(one)
    assert found["slower_pct"] == pytest.approx(25, abs=2)
    assert found["moved_before_mb_per_s"] == pytest.approx(300, rel=0.02)
    assert found["moved_mb_per_s"] == pytest.approx(240, rel=0.02)
    assert "step_ms" not in found
    assert "its pace is told by bytes to its GPUs, which tell nothing beside earlier runs" in one.detail
    kept = row(scene)
    assert (kept.step_ms, kept.paced_by, kept.why_no_step) == (None, runs.TO_GPU, NO_STEP["not-counted"])
    assert kept.slower_pct == pytest.approx(25, abs=2)
    assert kept.stretches_ms == []


def test_bytes_tell_nothing_beside_earlier_runs() -> None:
    """The code may have changed in between, and with it the bytes of a step."""
    scene = unprobed(MB_PER_S / 1.5)
    scene.engine.slowdowns.past = [earlier(start=1000.0 * i, paced_by=paced_by) for i in range(4) for paced_by in runs.CLOCKS]
    assert told(scene.play(200, DT_S)) == []


NONE: dict[str, tuple[Callable[[], Scene], str]] = {
    "no counters": (lambda: unprobed(mb_per_s=0.0), "not-counted"),
    "shared": (lambda: unprobed(pids=[100, 900]).add(Proc(900, comm="other", cmdline=["other"])), "shared"),
}


@pytest.mark.parametrize("name", NONE)
def test_a_run_without_any_clock_is_a_row_with_the_reason(name: str) -> None:
    make, why = NONE[name]
    kept = row(make().play(60, DT_S))
    assert (kept.step_ms, kept.paced_by, kept.stretches_ms, kept.why_no_step) == (None, "", [], NO_STEP[why])
    assert kept.gpu_total_s


def test_a_neighbour_on_its_gpu_ends_the_pace_by_bytes_and_is_no_slowdown() -> None:
    scene = unprobed().play(200, DT_S).add(Proc(900, comm="other", cmdline=["other"]))
    scene.gpus[0]["pids"] = [100, 900]
    moved(scene, MB_PER_S * 1.5).play(60, DT_S).drop(900)
    scene.gpus[0]["pids"] = [100]
    assert told(moved(scene, MB_PER_S).play(130, DT_S)) == []


def test_calls_that_are_counted_later_are_the_better_clock() -> None:
    scene = unprobed().play(60, DT_S)
    scene.probed = True
    kept = row(paced(scene, STEPS).play(60, DT_S))
    assert (kept.paced_by, kept.why_no_step) == (runs.CALLS, "")
    assert kept.step_ms == pytest.approx(50, rel=0.03)


def marking(scene: Scene, every_steps: int, each_s: float, seconds: float, first: int = 0, text: str = "epoch 3, step {}") -> int:
    """A job that sets a marker each so many steps; the number of the last."""
    number, due_s, t_s = first, each_s, 0.0
    while t_s < seconds:
        scene.play(DT_S, DT_S)
        t_s += DT_S
        marks = []
        while due_s <= t_s:
            number += every_steps
            marks.append(Mark(scene.board.t_ns - round((t_s - due_s) * 1e9), text.format(number)))
            due_s += each_s
        scene.engine.look(Frame(0, scene.board.t_ns, marks=marks))
    return number


def test_a_job_that_counts_its_steps_by_markers_needs_no_root() -> None:
    scene = unprobed()
    number = marking(scene, 100, 10.0, 300.0)
    marking(scene, 100, 12.5, 260.0, first=number)
    [one] = told(scene)
    assert "% slower a step since" in one.headline
    assert numbers(one)["slower_pct"] == pytest.approx(25, abs=4)
    assert abs(one.start_ns - scene.board.header.t_ns - 300e9) <= 15e9
    kept = row(scene)
    assert (kept.paced_by, kept.why_no_step) == (runs.MARKERS, "")
    assert kept.stretches_ms[0] == pytest.approx(100, rel=0.02)


@pytest.mark.parametrize(("each_s", "text", "jobs"), [(100.0, "step {}", 1), (10.0, "epoch {}", 1), (10.0, "step {}", 2)])
def test_seldom_markers_those_without_a_step_and_those_of_one_of_two_jobs_are_no_clock(each_s: float, text: str, jobs: int) -> None:
    scene = unprobed()
    if jobs > 1:
        scene.gpus[1] = dict(scene.gpus[0], pids=[900])
        scene.add(Proc(900, cmdline=["python", "other.py"], run=0.3))
    marking(scene, 100, each_s, 200.0, text=text)
    assert row(scene).paced_by == runs.TO_GPU


def beating(scene: Scene, step_s: float, seconds: float, seed: int) -> Scene:
    """Steps that the GPU's power shows, each with some noise, in ticks of 0.1 s."""
    rng, ends = random.Random(seed), [0.0]
    while ends[-1] < seconds + 10.0:
        ends.append(ends[-1] + step_s * (1.0 + rng.gauss(0.0, 0.02)))
    step = 0

    def change(tick: int) -> None:
        nonlocal step
        while ends[step + 1] <= tick / 10:
            step += 1
        works = (tick / 10 - ends[step]) / (ends[step + 1] - ends[step]) < 0.8
        scene.gpus[0] |= {"power_w": (600.0 if works else 200.0) + rng.gauss(0.0, 15.0), "power_instant": True}

    return scene.play_tenths(change, seconds)


@pytest.mark.soak
@pytest.mark.parametrize(("by", "is_told"), [(0.15, True), (0.0, False), (1.0, False)])
def test_the_rhythm_of_its_gpu_tells_a_slower_run_more_coarsely(by: float, is_told: bool) -> None:
    """Twice as long is told of no rhythm: it may be the beat of two steps."""
    scene = beating(unprobed(mb_per_s=0.0), 1.1, 360.0, 1)
    kept = row(scene)
    assert (kept.paced_by, kept.why_no_step) == (runs.RHYTHM, "")
    assert kept.step_ms == pytest.approx(1100, rel=0.01)
    found: list[Incident] = told(beating(scene, 1.1 * (1.0 + by), 300.0, 2))
    assert bool(found) == is_told
    for one in found:
        assert numbers(one)["slower_pct"] == pytest.approx(100 * by, abs=3)
        assert abs(one.start_ns - scene.board.header.t_ns - 360e9) <= 30e9
        assert "told by GPU rhythm" in one.detail
        assert one.cause == SLOWER
        assert changes(one) == []


@pytest.mark.parametrize(("per_s", "beat"), [(1.0, False), (0.5, True), (2.05, True), (0.7, False), (0.34, True), (0.13, False)])
def test_a_whole_factor_may_be_a_beat(per_s: float, beat: bool) -> None:
    assert is_beat(per_s, 1.0) == beat


def test_calls_that_tell_the_steps_are_not_left_for_bytes() -> None:
    scene = machine()
    scene.gpus[0]["pcie_mb_per_s"] = MB_PER_S
    assert row(scene.play(60, DT_S)).paced_by == runs.CALLS
