"""Whose kernels run on a job's GPU, and what that costs the job."""

from __future__ import annotations

import pytest

from gputop.findings.verdict import Verdict
from tests.unit.diagnosis.causes import straggling_gpu
from tests.unit.diagnosis.causes_gpu import beside_a_neighbour, gpu_by_turns, gpu_under_mps, waiting_beside_a_neighbour
from tests.unit.diagnosis.scene import SLEEP, Proc, Scene


def judged(scene: Scene, trainer: int = 100) -> Verdict:
    """The verdict on one of the trainers: a neighbour without a sign of what it is counts as one, too."""
    return scene.play(12).engine.standing[trainer].verdict


def test_the_culprit_is_named_with_its_user_and_what_it_takes() -> None:
    verdict = judged(gpu_by_turns())
    assert [one.pid for one in verdict.culprits] == [900]
    assert verdict.victims[0].pid == 100
    assert "whisper-cli (900, user bob)" in verdict.detail
    evidence = {one.metric: one.value for one in verdict.evidence}
    assert evidence["gpu_taken_pct"] == pytest.approx(49.0, abs=1.0)
    assert evidence["gpu_own_pct"] == pytest.approx(50.0, abs=1.0)
    assert verdict.lost_pct == pytest.approx(50.0, abs=2.0)
    assert verdict.path[0].on.startswith("kernels of whisper-cli")


@pytest.mark.parametrize(("own", "theirs", "lost"), [(50.0, 49.0, 50), (74.0, 25.0, 26), (20.0, 79.0, 21), (33.0, 33.0, 0)])
def test_turns_are_even_and_a_gpu_with_time_left_makes_nobody_wait(own: float, theirs: float, lost: float) -> None:
    """A neighbour that works in the gaps of the job takes more than it keeps the job from."""
    verdict = judged(beside_a_neighbour(own, theirs, util=min(99.0, own + theirs)))
    waited = next((one.value for one in verdict.evidence if one.metric == "gpu_waited_pct"), 0.0)
    assert (verdict.cause == "gpu-shared") is (lost > 0)
    assert waited == pytest.approx(lost, abs=2.0)


def test_a_neighbour_that_works_while_the_trainer_waits_for_data_is_no_cause() -> None:
    assert judged(waiting_beside_a_neighbour()).cause != "gpu-shared"


def test_a_neighbour_without_samples_takes_nothing() -> None:
    scene = gpu_by_turns()
    del scene.gpus[0]["ran"]
    verdict = judged(scene)
    assert verdict.cause != "gpu-shared"


def test_a_list_of_another_namespace_names_no_neighbour() -> None:
    """In a container the driver lists the host's pids: the one that works may be the trainer itself."""
    scene = gpu_by_turns().drop(900)
    scene.gpus[0] |= {"pids": [70_001, 70_002], "ran": {70_001: 50.0, 70_002: 49.0}}
    assert judged(scene).cause != "gpu-shared"


def test_programs_that_the_job_started_are_its_own() -> None:
    scene = gpu_by_turns().drop(900)
    scene.add(Proc(850, ppid=100, comm="sh", cmdline=["sh", "-c", "evaluate"]))
    scene.add(Proc(900, ppid=850, comm="evaluate", cmdline=["/usr/bin/evaluate"], run=0.1, looks=[SLEEP], info={"libs": []}))
    scene.play(12)
    assert all(one.cause != "gpu-shared" for one in scene.engine.standing.values())


def test_two_programs_of_one_shell_are_neighbours() -> None:
    scene = gpu_by_turns()
    scene.add(Proc(50, comm="bash", cmdline=["bash"]))
    scene.procs[100].ppid = scene.procs[900].ppid = 50
    assert judged(scene).cause == "gpu-shared"


def test_of_two_that_wait_for_each_other_the_newcomer_is_to_blame() -> None:
    scene = gpu_by_turns()
    for first, second in ((100, 900), (900, 100)):
        scene.procs[first].start_ticks, scene.procs[second].start_ticks = 1_000, 60_000
        verdict = scene.play(12).engine.verdict
        assert ([one.pid for one in verdict.victims], [one.pid for one in verdict.culprits]) == ([first], [second])


def test_kernels_side_by_side_take_nothing_while_sms_are_free() -> None:
    scene = gpu_under_mps()
    assert "MPS" in judged(scene).detail
    scene.gpus[0]["sm_active_pct"] = 30.0
    assert judged(scene).cause != "gpu-shared"


def test_a_free_gpu_is_offered_first() -> None:
    scene = gpu_by_turns()
    scene.gpus[1] = {"util_pct": 0.0, "power_w": 70.0, "power_limit_w": 400.0}
    assert judged(scene).fixes[0].command == "export CUDA_VISIBLE_DEVICES=1"
    scene.gpus[1] |= {"pids": [950]}  # held: its owner is at lunch
    assert not any("VISIBLE" in fix.command for fix in judged(scene).fixes)


def test_a_gpu_of_which_nothing_is_known_is_not_offered() -> None:
    scene = gpu_by_turns()
    scene.gpus[1] = {"power_limit_w": 400.0}
    assert not any("VISIBLE" in fix.command for fix in judged(scene).fixes)


def test_the_late_rank_of_a_shared_gpu_has_its_neighbour_named() -> None:
    scene = straggling_gpu()
    scene.gpus[1] |= {"pids": [200, 900], "ran": {200: 50.0, 900: 49.0}}
    scene.add(Proc(900, comm="whisper-cli", cmdline=["/usr/bin/whisper-cli"], run=0.1, looks=[SLEEP], info={"libs": []}))
    verdict = judged(scene, 200)
    assert verdict.cause == "straggler-rank"
    assert 900 in {one.pid for one in verdict.culprits}
    assert "whisper-cli (900)" in verdict.detail
