"""One process with several GPUs: whether they take turns, or the host leaves all of them without work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.diagnosis.scene import FUTEX, HIDDEN, ON_CPU, QUEUE, SLEEP, Proc, Scene

SYNC = (100, "cuStreamSynchronize")


def on_gpus(*utils: float, run: float, looks: list[dict], sync: float | None = None) -> Scene:
    """A trainer without workers on GPUs that work so much of the time each; ``sync``: of its own time in waits for them, where probed."""
    scene = Scene(gpus={i: {"util_pct": util, "power_w": 300.0, "power_limit_w": 400.0, "pids": [100]} for i, util in enumerate(utils)})
    scene.add(Proc(100, run=run, looks=looks, info={"uses_cuda": True}))
    if sync is not None:
        scene.probed, scene.calls = True, {SYNC: (10.0, sync, 0)}
    return scene


def told(scene: Scene) -> tuple[str, str, str]:
    verdict = scene.play(6).engine.verdict
    return verdict.symptom, verdict.cause, verdict.severity


def play(scene: Scene, utils: Callable[[int], tuple[float, ...]], field: str = "gr_active_pct", seconds: float = 6.0) -> Scene:
    """Readings that differ from one tenth of a second to the next: ``utils`` of its number."""

    def work(i: int) -> None:
        for gpu, pct in zip(scene.gpus.values(), utils(i), strict=True):
            gpu[field] = pct
            gpu.setdefault("util_pct", pct)

    return scene.play_tenths(work, seconds)


def claimed(scene: Scene) -> float:
    """Part of the loss that is put down to GPUs in turn."""
    return scene.engine.ledger.by_cause.get("undersized-work", 0.0) / scene.engine.ledger.gpu_lost_s


@pytest.mark.parametrize("utils", [(50.0, 50.0), (20.0, 65.0, 12.0), (24.0, 26.0, 25.0, 25.0)], ids=["two", "uneven", "four"])
def test_gpus_that_the_host_always_waits_for_work_one_after_the_other_and_are_no_fault_of_it(utils: tuple[float, ...]):
    scene = on_gpus(*utils, run=0.01, looks=[SLEEP], sync=0.97)
    assert told(scene) == ("wait-heavy", "undersized-work", "info")
    verdict = scene.engine.verdict
    assert "The host is not late" in verdict.detail
    assert "one after the other" in verdict.headline
    assert all(incident.severity == "info" for incident in scene.engine.incidents)
    assert claimed(scene) > 0.9


@pytest.mark.parametrize("utils", [(50.0, 50.0), (24.0, 26.0, 25.0, 25.0), (40.0, 40.0), (37.0,) * 4], ids=["two", "four", "gap", "over"])
@pytest.mark.parametrize("looks", [[SLEEP], [FUTEX], [HIDDEN]], ids=["timer", "lock", "unknown"])
def test_of_steady_means_nobody_knows_whether_they_are_of_the_same_time(utils: tuple[float, ...], looks: list[dict]):
    """The host may wait for one GPU after the other, or sleep for something else while both rest."""
    scene = on_gpus(*utils, run=0.01, looks=looks)
    assert told(scene)[:2] == ("wait-heavy", "unexplained")
    verdict = scene.engine.verdict
    assert claimed(scene) < 0.02
    assert not any(word in verdict.headline + verdict.detail for word in ("one after the other", "at once", "not late"))


def test_steps_that_wait_for_both_at_once_are_the_hosts():
    """nn.DataParallel: both at work 24 of 60 ms, and the main thread waits for both meanwhile."""
    for sync in (0.42, 0.45):
        scene = on_gpus(40.0, 40.0, run=0.55, looks=[ON_CPU, SLEEP], sync=sync)
        assert told(scene)[1:] == ("main-thread-preprocessing", "high")
        assert claimed(scene) < 0.15


def test_waits_of_several_threads_at_a_time_are_not_added_up():
    """Each thread of the trainer waits for its own GPU, both meanwhile; its main thread waits for these."""
    scene = on_gpus(40.0, 40.0, run=0.05, looks=[FUTEX], sync=0.8)
    scene.procs[100].threads = {150: (0.01, 0.0), 151: (0.01, 0.0)}
    scene.thread_calls = {(150, SYNC[1]): 0.4, (151, SYNC[1]): 0.4}
    told(scene)
    assert claimed(scene) < 0.05


def test_more_than_all_of_the_time_together_is_not_one_after_the_other():
    scene = on_gpus(*(37.0,) * 4, run=0.01, looks=[SLEEP], sync=0.97)
    verdict = scene.play(6).engine.verdict
    assert "one after the other" not in verdict.headline
    assert "hardly ever" not in verdict.detail


@pytest.mark.parametrize("field", ["util_pct", "gr_active_pct"])
def test_readings_that_are_high_by_turns_are_of_gpus_that_take_turns(field: str):
    """Each works for half a second while the other rests: that outlasts a reading."""
    scene = play(on_gpus(0.0, 0.0, run=0.01, looks=[SLEEP]), lambda i: (100.0, 0.0) if i // 5 % 2 else (0.0, 100.0), field)
    assert scene.engine.verdict.cause == "undersized-work"
    assert claimed(scene) > 0.9


def test_exact_readings_whose_sum_stands_still_at_all_of_the_time_are_of_gpus_that_take_turns():
    """Steps of 105 ms beside readings of 100 ms: what one GPU gains the other loses."""
    scene = play(on_gpus(0.0, 0.0, run=0.01, looks=[SLEEP]), lambda i: (45.0, 55.0) if i // 10 % 2 else (40.0, 60.0))
    assert scene.engine.verdict.cause == "undersized-work"
    assert "one after the other" in scene.engine.verdict.headline


@pytest.mark.parametrize(
    ("field", "utils"),
    [
        ("util_pct", lambda i: (45.0, 55.0) if i // 10 % 2 else (40.0, 60.0)),  # each over time of its own
        ("gr_active_pct", lambda i: (45.0, 45.0) if i // 10 % 2 else (40.0, 40.0)),
        ("gr_active_pct", lambda i: (35.0, 25.0) if i // 10 % 2 else (25.0, 35.0)),  # two models for a steady demand
        ("gr_active_pct", lambda i: (35.0, 45.0)[:: 1 if i % 3 else -1]),
        ("gr_active_pct", lambda i: (50.0 + i % 2, 50.0 - i % 2)),  # rounded
    ],
    ids=["driver's means", "together", "demand", "noise", "rounding"],
)
def test_readings_that_do_not_show_turns_claim_none(field: str, utils: Callable[[int], tuple[float, ...]]):
    scene = play(on_gpus(0.0, 0.0, run=0.01, looks=[SLEEP]), utils, field)
    assert scene.engine.verdict.cause != "undersized-work"
    assert claimed(scene) < 0.25


def test_one_that_works_more_than_the_others_is_told_without_acquitting_the_host():
    scene = on_gpus(20.0, 65.0, 12.0, run=0.01, looks=[SLEEP])
    assert told(scene)[:2] == ("wait-heavy", "undersized-work")
    assert "not late" not in scene.engine.verdict.detail
    assert claimed(scene) == pytest.approx((0.65 - 0.97 / 3) / (1 - 0.97 / 3), abs=0.02)


def test_two_that_work_together_half_of_the_time_wait_for_the_host():
    assert told(on_gpus(50.0, 50.0, run=0.5, looks=[ON_CPU, SLEEP], sync=0.48))[1:] == ("main-thread-preprocessing", "high")


def test_what_the_host_takes_of_gpus_that_also_take_turns_is_its_own():
    scene = on_gpus(20.0, 20.0, run=0.55, looks=[ON_CPU, SLEEP], sync=0.4)
    assert told(scene)[1] == "main-thread-preprocessing"
    by_cause, lost_s = scene.engine.ledger.by_cause, scene.engine.ledger.gpu_lost_s
    assert by_cause["main-thread-preprocessing"] == pytest.approx(0.6 / 0.8 * lost_s, rel=0.15)
    assert by_cause["undersized-work"] == pytest.approx(0.2 / 0.8 * lost_s, rel=0.15)


def test_readings_that_meet_both_at_work_say_that_they_are_no_turns():
    """Without probes: one second both work, the next neither does, and the trainer sleeps for something."""
    scene = on_gpus(0.0, 0.0, run=0.01, looks=[SLEEP])
    for i in range(60):
        for gpu in scene.gpus.values():
            gpu["util_pct"] = 100.0 * (i // 5 % 2)
        frame = scene.next_frame(0.2)
        scene.board.fold(frame)
        scene.engine.look(frame)
        scene.engine.feed(scene.board)
    assert scene.engine.ledger.by_cause.get("undersized-work", 0.0) < 0.1 * scene.engine.ledger.gpu_lost_s


def test_a_gpu_without_any_work_is_told_as_that():
    verdict = on_gpus(95.0, 0.0, run=0.02, looks=[SLEEP], sync=0.95).play(6).engine.verdict
    assert verdict.cause == "undersized-work"
    assert "GPU 1 got no work" in verdict.detail


def test_gpus_of_a_trainer_that_waits_for_its_workers_take_no_turns():
    scene = on_gpus(30.0, 30.0, run=0.1, looks=[QUEUE])
    scene.add(*(Proc(101 + i, ppid=100, comm="pt_data_worker", start_ticks=50_100 + i, run=0.97, looks=[ON_CPU]) for i in range(2)))
    assert told(scene)[0] == "input-bound"
