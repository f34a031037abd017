"""A young trainer whose GPU nobody has seen at work is starting, unless somebody whom it needs is held as no start holds him."""

from __future__ import annotations

import pytest

from gputop.model.frame import GpuProc
from tests.unit.diagnosis.causes import starved, stopped
from tests.unit.diagnosis.scene import (
    CHILD,
    DISK,
    EPOLL,
    FUTEX,
    ON_CPU,
    POLL_SOCKET,
    QUEUE,
    READ_PIPE,
    SLEEP,
    SOCKET,
    START_S,
    Proc,
    Scene,
    training,
)


def young(scene: Scene) -> Scene:
    """All of its processes began 5 s before anybody watched; its GPU has not worked since."""
    scene.gpus[0]["util_pct"] = 0.0
    for proc in scene.procs.values():
        proc.start_ticks = (START_S - 5) * 100
    return scene


def standing(look: dict) -> Scene:
    """Both workers of a young trainer sleep there and do not stir."""
    scene = young(starved(workers=2, run=0.0, looks=[look], switches=0))
    scene.procs[100].switches, scene.procs[100].run = 0, 0.0
    return scene


def test_a_worker_that_was_stopped_before_anybody_watched_is_no_start():
    assert young(stopped()).play(4).engine.verdict.cause == "hung-worker"
    scene = standing(READ_PIPE)
    scene.procs[101].looks = [QUEUE]  # that one is ahead; the other reads from a mount that is gone
    scene.procs[102].looks = [{"state": "S", "syscall": 0, "wchan": "request_wait_answer"}]
    assert scene.play(8).engine.verdict.cause == "hung-worker"
    assert young(starved(util=0.0, workers=4)).play(4).engine.verdict.headline.endswith("is starting")


@pytest.mark.parametrize(
    "look", [FUTEX, SOCKET, POLL_SOCKET, READ_PIPE], ids=["lock of a fork", "server", "server, with a time limit", "named pipe"]
)
def test_workers_that_all_stand_before_anybody_saw_the_gpu_work_hang(look: dict):
    scene = standing(look).play(4)
    verdict = scene.engine.verdict
    assert (verdict.symptom, verdict.cause) == ("idle", "none")
    assert verdict.headline.endswith("is starting, or held up: 2 of 2 workers starve")
    verdict = scene.play(4).engine.verdict
    assert verdict.cause == "hung-worker"
    assert verdict.detail.endswith("none is left to deliver")


@pytest.mark.parametrize(
    ("look", "program"),
    [(SLEEP, None), (CHILD, None), (POLL_SOCKET, SOCKET), (SOCKET, ON_CPU)],
    ids=["pauses", "ends of programs", "programs that download", "programs that compute"],
)
def test_workers_that_wait_for_whom_they_asked_may_be_starting(look: dict, program: dict | None):
    scene = standing(look)
    if program is not None:
        runs = {"comm": "unpack", "cmdline": ["unpack"], "run": 0.9 if program is ON_CPU else 0.0, "looks": [program]}
        scene.add(*[Proc(200 + pid, ppid=pid, **runs) for pid in (101, 102)])
    scene.play(12)
    assert " is starting" in scene.engine.verdict.headline
    assert scene.engine.incidents == []


@pytest.mark.parametrize("strangers", [True, False])
def test_a_start_without_cpus_is_others_doing_or_a_start(strangers: bool):
    """Its own workers keep each other waiting in any start."""
    scene = young(starved(workers=8 if not strangers else 2, run=0.1, wait=0.9, looks=[ON_CPU]))
    scene.cpu_busy = [1.0 if strangers else 0.2] * 4
    if strangers:
        scene.add(Proc(900, comm="fluent-bit", cmdline=["/bin/fluent-bit"], run=3.5, looks=[ON_CPU]))
    assert " is starting, or held up: " in scene.play(4).engine.verdict.headline
    verdict = scene.play(4).engine.verdict
    assert verdict.cause == ("cpu-contention" if strangers else "none")
    assert bool(scene.engine.incidents) == strangers


def begun(seconds: float = 4.0) -> Scene:
    """A trainer that was born before our eyes: its GPU works for it in full after so long."""
    scene = Scene(gpus={0: {"util_pct": 0.0}}).play(1.0)
    scene.add(Proc(100, run=0.9, looks=[ON_CPU], info={"uses_cuda": True}, start_ticks=scene.ticks)).play(seconds)
    scene.gpus[0] |= {"util_pct": 98.0, "procs": [GpuProc(100, mem_bytes=2 << 30)]}
    return scene


def told(scene: Scene, seconds: float) -> set[str]:
    """The causes that were named meanwhile."""
    return {scene.play(0.2).engine.verdict.cause for _ in range(round(seconds / 0.2))}


def test_a_model_that_is_moved_to_the_gpu_trains_not_yet():
    """Then a graph is captured, a loader is made ready."""
    scene = begun().play(0.4)
    scene.gpus[0]["util_pct"] = 0.0
    assert told(scene, 6) == {"none"}
    assert " is starting" in scene.engine.verdict.headline
    scene.gpus[0]["util_pct"] = 98.0
    assert told(scene, 6) == {"none"}
    assert scene.engine.verdict.symptom == "healthy"
    assert scene.engine.explain().ledger.gpu_lost_s < 0.3


def test_but_one_who_makes_short_steps_from_then_on_does():
    scene = begun()
    for _ in range(5):
        scene.gpus[0]["util_pct"] = 98.0
        scene.play(0.4).gpus[0]["util_pct"] = 0.0
        scene.play(1.6)
    assert scene.engine.verdict.cause == "main-thread-preprocessing"


@pytest.mark.parametrize("alone", [True, False])
def test_while_it_takes_more_and_more_of_the_gpus_memory_it_starts(alone: bool):
    """An optimizer's states, activations, workspaces: they come with the first steps."""
    scene = begun()
    scene.gpus[0] |= {"util_pct": 30.0}
    for gib in (2, 4, 8, 30, 33):
        procs = [GpuProc(100, mem_bytes=gib << 30 if not alone else 2 << 30)]
        others = [] if alone else [GpuProc(900, mem_bytes=(60 - gib) << 30)]
        scene.gpus[0] |= {"procs": procs + others, "mem_used_bytes": gib << 30 if alone else 60 << 30}
        assert told(scene, 1.6) == {"none"}
    assert "main-thread-preprocessing" in told(scene, 4)
    assert scene.engine.explain().ledger.gpu_total_s < 6


def test_what_others_take_of_the_hosts_memory_is_no_start():
    """Of a GPU that shares it."""
    scene = begun()
    for gib in (2, 4, 8, 30, 33):
        scene.gpus[0] |= {"util_pct": 30.0, "procs": [GpuProc(100, mem_bytes=2 << 30)], "mem_used_bytes": gib << 30, "mem_shared": True}
        told(scene, 1.6)
    assert "main-thread-preprocessing" in told(scene, 4)


def test_nor_does_it_train_while_a_compiler_works_for_it():
    """XLA tries kernels meanwhile, which work the GPU a little."""
    scene = begun()
    scene.gpus[0]["util_pct"] = 6.0
    scene.procs[100] = Proc(100, looks=[FUTEX], threads={140: (1.0, 0.0)}, info={"uses_cuda": True}, switches=0,
                            start_ticks=scene.procs[100].start_ticks)  # fmt: skip
    assert told(scene, 8) == {"none"}
    scene.procs[100].switches = 100
    assert "main-thread-preprocessing" in told(scene, 4)


def test_what_grows_after_the_start_is_no_start():
    scene = begun().play(31)
    scene.gpus[0] |= {"util_pct": 30.0, "mem_used_bytes": 9 << 30, "procs": [GpuProc(100, mem_bytes=9 << 30)]}
    assert "main-thread-preprocessing" in told(scene, 3)


def test_calls_of_the_start_are_no_steps():
    scene = begun()
    scene.probed, scene.calls = True, {(100, "cuMemcpyHtoDAsync"): (2, 0.01, 1 << 20), (100, "cuStreamSynchronize"): (2, 0.01, 0)}
    scene.play(2).gpus[0] |= {"procs": [GpuProc(100, mem_bytes=4 << 30)]}
    scene.calls = dict.fromkeys(scene.calls, (10, 0.2, 1 << 20))
    assert scene.play(6).engine.explain().verdict.steps_per_s == pytest.approx(10.0, abs=0.3)


@pytest.mark.parametrize(("look", "cause"), [(QUEUE, "disk-io"), (SLEEP, "none")])
def test_a_first_step_with_a_batch_is_no_blink_of_who_waits_for_the_next(look: dict, cause: str):
    """A colleague's copy has the disk: a batch comes each few seconds. Who waits for something else then compiles, say."""
    scene = young(starved(workers=2, run=0.02, looks=[DISK], read_bytes=1_000_000)).play(4)
    scene.gpus[0]["util_pct"] = 60.0
    scene.play(0.4)
    scene.gpus[0]["util_pct"], scene.procs[100].looks = 0.0, [look]
    scene.play(6)
    assert scene.engine.verdict.cause == cause


@pytest.mark.parametrize(
    ("compiles", "says"), [(False, "stands still: it takes none of the batches that are ready"), (True, "is starting")],
)  # fmt: skip
def test_who_takes_no_batches_and_does_nothing_is_not_starting(compiles: bool, says: str):
    """A prompt of a debugger, a notebook."""
    scene = standing(QUEUE)
    scene.procs[100].looks, scene.procs[100].run = [EPOLL], 0.0
    if compiles:
        scene.add(Proc(300, ppid=100, comm="cc1plus", cmdline=["cc1plus"], run=0.9, looks=[ON_CPU]))
    verdict = scene.play(8).engine.verdict
    assert (verdict.symptom, verdict.cause) == ("idle", "none")
    assert verdict.headline.endswith(says)


def taking(worker_ran: float = 0.05) -> Scene:
    """A young trainer computes on the CPUs and takes batches that its worker has ready; its GPU holds a model and does nothing."""
    scene = young(training(workers=1, run=worker_ran, looks=[QUEUE]))
    scene.procs[100].run, scene.procs[100].looks, scene.procs[100].threads = 0.95, [ON_CPU], {150: (0.9, 0.0)}
    return scene


def test_batches_that_are_taken_one_after_the_other_are_no_start():
    scene = taking().play(4)
    assert (scene.engine.verdict.symptom, scene.engine.verdict.cause) == ("input-bound", "main-thread-preprocessing")


def test_nor_where_each_is_waited_for():
    scene = taking(0.9)
    scene.procs[101].looks = [ON_CPU]
    scene.procs[100].run, scene.procs[100].looks, scene.procs[100].threads = 0.3, [QUEUE], {}
    assert " is starting" not in scene.play(4).engine.verdict.headline


@pytest.mark.parametrize("ran", [0.0, 0.0002], ids=["nothing", "looks at its queue"])
def test_batches_that_were_made_and_wait_are_one(ran: float):
    """It imports, compiles or loads its weights meanwhile."""
    scene = taking().play(0.8)
    scene.procs[101].run, scene.procs[101].switches = ran, 1
    assert " is starting" in scene.play(12).engine.verdict.headline


POOL = ["python", "/venv/torch/_inductor/compile_worker/__main__.py", "--workers=4"]


def compiling(age_s: int, workers: int, before_s: float = 3.0) -> Scene:
    """A trainer of that age, which is at work when the first look comes, compiles anew: its pool takes the CPUs that its workers want, and
    its main thread waits for that."""
    born = (START_S - age_s) * 100
    scene = Scene(cpus=4, cpu_busy=[0.5] * 4, gpus={0: {"util_pct": 70.0, "pids": [100]}})
    scene.add(Proc(100, run=0.3, looks=[FUTEX], info={"uses_cuda": True}, start_ticks=born))
    scene.add(*(Proc(101 + i, 100, comm="pt_data_worker", run=0.3, looks=[QUEUE], start_ticks=born + i) for i in range(workers)))
    scene.add(Proc(600, 100, cmdline=POOL, run=0.01, looks=[SLEEP], start_ticks=born)).play(before_s)
    scene.cpu_busy, scene.gpus[0]["util_pct"] = [1.0] * 4, 5.0
    main = scene.procs[100]
    main.run, main.switches, main.threads = 0.0, 0, {140: (0.3, 0.0)}
    for pid in range(101, 101 + workers):
        scene.procs[pid].run, scene.procs[pid].wait, scene.procs[pid].looks = 0.3, 0.65, [ON_CPU]
    return scene.add(*(Proc(601 + i, 600, cmdline=POOL, run=0.65, wait=0.3, looks=[ON_CPU], start_ticks=scene.ticks) for i in range(4)))


@pytest.mark.parametrize("before_s", [3.0, 20.0])
def test_who_compiles_in_the_midst_of_a_training_does_not_start(before_s: float):
    """However lately somebody began to watch."""
    verdict = compiling(400, 3, before_s).play(8).engine.verdict
    assert (verdict.symptom, verdict.cause) == ("input-bound", "worker-oversubscription")
    assert "torch.compile's processes take 2.6 of 4 CPUs in the midst of the training" in str(verdict.detail)
    assert [str(fix.command) for fix in verdict.fixes] == [
        "torch.compile(model, dynamic=True)", "export TORCHINDUCTOR_COMPILE_THREADS=1", "TORCH_LOGS=recompiles",
    ]  # fmt: skip


def test_without_workers_it_is_the_main_thread_that_compiles():
    verdict = compiling(400, 0).play(8).engine.verdict
    assert verdict.cause == "main-thread-preprocessing"
    assert "compiles, torch.compile's processes run on 2.6 CPUs" in str(verdict.detail)


def test_who_was_born_just_now_and_compiles_starts():
    assert " is starting" in compiling(10, 3).play(8).engine.verdict.headline


def test_few_compilers_beside_many_workers_are_not_the_cause():
    scene = compiling(400, 8)
    for pid in range(601, 605):
        scene.procs[pid].run = 0.1
    verdict = scene.play(8).engine.verdict
    assert "TORCHINDUCTOR_COMPILE_THREADS" not in str(verdict.fixes)


def engine_that_loads(seconds: float) -> Scene:
    """An engine maps its weights on a slow disk and reads them for so long, then it serves."""
    scene = Scene(gpus={0: {"util_pct": 0.0, "pids": [100]}}).play(1.0)
    info = {"uses_cuda": True, "libs": []}
    scene.add(Proc(100, comm="EngineCore", cmdline=["engine"], run=0.04, looks=[DISK], read_bytes=20_000_000, info=info))
    scene.procs[100].start_ticks = scene.ticks
    return scene.play(seconds)


def serve(scene: Scene, seconds: float) -> Scene:
    proc = scene.procs[100]
    scene.gpus[0]["util_pct"], proc.looks, proc.read_bytes = 98.0, [FUTEX], 0
    return scene.play(seconds)


def test_weights_that_come_from_a_slow_disk_are_told_as_they_come_and_are_lost_by_it():
    scene = engine_that_loads(4)
    verdict = scene.engine.verdict
    assert (verdict.symptom, verdict.cause) == ("idle", "none")
    assert "loads from storage (20.0 MB/s, 0.08 GB so far)" in verdict.headline
    assert scene.engine.ledger.gpu_lost_s == 0.0
    scene.play(14)
    assert (scene.engine.verdict.symptom, scene.engine.verdict.cause) == ("input-bound", "disk-io")
    assert "makes no steps yet: it loads from storage" in scene.engine.verdict.why
    serve(scene, 8)
    assert scene.engine.verdict.symptom == "healthy"
    assert scene.engine.ledger.by_cause["disk-io"] == pytest.approx(18.0, abs=2.5), "from its first second on"
    assert [incident.cause for incident in scene.engine.incidents] == ["disk-io"]


def test_weights_that_are_soon_there_are_a_start_as_any():
    scene = serve(engine_that_loads(4), 10)
    assert scene.engine.verdict.symptom == "healthy"
    assert not scene.engine.incidents
    assert scene.engine.ledger.gpu_lost_s < 1.0


def test_a_start_that_computes_is_no_loss_however_long_it_takes():
    scene = engine_that_loads(0.2)
    scene.procs[100].run, scene.procs[100].looks, scene.procs[100].read_bytes = 0.95, [ON_CPU], 0
    assert serve(scene.play(14), 8).engine.ledger.gpu_lost_s < 1.0


def engine_that_downloads(rank: bool = False) -> Scene:
    """An engine reads its weights from another machine, over a connection of its own; a rank waits for the others like that."""
    scene = engine_that_loads(0.2)
    engine, env = scene.procs[100], {"RANK": "1", "WORLD_SIZE": "4"} if rank else {}
    engine.looks, engine.read_bytes, engine.info = [SOCKET], 0, engine.info | {"sockets": "connected", "env": env}
    return scene


def test_weights_that_come_over_the_network_are_a_start_and_a_loss_when_long() -> None:
    scene = engine_that_downloads().play(4)
    assert scene.engine.verdict.cause == "none"
    assert "is starting: it loads from the network" in scene.engine.verdict.headline
    scene.play(8)
    assert (scene.engine.verdict.symptom, scene.engine.verdict.cause) == ("input-bound", "network-io")
    assert "makes no steps yet: it loads from the network" in scene.engine.verdict.why


def test_a_rank_that_waits_for_the_others_loads_nothing() -> None:
    assert told(engine_that_downloads(rank=True), 12) == {"none"}


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ({"run": 0.95, "looks": [ON_CPU]}, "its main thread computes 95% of the time"),
        ({"run": 0.02, "looks": [FUTEX], "threads": {110: (0.9, 0.0), 111: (0.8, 0.0)}}, "its threads run on 1.7 CPUs"),
    ],
    ids=["main", "threads"],
)
def test_a_start_has_words_for_what_it_does(does: dict, says: str) -> None:
    scene = engine_that_loads(0.2)
    scene.procs[100].read_bytes = 0
    for name, value in does.items():
        setattr(scene.procs[100], name, value)
    assert scene.play(5).engine.verdict.headline.endswith(says)
