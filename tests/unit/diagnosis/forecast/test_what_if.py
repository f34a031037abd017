"""What a change would bring, from facts of a scene to the words."""

from __future__ import annotations

from statistics import fmean

import pytest
from msgspec.structs import replace

from gputop.diagnosis.forecast.pipeline import Pipeline
from gputop.diagnosis.forecast.whatif import Around, Reading, options
from gputop.findings.outlook import sentence, told
from gputop.findings.text import explain_lines
from gputop.findings.verdict import Culprit, WhatIf
from gputop.system.colour import painted
from tests.unit.diagnosis.causes import cpu_contention, starved
from tests.unit.diagnosis.scene import DISK, ON_CPU, Proc, Scene, training


def of(scene: Scene) -> dict[str, WhatIf]:
    return {one.change: one for one in scene.engine.what_if(scene.engine.verdict)}


def test_the_stranger_is_named_and_what_comes_back_without_it_is_at_most_the_bound():
    scene = cpu_contention().play(12)
    verdict, found = scene.engine.verdict, of(scene)
    without = found[f"without {verdict.culprits[0].name}"]
    assert without.factor is not None
    assert verdict.speedup_max is not None
    assert 1.3 < without.factor <= verdict.speedup_max
    assert found["a faster GPU"].factor == 1.0


def test_too_few_workers_are_told_how_many_would_do():
    """Two workers compute all the time on two of eight CPUs. A step takes the main thread 10 % of that, and the GPU 25 %; how far one works
    beside the other is not known."""
    scene = starved(run=1.0, looks=[ON_CPU])
    scene.cpus, scene.cpu_busy = 8, [1.0, 1.0, *[0.0] * 6]
    scene.gpus[0]["util_pct"] = 25.0
    found = of(scene.play(12))
    best = found["8 workers"]
    assert best.low is not None
    assert best.factor is not None
    assert best.low <= 1 / 0.35 < best.factor <= best.high == pytest.approx(8 / 2.1, abs=0.01)  # eight CPUs for the work of 2.1
    assert found["4 workers"].factor == pytest.approx(2.0, rel=0.05)
    assert found["a faster GPU"].factor == 1.0


def test_a_data_set_in_the_page_cache_needs_no_disk():
    scene = starved(run=0.1, looks=[DISK])
    scene.gpus[0]["util_pct"] = 10.0
    found = of(scene.play(12))
    cached = found["data set in page cache"]
    assert cached.factor is not None
    assert cached.factor > 3.0


def test_workers_that_are_no_workers_are_not_counted():
    scene = starved(run=0.4, looks=[ON_CPU])
    for pid in [pid for pid in scene.procs if pid != 100]:
        del scene.procs[pid]
    scene.procs[100] = Proc(100, cmdline=["python", "train.py"], run=0.2, threads={150: (0.9, 0.0)}, looks=[ON_CPU])
    unknown = of(scene.play(12))["other numbers of workers"]
    assert (unknown.factor, unknown.low, unknown.high) == (None, None, None)
    assert unknown.assumes == "not known: threads of its own load for it"


def test_a_window_is_read_once_however_often_the_engine_is_fed():
    scene = cpu_contention().play(12)
    kept = scene.engine.readings._kept
    assert 3 <= sum(map(len, kept.values())) <= 5
    assert scene.engine.what_if(scene.engine.verdict) is scene.engine.what_if(scene.engine.verdict)


def test_explain_says_it_in_json_and_in_a_line():
    found = cpu_contention().play(12).engine.explain()
    assert found.what_if
    factors = [one.factor for one in found.what_if if one.factor is not None]
    assert factors == sorted(factors, reverse=True)
    text = " ".join(" ".join(painted(line, on=False) for line in explain_lines(found)).split())
    assert f" if {found.what_if[0].change}" in text
    assert "a faster GPU: nothing" in text


EASING = Pipeline(
    workers=2, run=0.3, ready=0.3, disk=0.2, throttled=0.2, own=0.1, own_ready=0.1, copy=0.1, gpu=0.4, gpu_wait=0.3, cpus=2, others=1.0,
    quota=1.5,
)  # fmt: skip


def without_one(cause: str, pipeline: Pipeline = EASING, **around: object) -> dict[str, WhatIf]:
    about = replace(Around(4, 0.5, {900: 1.0}, 0.1, 0.08, 0.0, 0.0, None, ""), **around)
    spread = [replace(pipeline, gpu=pipeline.gpu * part) for part in (0.4, 1.0, 1.6, 0.7)]  # windows that differ
    found = options([Reading(one, about) for one in spread], cause, [Culprit(900, "hog", 1.0)], None)
    return {one.change: one for one in found}


@pytest.mark.parametrize("cause", ["cpu-contention", "disk-io", "memory-pressure", "cgroup-throttle", "h2d-transfer"])
def test_what_only_takes_something_away_makes_no_step_longer(cause: str) -> None:
    found = [one for change, one in without_one(cause).items() if "worker" not in change]
    assert {"a faster GPU", "all 4 CPUs of the host", "without the CPU quota", "without its copies"} <= {one.change for one in found}
    for one in found:
        assert one.low is not None
        assert one.factor is not None
        assert one.high is not None
        assert 1.0 <= one.low <= one.factor <= one.high, one


def test_a_faster_gpu_and_no_copies_save_no_more_than_their_time() -> None:
    copies = without_one("h2d-transfer", Pipeline(own=0.6, copy=0.3, gpu=0.1, gpu_wait=0.1, cpus=2))["without its copies"]
    assert copies.high == pytest.approx(1 / 0.7, abs=0.01)
    found = without_one("none", Pipeline(own=0.32, gpu=0.68, gpu_wait=0.68, cpus=2))
    gpu = fmean(0.68 * part for part in (1.0, 1.6, 0.7))  # the first window of a cause is left out
    assert found["a faster GPU"].high == pytest.approx(1 / (1 - gpu / 2), abs=0.01)


def test_work_of_the_main_thread_is_not_moved_where_nobody_counts_its_launches() -> None:
    main, numbers = "the main thread's work in the workers", "other numbers of workers"
    assert without_one("sync-storm")[main].factor is not None
    unknown = without_one("sync-storm", counts_launches=False)[main]
    assert (unknown.factor, unknown.assumes) == (None, "not known: the main thread's launches of kernels are not counted (eBPF probes)")
    alone = without_one("sync-storm", replace(EASING, workers=0, run=0.0), counts_launches=False)
    assert alone[numbers].factor is None
    assert without_one("main-thread-preprocessing", counts_launches=False)[main].factor is not None  # the judge knows by other means


def test_small_kernels_do_not_fill_a_gpu() -> None:
    busy = Pipeline(own=0.7, gpu_wait=0.3, gpu=0.6, cpus=2)
    assert without_one("small-kernels", busy)["a faster GPU"].factor is None
    assert without_one("none", busy)["a faster GPU"].factor is not None


def test_words():
    options = [WhatIf("8 workers", 1.94, 1.9, 2.0, ""), WhatIf("cached", 1.2, 0.9, 1.6, ""), WhatIf("a GPU", 1.0, 1.0, 1.0, "")]
    options.append(WhatIf("slower", 0.8, 0.7, 0.9, ""))
    assert sentence(options) == "What if: 8 workers: 1.94× · cached: 1.20× (0.9 to 1.6) · a GPU: nothing"
    assert told(options[2], closely=True) == "a GPU: 1.00× (1.00 to 1.00)"
    assert told(WhatIf("a faster GPU", 1.92, 1.71, 1.94, ""), closely=True) == "a faster GPU: 1.92× (1.71 to 1.94)", "within its band"
    assert told(WhatIf("other numbers of workers", None, None, None, "x")) == "other numbers of workers: not known"
    assert sentence([]) == ""


def test_who_is_no_taker_is_not_taken_away():
    scene = cpu_contention().play(12)
    engine, verdict = scene.engine, scene.engine.verdict
    named = engine.readings.options(verdict.trainer_pid, "cpu-contention", [Culprit(4242, "nobody", 1.0)], None)
    assert not any(one.change.startswith("without") for one in named)


def test_numbers_of_workers_that_bring_nothing_are_told_once():
    scene = training(2, 100.0, run=0.2).play(12)
    found = of(scene)
    assert found["other numbers of workers"].factor == 1.0
    assert [change for change in found if change.endswith((" worker", " workers")) and change[0].isdecimal() and "CPU" not in change] == []


def test_a_tiny_thread_that_is_late_makes_no_crowd_of_strangers():
    """The quota kept the main thread's 0.2 % of a CPU waiting; half a CPU of strangers is no dozen of threads."""
    kept = Pipeline(
        workers=2, run=0.18, throttled=0.9, own=0.002, own_ready=0.016, gpu=0.4, gpu_wait=0.42, cpus=2, others=0.52, quota=0.65,
    )  # fmt: skip
    around = Around(2, 0.0, {}, 0.0, 0.0, 0.0, 0.0, None, "")
    found = {one.change: one.factor for one in options([Reading(kept, around)], "cgroup-throttle", (), None)}
    assert found["without the CPU quota"] == pytest.approx(1 / 0.44, rel=0.1)
    assert found["other numbers of workers"] == pytest.approx(1.0, abs=0.05)


SLEEPERS = Pipeline(workers=2, run=0.2, apart=1.7, own=0.02, gpu=0.3, gpu_wait=0.3, cpus=4)


@pytest.mark.parametrize(("advised", "told"), [((), {4}), ((3,), {3, 4}), ((1,), set()), ((2,), set())])
def test_other_numbers_of_workers_do_not_contradict_the_fixes(advised: tuple[int, ...], told: set[int]):
    found = options([Reading(SLEEPERS, Around(4, 0.0, {}, 0.0, 0.0, 0.0, 0.0, None, ""))], "memory-pressure", (), None, advised)
    numbers = {int(one.change.split()[0]) for one in found if one.change.split()[-1] in ("worker", "workers") and "CPU" not in one.change}
    assert told <= numbers
    assert bool(numbers) == bool(told)
    assert not [one for one in found if advised and one.change == "other numbers of workers"]


def test_no_worker_can_take_over_an_optimizer():
    computing = Pipeline(workers=2, run=0.1, own=0.6, gpu=0.35, gpu_wait=0.35, cpus=4)
    readings = [Reading(computing, Around(4, 0.0, {}, 0.0, 0.6, 0.0, 0.0, None, ""))]
    found = {one.change: one for one in options(readings, "host-optimizer", (), 2.6)}
    assert not [change for change in found if "in the workers" in change]
    assert 1.5 < (found["the optimizer on the GPU"].factor or 0.0) <= 2.6


def test_of_a_hang_nothing_is_predicted():
    scene = cpu_contention().play(12)
    readings = scene.engine.readings.of(100, "cpu-contention")
    assert options(readings, "cpu-contention", (), None) != []
    assert options(readings, "hung-worker", (), None) == []
