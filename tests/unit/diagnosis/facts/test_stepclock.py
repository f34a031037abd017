"""The step's pace from calls and from the GPU's rhythm."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from gputop.diagnosis.facts.bursts import Bursts
from gputop.diagnosis.facts.facts import CallFacts, CudaFacts, SampledFacts
from gputop.diagnosis.facts.stepclock import Clock, Rhythm, from_calls, step_of
from gputop.model.probes import CudaCall
from tests.unit.diagnosis.causes import alone
from tests.unit.diagnosis.causes_fed import throttled_actors
from tests.unit.diagnosis.scene import FUTEX, ON_CPU, training

SECONDS = 10.0


def made(copies_per_s: float, syncs_per_s: float, seconds: float = SECONDS) -> CallFacts:
    return CallFacts(seconds, most_syncs_per_s=syncs_per_s, copy_per_s=copies_per_s)


@pytest.mark.parametrize(
    ("copies", "syncs", "steps"),
    [
        (8.3, 8.3, 8.3), (16.6, 8.3, 8.3), (20.49, 5.12, 5.12), (10.0, 3000.0, 10.0), (20.0, 1.0, None),
        (11.4, 4.5, None), (44.0, 23.9, None), (0.0, 5.0, 5.0), (0.0, 1.0, None), (0.0, 2429.0, None), (5.0, 0.0, None), (0.0, 0.0, None),
    ],
    ids=[
        "one each", "two copies a step", "four copies a step", "sync storm", "sync is a log line", "some synchronize", "about half do",
        "no copies", "no copies, a log line", "no copies, a sync storm", "no syncs", "nothing",
    ],
)  # fmt: skip
def test_pace_from_calls(copies: float, syncs: float, steps: float | None):
    assert from_calls(made(copies, syncs)) == steps


@pytest.mark.parametrize(("there", "back", "steps"), [(1.0e9, 0.9e9, None), (2.0e9, 0.9e9, 30.0), (30e6, 30e6, 30.0), (0.0, 0.0, 30.0)])
def test_an_optimizer_on_the_host_copies_more_often_than_it_steps(there: float, back: float, steps: float | None):
    there_and_back = {"from_gpu_bytes_per_s": there, "to_gpu_bytes_per_s": back}
    assert from_calls(CallFacts(SECONDS, most_syncs_per_s=30.0, to_gpu_per_s=30.0, rates=(30.0, 30.0), **there_and_back)) == steps


@pytest.mark.parametrize(("copies", "steps"), [(9.3, None), (3.0, 0.9), (0.0, 0.9)])
def test_a_log_line_that_the_gpu_shows_is_no_step(copies: float, steps: float | None):
    """Each ten steps it waits for its GPU, whose power then sinks for a moment; in the others batches are copied alone."""
    job = training().play(2).engine.facts.jobs[0]
    calls = CallFacts(SECONDS, most_syncs_per_s=0.9 if copies else 0.0, to_gpu_per_s=copies)
    step = step_of(replace(job, cuda=CudaFacts(calls)), Clock(), 0.9, 0.0)
    assert (step and step.per_s) == steps


@pytest.mark.parametrize(("waits", "steps"), [(12.5, None), (1.1, 0.9), (0.0, 0.9)])
def test_who_is_met_in_many_waits_makes_many_steps(waits: float, steps: float | None):
    """Without the probes: an evaluation each two seconds, or steps that the readings meet each third time."""
    job = training().play(2).engine.facts.jobs[0]
    step = step_of(replace(job, cuda=CudaFacts(sampled=SampledFacts(0.5, 0.0, 0.0, 2 * waits, waits))), Clock(), 0.9, 0.0)
    assert (step and step.per_s) == steps


def test_a_step_more_or_less_in_a_window_is_no_other_measure():
    assert from_calls(made(8 / 2.5, 7 / 2.5, seconds=2.5)) == pytest.approx(2.8)
    assert from_calls(made(32 / 2.5, 9 / 2.5, seconds=2.5)) == pytest.approx(3.6)


def test_log_lines_and_a_burst_of_them_in_an_evaluation_are_no_clock():
    clock = Clock()
    for copies, syncs in [(19.0, 1.9)] * 10 + [(19.0, 300.0)] + [(19.0, 1.9)] * 5:
        clock.note(made(copies, syncs, seconds=2.5))
    assert clock.per_s(made(18.9, 18.8)) is None


def test_steps_that_come_unevenly_keep_their_clock():
    clock = Clock()
    for steps in (16, 9.6, 12, 0.4, 0, 14, 10):
        clock.note(made(steps, steps, seconds=2.5))
    clock.note(made(0.4, 40.0, seconds=2.5))
    assert clock.per_s(made(9.5, 14.5)) == 9.5


def test_no_probe_no_pace():
    assert from_calls(None) is None


def pushed(period_s: float | None, seconds: float = 15.0, noise: float = 10.0) -> Rhythm:
    """Power that is high in the first 60 % of each period, with noise; without a period, noise alone."""
    rhythm, chance = Rhythm(), random.Random(7)
    for i in range(round(seconds * 10)):
        t_s = i / 10
        high = period_s is not None and t_s % period_s < 0.6 * period_s
        rhythm.push(round(t_s * 1e9), (600.0 if high else 200.0) + chance.uniform(-noise, noise))
    return rhythm


@pytest.mark.parametrize("period_s", [0.8, 1.0, 1.7, 3.0])
def test_rhythm_of_slow_steps(period_s: float):
    assert pushed(period_s).per_s() == pytest.approx(1 / period_s, rel=0.06)


@pytest.mark.parametrize("period_s", [0.3, 0.4, 0.5])
def test_what_comes_around_in_few_readings_may_be_several_steps(period_s: float):
    """Of steps of 158 ms two took about three readings, and half of the pace was told."""
    assert pushed(period_s).per_s() is None


def test_pauses_that_come_around_are_no_steps():
    """Power falls for a checkpoint of 0.8 s in every second one."""
    scene = alone(80.0, 0.5, [ON_CPU])
    for tick in range(300):
        rests = tick % 22 < 8
        scene.gpus[0] |= {"power_w": 80.0 if rests else 300.0, "util_pct": 0.0 if rests else 95.0}
        frame = scene.next_frame(0.1)
        scene.board.fold(frame)
        scene.engine.follow(scene.board, frame)
    (job,) = scene.engine.facts.jobs
    assert job.pauses.spans
    assert job.step is None


def test_a_moment_of_less_power_now_and_then_is_no_step():
    """It writes a line of its log, or a checkpoint in a thread."""
    rhythm = Rhythm()
    for i in range(150):
        rhythm.push(i * 100_000_000, 620.0 if i % 18 == 13 else 700.0 - i % 2)
    assert rhythm.per_s() is None


def averaged(period_s: float) -> Rhythm:
    """Utilization of steps that work for 60 % of their time, each reading the mean of a tenth of a second."""
    rhythm = Rhythm()
    for i in range(150):
        busy = sum((i / 10 + k / 1000) % period_s < 0.6 * period_s for k in range(100))
        rhythm.push(i * 100_000_000, float(busy), averaged=True)
    return rhythm


def test_steps_faster_than_the_readings_have_no_rhythm():
    assert averaged(1.0).per_s() == pytest.approx(1.0, rel=0.06)
    assert [averaged(1 / pace).per_s() for pace in (7.1, 7.95, 8.5, 12.95)] == [None] * 4


@pytest.mark.parametrize(
    "rhythm", [pushed(None), pushed(None, noise=0.1), pushed(1.0, seconds=4.0), Rhythm()], ids=["noise", "flat", "short", "empty"]
)
def test_no_rhythm_no_pace(rhythm: Rhythm):
    assert rhythm.per_s() is None


def test_a_step_is_divided_as_its_trainer_spends_its_time():
    scene = training(util=80.0)
    scene.procs[100].run, scene.procs[100].looks = 0.1, [FUTEX]
    scene.probed = True
    scene.calls = {(100, "cuStreamSynchronize"): (10, 0.8, 0), (100, "cuMemcpyHtoDAsync_v2"): (10, 0.05, 1e7)}
    scene.play(4)
    step = scene.engine.facts.jobs[0].step
    assert (step.per_s, step.source) == (pytest.approx(10, rel=0.02), "CUDA calls")
    assert step.gpu_wait_ms == pytest.approx(80, rel=0.1)
    assert step.transfer_ms == pytest.approx(5, rel=0.2)
    assert scene.engine.verdict.step.per_s == pytest.approx(10, rel=0.02)


def test_what_it_waits_for_who_feeds_it_is_input_wait():
    scene = throttled_actors()
    scene.calls = {(100, "cuStreamSynchronize"): (10, 0.4, 0)}
    engine = scene.play(4).engine
    parts = engine.explain().verdict.step_ms
    assert (parts.input_wait, parts.gpu_wait) == (pytest.approx(50, rel=0.1), pytest.approx(40, rel=0.1))
    assert engine.states[100].state == "waiting-data"


def test_the_pace_of_a_stretch_counts_the_time_at_rest_and_an_item_once():
    """Six seconds at ten steps a second, each with a copy that waits and a synchronize; then six in which nothing is done."""
    scene = training()
    scene.probed, scene.calls = True, {
        (100, "cuMemcpyHtoDAsync_v2"): (10.0, 0.01, 1e6), (100, "cuMemcpyDtoH_v2"): (10.0, 0.4, 40.0),
        (100, "cuStreamSynchronize"): (10.0, 0.3, 0.0),
    }  # fmt: skip
    scene.play(6.2)
    assert scene.engine.explain().verdict.steps_per_s == pytest.approx(10, rel=0.02)
    scene.calls, scene.gpus[0]["util_pct"] = dict.fromkeys(scene.calls, (0.0, 0.0, 0.0)), 0.0
    scene.play(6)
    assert scene.engine.explain().verdict.steps_per_s == pytest.approx(5, rel=0.05)


@pytest.mark.parametrize(("util", "steps"), [(60.0, pytest.approx(1.0)), (0.0, None)])
def test_a_gpu_without_work_makes_no_steps(util: float, steps: float | None):
    """Its power may rise and fall all the same."""
    scene = training(util=util)
    for tick in range(200):
        scene.gpus[0]["power_w"] = 80.0 if tick % 10 < 5 else 70.0
        frame = scene.next_frame(0.1)
        scene.board.fold(frame)
        scene.engine.follow(scene.board, frame)
    assert scene.engine.explain().verdict.steps_per_s == steps


def bursts(*made: int, calls: tuple[str, ...] = ("cuMemcpyHtoDAsync_v2",)) -> Bursts:
    """So many copies between one reading and the next, by each of these calls."""
    found, count = Bursts(), 100
    for copies in made:
        count += copies
        for name in (*calls, "cuStreamSynchronize"):
            found.note(CudaCall(7, name, count, 0, 0))
        found.end_reading()
    return found


@pytest.mark.parametrize(
    ("made", "copies"),
    [
        ((0, *(2, 0, 0) * 12), 2), ((0, *(1, 1, 0) * 12), 2), ((5, *(2, 0) * 12), 2), ((0, *(1, 0, 0) * 12), 1),
        ((0, *(2, 0, 0, 0, 1, 0) * 6), None), ((2, 1) * 20, None), ((0, *(2, 0) * 5), None), ((), None), ((0,) * 50, None),
    ],
    ids=["pairs", "pairs over two readings", "begins amid one", "single", "differing", "no rest between", "few", "nothing", "no copies"],
)  # fmt: skip
def test_copies_that_come_together(made: tuple[int, ...], copies: int | None) -> None:
    assert bursts(*made).copies == copies


def test_a_step_of_a_rank_whose_buckets_all_have_a_wait_is_counted_once() -> None:
    """Two copies and four waits in each of 3 steps a second: the rarer of both sets twice that pace."""
    job = training().play(2).engine.facts.jobs[0]
    calls = CallFacts(SECONDS, most_syncs_per_s=12.0, to_gpu_per_s=6.0, rates=(12.0, 12.0))
    own = replace(job, cuda=CudaFacts(calls))
    steps = [step_of(own, _steady(calls), None, data, each) for data, each in ((0.0, 2), (0.0, None), (0.4, 2))]
    paces = [step and step.per_s for step in steps]
    assert paces == [3.0, 6.0, 6.0], "batches of a loader that is slow come in bunches, too"


def _steady(calls: CallFacts) -> Clock:
    clock = Clock()
    for _ in range(8):
        clock.note(calls)
    return clock
