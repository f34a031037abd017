"""Pauses, which are no faults, told from waits that are: checkpoints, evaluations, and what only looks like one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop.findings.verdict import LOOKING
from tests.unit.diagnosis.causes import alone
from tests.unit.diagnosis.scene import AWAIT, DISK, EPOLL, FUTEX, ON_CPU, QUEUE, READ, SLEEP, SOCKET, TURN, Proc, Scene, training


def test_a_pause_after_steady_training_is_no_fault():
    scene = alone(98.0, 0.1, [FUTEX]).play(6)
    scene.gpus[0]["util_pct"] = 0.0
    scene.procs[100].run, scene.procs[100].looks, scene.procs[100].write_bytes = 0.6, [ON_CPU, DISK], 200_000_000
    scene.play(3)
    assert (scene.engine.verdict.symptom, scene.engine.verdict.cause) == ("idle", "pause")
    scene.gpus[0]["util_pct"] = 98.0
    scene.procs[100].run, scene.procs[100].looks, scene.procs[100].write_bytes = 0.1, [FUTEX], 0
    scene.play(8)
    assert [incident.cause for incident in scene.engine.incidents] == ["pause"]
    assert {incident.severity for incident in scene.engine.incidents} == {"info"}
    assert scene.engine.verdict.symptom == "healthy"


def starting(scene: Scene, gap_s: float) -> Scene:
    """So long after the last trainer ended, or where none was, another begins on GPU 0: it prepares its data first."""
    scene.drop(*scene.procs).gpus[0] = {"util_pct": 0.0}
    scene.play(gap_s)
    return scene.add(Proc(200, run=0.9, looks=[ON_CPU], info={"uses_cuda": True}, start_ticks=scene.ticks))


def verdicts(scene: Scene, seconds: float) -> set[tuple[str, str]]:
    """What is said meanwhile, looked at all the time."""
    said = set()
    for _ in range(round(seconds / 0.2)):
        verdict = scene.play(0.2).engine.verdict
        said.add((verdict.symptom, verdict.cause))
    return said


@pytest.mark.parametrize("before_s", [0.0, 6.0])
def test_who_starts_where_another_worked_before_does_not_pause(before_s: float):
    """Nor is it slow, shortly after its GPU began to work, by what it did before."""
    scene = starting(alone(98.0, 0.1, [FUTEX]).play(before_s), 1.0)
    assert verdicts(scene, 6) <= {("idle", "none")}
    assert "is starting" in scene.engine.verdict.headline
    scene.gpus[0] |= {"util_pct": 98.0, "pids": [200]}
    scene.procs[200].run, scene.procs[200].looks = 0.1, [FUTEX]
    assert verdicts(scene, 3) == {(LOOKING, "none"), ("healthy", "none")}
    assert scene.engine.incidents == []
    assert before_s + 2.5 <= scene.engine.explain().ledger.gpu_total_s <= before_s + 3.0


def test_what_a_gpu_did_for_another_is_no_pause_of_who_has_not_used_it_yet():
    """Also where its start takes longer than starts do."""
    scene = starting(alone(98.0, 0.1, [FUTEX]).play(6), 0.2).play(36)
    assert scene.engine.verdict.cause == "none"
    assert scene.play(280).engine.verdict.cause == "main-thread-preprocessing"
    assert "pause" not in {one.cause for one in scene.engine.incidents}


def test_the_last_reading_of_another_is_no_work_for_who_has_just_begun():
    scene = starting(alone(98.0, 0.1, [FUTEX]).play(6), 0.0)
    scene.gpus[0]["util_pct"] = 40.0
    scene.play(0.8).gpus[0]["util_pct"] = 0.0
    assert verdicts(scene, 4) == {("idle", "none")}


def test_a_server_between_two_requests_does_not_pause():
    """The mean of a second tells of a short request as of work for as long."""
    scene = alone(2.0, 0.0, [EPOLL]).drop(101, 102)
    scene.procs[100].info["sockets"] = "listening"
    scene.play(4).gpus[0]["util_pct"] = 0.0
    verdict = scene.play(4).engine.verdict
    assert (verdict.symptom, verdict.cause) == ("idle", "none")
    assert scene.engine.incidents == []


@pytest.mark.parametrize(("looks", "rests"), [([SLEEP], True), ([DISK], False)])
def test_who_types_now_and_then_does_not_load_for_a_notebook(looks: list[dict], rests: bool):
    """The probe sees only who wakes it."""
    scene = alone(10.0, 0.02, [EPOLL, EPOLL, EPOLL, SLEEP]).drop(101, 102)
    scene.probed, scene.wakeups = True, {(100, 900): 0.56, (100, 0): 0.07}
    verdict = scene.add(Proc(900, cmdline=["jupyter", "console"], run=0.001, looks=looks)).play(6).engine.verdict
    assert (verdict.symptom == "idle") == rests


def saving(busy_s: float, idle_s: float, cycles: int = 8, looks: list[dict] | None = None, programs: float = 0.0) -> Scene:
    """Its workers are ahead; after some steps each the main thread waits for a program. ``programs``: CPUs used by those that ended."""
    scene = training(util=100.0)
    scene.procs[100].children = programs
    scene.procs[100].run, scene.procs[100].looks = 0.03, looks or [SLEEP]
    for _ in range(cycles):
        scene.gpus[0]["util_pct"] = 98.0
        scene.play(busy_s, 0.1)
        scene.gpus[0]["util_pct"] = 0.0
        scene.play(idle_s, 0.1)
    return scene


SPAWNED = ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)", "--multiprocessing-fork"]


@pytest.mark.parametrize(("before", "cause"), [(0, "pause"), (2, "worker-respawn")])
def test_a_pool_that_evaluates_is_no_loader(before: int, cause: str):
    """It made its steps without one. Where workers gave it batches, those that follow them owe it some, too."""
    scene = training(before, util=100.0, run=0.2).play(8)
    scene.gpus[0]["util_pct"] = 0.0
    scene.drop(*(101 + i for i in range(before)))
    scene.procs[100].run, scene.procs[100].looks = 0.0, [AWAIT]
    pool = [Proc(201 + i, 100, cmdline=SPAWNED, run=0.98, switches=2, looks=[ON_CPU], start_ticks=scene.ticks) for i in range(2)]
    scene.cpus = 2
    verdict = scene.add(*pool).play(9).engine.verdict
    assert verdict.cause == cause
    assert ("it waits for programs of its own" in verdict.detail) == (cause == "pause")
    assert {one.severity for one in scene.engine.incidents if one.cause == "pause"} <= {"info"}
    assert "hangs" not in verdict.headline


def test_one_whose_batches_let_the_gpu_work_is_one():
    """After a first epoch without workers."""
    scene = training(0).play(8)
    scene.procs[100].looks = [QUEUE]
    scene.add(*(Proc(201 + i, 100, "pt_data_worker", run=0.98, switches=20, looks=[ON_CPU], start_ticks=scene.ticks) for i in range(2)))
    scene.cpus, scene.gpus[0]["util_pct"] = 2, 40.0
    assert scene.play(12).engine.verdict.cause == "slow-transform"


@pytest.mark.parametrize(("switches", "cause"), [(0, "pause"), (50, "main-thread-preprocessing")])
def test_an_evaluation_gives_the_gpu_little_and_asks_the_workers_for_nothing(switches: int, cause: str):
    """Who prepares batches in the main thread takes them from the workers all the same."""
    scene = training(util=95.0, run=0.0).play(6)
    scene.gpus[0]["util_pct"] = 8.0
    scene.procs[100].run, scene.procs[100].looks = 0.8, [ON_CPU]
    for pid in (101, 102):
        scene.procs[pid].run, scene.procs[pid].switches = 0.0, switches
    scene.play(3)
    assert scene.engine.verdict.cause == cause
    scene.play(0.4)
    assert ("hardly any work for the GPU" in scene.engine.verdict.detail) == (cause == "pause")


def test_short_pauses_again_and_again_are_pauses():
    verdict = saving(0.7, 0.6).engine.verdict
    assert (verdict.symptom, verdict.cause) == ("idle", "pause")
    assert "again and again" in verdict.detail


@pytest.mark.parametrize(
    ("busy_s", "idle_s", "programs", "cause"),
    [
        (0.7, 0.2, 0.15, "pause"),
        (0.7, 0.2, 0.0, "main-thread-preprocessing"),
        (0.2, 0.2, 0.15, "main-thread-preprocessing"),  # one for each step
    ],
)
def test_programs_tell_a_short_pause_from_a_slow_step(busy_s: float, idle_s: float, programs: float, cause: str):
    verdict = saving(busy_s, idle_s, programs=programs).engine.verdict
    assert verdict.cause == cause
    assert ("programs of its own" in verdict.detail) == (cause == "pause")


@pytest.mark.parametrize(("write_bytes", "cause"), [(300_000_000, "pause"), (0, "main-thread-preprocessing")])
def test_a_short_save_into_memory_is_told_by_what_is_written(write_bytes: int, cause: str):
    """torch.save computes; that its pages reach a disk nobody waits for."""
    scene = training(util=82.0).play(6)
    scene.procs[100].run, scene.procs[100].looks, scene.procs[100].write_bytes = 0.9, [ON_CPU], write_bytes
    scene.gpus[0]["util_pct"] = 0.0
    scene.play(0.55, 0.05)
    scene.procs[100].run, scene.procs[100].write_bytes = 0.1, 0
    scene.gpus[0]["util_pct"] = 82.0
    scene.play(0.5, 0.1)
    assert scene.engine.verdict.cause == cause


@pytest.mark.parametrize(("write_bytes", "cause"), [(300_000_000, "pause"), (0, "main-thread-preprocessing")])
def test_without_workers_short_pauses_are_told_by_what_is_written(write_bytes: int, cause: str):
    scene = alone(100.0, 0.1, [SLEEP, SLEEP, DISK]).drop(101, 102)
    scene.procs[100].write_bytes = write_bytes
    for _ in range(6):
        scene.gpus[0]["util_pct"], scene.procs[100].run = 98.0, 0.05
        scene.play(2.0, 0.1)
        scene.gpus[0]["util_pct"], scene.procs[100].run = 0.0, 0.6
        scene.play(0.6, 0.1)
    assert scene.engine.verdict.cause == cause


def test_when_the_first_rank_saves_for_all_those_that_wait_for_it_pause_too():
    scene = Scene()
    for rank, pid in enumerate((100, 200)):
        env = {"RANK": str(rank), "WORLD_SIZE": "2"}
        scene.gpus[rank] = {"util_pct": 98.0, "pids": [pid]}
        scene.add(Proc(pid, run=0.04, looks=[SLEEP], info={"uses_cuda": True, "env": env}))
    scene.play(6)
    for gpu in scene.gpus.values():
        gpu["util_pct"] = 0.0
    scene.procs[100].run, scene.procs[100].write_bytes, scene.procs[200].looks = 0.9, 300_000_000, [READ]
    verdict = scene.play(2).engine.verdict
    assert verdict.cause == "pause"
    assert "slower" not in verdict.headline


@pytest.mark.parametrize(("write_bytes", "cause"), [(300_000_000, "pause"), (0, "straggler-rank")])
def test_a_rank_that_saves_for_all_now_and_then_is_known_by_what_it_writes(write_bytes: int, cause: str):
    """Each save is too short for a pause of its own."""
    scene = Scene()
    for rank, pid in enumerate((100, 200)):
        env = {"RANK": str(rank), "WORLD_SIZE": "2"}
        scene.gpus[rank] = {"util_pct": 60.0, "pids": [pid]}
        scene.add(Proc(pid, run=0.04, looks=[AWAIT, AWAIT, SLEEP], info={"uses_cuda": True, "env": env}))
        scene.add(Proc(pid + 1, pid, comm="pt_data_worker", start_ticks=50_100))
    scene.procs[100].run, scene.procs[100].looks, scene.procs[100].write_bytes = 0.4, [ON_CPU, SLEEP], write_bytes
    verdict = scene.play(6).engine.verdict
    assert verdict.cause == cause
    told = [one.detail for one in scene.engine.incidents]
    assert any(detail.endswith("; train.py rank 0 (100) writes 300 MB/s: a checkpoint") for detail in told) == bool(write_bytes)


def test_every_steps_own_wait_is_no_pause():
    assert saving(0.2, 0.3, 20).engine.verdict.cause == "main-thread-preprocessing"


def blurred(writes: int = 0, in_calls: bool = True, cycles: int = 3) -> Scene:
    """Its GPU's readings are means of a second, and show no pause of 0.8 s in three."""
    scene = training(util=70.0)
    scene.procs[100].write_bytes, scene.probed = writes, in_calls
    step = {(100, "cuMemcpyHtoDAsync"): (10, 0.001, 1e6), (100, "cuCtxSynchronize"): (10, 0.85, 0)}
    for steps_s, pause_s in [*[(2.2, 0.8)] * cycles, (0.6, 0.0)]:
        scene.procs[100].run, scene.procs[100].looks, scene.calls = 0.9, [ON_CPU], step
        looking(scene, steps_s)
        scene.procs[100].run, scene.procs[100].looks, scene.calls = 0.6, [DISK], {}
        looking(scene, pause_s)
    return scene


def looking(scene: Scene, seconds: float, step_s: float = 0.1) -> None:
    """As `Scene.play`, with every frame looked at, as live."""
    for _ in range(round(seconds / step_s)):
        frame = scene.next_frame(step_s)
        scene.board.fold(frame)
        scene.engine.follow(scene.board, frame)


def test_a_trainer_that_leaves_cuda_alone_between_steps_pauses():
    verdict = blurred().engine.verdict
    assert (verdict.symptom, verdict.cause) == ("idle", "pause")
    assert "again and again" in verdict.detail


@pytest.mark.parametrize("every_s", [0.2, 0.4, 1.0])
def test_but_not_between_two_readings_of_its_calls(every_s: float):
    """Those of many trainers and workers are read twice in a second, or as seldom as somebody likes."""
    scene = training(util=60.0)
    scene.procs[100].run, scene.procs[100].looks, scene.probed = 0.8, [ON_CPU], True
    scene.calls = {(100, "cuMemcpyHtoDAsync"): (30, 0.001, 1e6), (100, "cuCtxSynchronize"): (30, 0.2, 0)}
    looking(scene, 8, every_s)
    assert scene.engine.verdict.cause == "main-thread-preprocessing"


def test_so_does_one_that_writes_its_weights_where_nobody_sees_its_calls():
    assert blurred(in_calls=False).engine.verdict.cause != "pause"
    verdict = blurred(200_000_000, in_calls=False).engine.verdict
    assert (verdict.symptom, verdict.cause) == ("idle", "pause")
    assert "checkpoint" in verdict.detail


def test_nor_are_those_in_which_its_own_threads_keep_the_interpreter():
    scene = alone(98.0, 0.05, [TURN]).play(6)
    scene.gpus[0]["util_pct"], scene.procs[100].switches, scene.procs[100].threads = 0.0, 180, {151: (0.5, 0.0), 152: (0.45, 0.0)}
    assert scene.play(3).engine.verdict.cause == "gil-contention"


def test_nor_are_the_waits_of_one_whose_workers_are_late():
    scene = saving(0.7, 0.6, 2, looks=[QUEUE])
    scene.procs[101].looks = scene.procs[102].looks = [SOCKET]
    for _ in range(6):
        scene.gpus[0]["util_pct"] = 98.0
        scene.play(0.7, 0.1)
        scene.gpus[0]["util_pct"] = 0.0
        scene.play(0.6, 0.1)
    assert scene.engine.verdict.cause == "network-io"


def evaluating(train_s: float, evaluate_s: float, loader: tuple[int, int] = (103, 104), cycles: int = 1) -> Scene:
    """Training that keeps the GPU busy, then batches of ``loader`` between which the main thread computes."""
    scene = training(util=99.0)
    scene.add(*(replace(scene.procs[101], pid=pid) for pid in (103, 104)))
    for _ in range(cycles):
        load_from(scene, (101, 102))
        scene.gpus[0]["util_pct"], scene.procs[100].run, scene.procs[100].looks = 99.0, 0.1, [FUTEX]
        scene.play(train_s)
        load_from(scene, loader)
        scene.gpus[0]["util_pct"], scene.procs[100].run, scene.procs[100].looks = 35.0, 0.65, [ON_CPU]
        scene.play(evaluate_s)
    return scene


def load_from(scene: Scene, pids: tuple[int, int]) -> None:
    """These workers are asked for batches, and no others."""
    for pid in (101, 102, 103, 104):
        scene.procs[pid].run, scene.procs[pid].switches = (0.2, 100) if pid in pids else (0.0, 0)


def test_an_evaluation_with_workers_of_its_own_is_a_pause():
    assert evaluating(6, 4).engine.verdict.cause == "pause"
    assert evaluating(6, 4, loader=(101, 102)).engine.verdict.cause == "main-thread-preprocessing"


def test_not_so_one_that_lasts():
    assert evaluating(6, 35).engine.verdict.cause == "main-thread-preprocessing"


def test_nor_one_that_nobody_saw_begin():
    assert evaluating(0.4, 6).engine.verdict.cause == "main-thread-preprocessing"


@pytest.mark.parametrize(("state", "command"), [("T", "kill -CONT 100"), ("t", "grep TracerPid /proc/100/status")])
def test_a_trainer_that_somebody_stopped_is_let_go_on(state: str, command: str):
    scene = alone(98.0, 0.1, [FUTEX]).play(6)
    scene.gpus[0]["util_pct"] = 0.0
    scene.procs[100].run, scene.procs[100].looks = 0.0, [{"state": state}]
    verdict = scene.play(4).engine.verdict
    assert (verdict.cause, [fix.command for fix in verdict.fixes]) == ("pause", [command])
