"""One process with several GPUs: whether they take turns, or the host leaves all of them without work."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis.scene import ON_CPU, QUEUE, SLEEP, Proc, Scene

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


@pytest.mark.parametrize("utils", [(50.0, 50.0), (20.0, 65.0, 12.0), (24.0, 26.0, 25.0, 25.0)], ids=["two", "uneven", "four"])
@pytest.mark.parametrize("sync", [None, 0.97], ids=["by /proc", "probed"])
def test_gpus_that_work_one_after_the_other_are_no_fault_of_the_host(utils: tuple[float, ...], sync: float | None):
    scene = on_gpus(*utils, run=0.01, looks=[SLEEP], sync=sync)
    assert told(scene) == ("wait-heavy", "undersized-work", "info")
    verdict = scene.engine.verdict
    assert "The host is not late" in verdict.detail
    assert "one after the other" in verdict.headline
    assert all(incident.severity == "info" for incident in scene.engine.incidents)
    assert scene.engine.ledger.by_cause["undersized-work"] > 0.9 * scene.engine.ledger.gpu_lost_s


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
