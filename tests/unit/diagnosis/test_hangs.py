"""Hangs: nothing of a job moves, and its main thread waits for somebody who is part of it; and what merely looks like that."""

from __future__ import annotations

import pytest

from gputop.findings import policy
from gputop.model.frame import ThreadInfo
from tests.unit.diagnosis.scene import (
    AWAIT,
    CHILD,
    DISK,
    EPOLL,
    FUTEX,
    ON_CPU,
    QUEUE,
    READ_PIPE,
    SLEEP,
    SOCKET,
    TURN,
    Proc,
    Scene,
    training,
)

STDIN = {"state": "S", "syscall": 0, "syscall_arg": 0, "wchan": "wait_woken"}
FIFO = {"state": "S", "syscall": 257, "wchan": "wait_for_partner"}
SHARE = {"power_limit_w": 700.0}


def still(scene: Scene, looks: dict, *pids: int, switches: int = 0) -> Scene:
    """From now on these do nothing but wait like that."""
    for pid in pids:
        proc = scene.procs[pid]
        proc.looks, proc.run, proc.wait, proc.switches, proc.read_bytes = [looks], 0.0, 0.0, switches, 0
    return scene


def rest(scene: Scene) -> Scene:
    for gpu in scene.gpus.values():
        gpu |= {"util_pct": 0.0, "power_w": 75.0}
    return scene


def steady(workers: int = 2) -> Scene:
    """After some seconds of training."""
    return training(workers, run=0.3).play(8)


def ranks(count: int = 2, size: int = 0) -> Scene:
    """Ranks in step on a GPU each, after some seconds."""
    scene = Scene()
    for rank in range(count):
        scene.gpus[rank] = {"util_pct": 97.0, "power_w": 600.0, "pids": [200 + rank], **SHARE}
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size or count), "LOCAL_WORLD_SIZE": str(count)}
        scene.add(Proc(200 + rank, 10, run=0.2, looks=[FUTEX], info={"uses_cuda": True, "env": env}))
    return scene.play(8)


def collective(scene: Scene, *indexes: int) -> Scene:
    """These GPUs spin in a kernel on few SMs; the others rest."""
    for index, gpu in scene.gpus.items():
        gpu |= {"util_pct": 100.0, "power_w": 130.0} if index in indexes else {"util_pct": 0.0, "power_w": 75.0}
    return scene


def hung(scene: Scene, seconds: float = 9) -> tuple[str, str, str]:
    """Cause and severity, and the severity of the one incident that still lasts."""
    engine = scene.play(seconds).engine
    [incident] = [one for one in engine.incidents if one.end_ns is None]
    assert engine.explain().verdict.cause == engine.verdict.cause
    return engine.verdict.cause, engine.verdict.severity, incident.severity


def is_calm(scene: Scene, seconds: float = 12) -> bool:
    engine = scene.play(seconds).engine
    return engine.verdict.severity == "info" and all(one.severity in ("info", "low") for one in engine.incidents)


@pytest.mark.parametrize("looks", [FUTEX, AWAIT, TURN, QUEUE], ids=["lock", "for ever", "with a limit", "torch's queue"])
def test_who_waits_inside_while_nothing_moves_hangs(looks: dict):
    """A pin-memory thread that stands or has died, two locks taken crosswise: the workers are ahead, and the trainer waits."""
    assert hung(still(rest(steady()), looks, 100, 101, 102)) == ("hung-worker", "high", "high")


def test_so_does_one_without_workers():
    scene = still(rest(steady(workers=0)), AWAIT, 100)
    assert hung(scene) == ("hung-worker", "high", "high")
    assert "hangs: nothing of it has moved for" in scene.engine.verdict.headline
    assert scene.engine.verdict.fixes[-1].command == "gputop stacks 100"


def test_it_is_told_as_soon_as_one_looks_at_it():
    """Nothing of it was ever seen to move: that is no start."""
    scene = still(rest(training(run=0.3)), FUTEX, 100, 101, 102)
    assert hung(scene) == ("hung-worker", "high", "high")
    assert "since gputop looks, or longer" in scene.engine.verdict.headline


def test_heartbeats_are_no_life():
    """A queue that looks every 5 s, watchdogs, a sidecar of the trainer's own."""
    scene = still(rest(steady()), TURN, 100, 101, 102, switches=1)
    scene.procs[100].threads = {150: (0.005, 0.0), 151: (0.3, 0.0)}
    scene.add(Proc(160, 100, "wandb-core", ["wandb-core"], run=0.2))
    scene.procs[100].info["threads"] = [ThreadInfo(150, "python"), ThreadInfo(151, "NCCL Progress 1")]
    assert hung(scene)[:2] == ("hung-worker", "high")


@pytest.mark.parametrize(
    "looks", [SLEEP, EPOLL, SOCKET, STDIN], ids=["until the next job", "served by an event loop", "a queue server", "prompt"]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_who_waits_for_the_world_outside_is_idle(looks: dict, workers: int):
    scene = rest(steady(workers))
    still(scene, QUEUE, *(101 + i for i in range(workers)))
    assert is_calm(still(scene, looks, 100))


def test_a_server_whose_main_thread_waits_for_its_end_is_idle():
    scene = still(rest(steady(workers=0)), AWAIT, 100)
    scene.procs[100].threads, scene.procs[100].thread_looks, scene.procs[100].thread_switches = {150: (0.0, 0.0)}, [EPOLL], 0
    assert is_calm(scene)


@pytest.mark.parametrize(
    ("what", "amount"), [("threads", {150: (0.5, 0.0)}), ("read_bytes", 2_000_000), ("write_bytes", 2_000_000), ("run", 0.2)]
)
def test_whose_job_does_anything_does_not_hang(what: str, amount: object):
    """An evaluation in threads, a save, a reader."""
    scene = still(rest(steady()), AWAIT, 100, 101, 102)
    setattr(scene.procs[100], what, amount)
    scene.play(12)
    assert "hangs" not in scene.engine.verdict.headline


@pytest.mark.parametrize(("looks", "hangs"), [(SOCKET, False), (DISK, False), (TURN, True)])
@pytest.mark.parametrize("who", [100, 101])
def test_nor_one_whose_threads_the_network_or_a_disk_wakes(looks: dict, hangs: bool, who: int):
    """A slow upload or download, which takes hardly any CPU. A thread that looks now and then is none."""
    scene = still(rest(steady()), AWAIT, 100, 101, 102)
    proc = scene.procs[who]
    proc.threads, proc.thread_looks, proc.thread_switches = {150: (0.001, 0.0)}, [looks], 20
    scene.play(12)
    assert ("hangs" in scene.engine.verdict.headline) == hangs


def test_who_may_compute_on_a_gpu_that_tells_nothing_is_given_longer():
    """A step that takes long: its main thread waits for the thread of the backward pass."""
    scene = still(steady(), AWAIT, 100, 101, 102)
    still(scene, QUEUE, 101, 102)
    scene.gpus[0] = {"pids": [100], "missing": {"util_pct": "not supported"}}
    assert "hangs" not in scene.play(20).engine.verdict.headline
    assert "hangs" in scene.play(16).engine.verdict.headline


def test_nor_one_that_waits_for_a_program_that_works():
    scene = still(rest(steady()), CHILD, 100)
    still(scene, QUEUE, 101, 102)
    scene.add(Proc(160, 100, "cc1plus", ["cc1plus"], run=0.9))
    assert is_calm(scene)


def test_a_long_kernel_that_uses_its_gpu_is_no_hang():
    scene = steady(workers=0)
    scene.gpus[0] |= {"util_pct": 100.0, "power_w": 380.0}
    assert is_calm(still(scene, AWAIT, 100), 40)


def test_a_light_one_of_a_job_without_ranks_neither():
    scene = steady(workers=0)
    scene.gpus[0] |= {"util_pct": 100.0, "power_w": 80.0}
    scene = still(scene, AWAIT, 100).play(30)
    assert "hangs" not in scene.engine.verdict.headline
    assert not any("-mig" in fix.command for fix in scene.engine.verdict.fixes)


@pytest.mark.parametrize("looks", [SLEEP, AWAIT, STDIN, EPOLL, FIFO], ids=["sleeps", "lock", "prompt", "polls", "named pipe"])
def test_a_rank_that_is_not_in_the_collective_hangs_the_others(looks: dict):
    """It is through early, or waits for whatever else."""
    scene = still(still(collective(ranks(), 0), AWAIT, 200), looks, 201)
    assert hung(scene) == ("straggler-rank", "high", "high")
    verdict, [incident] = scene.engine.verdict, [one for one in scene.engine.incidents if one.end_ns is None]
    assert "rank 0 (200) waits for its GPU, which runs the kernel of a collective" in verdict.detail
    assert "rank 1 (201) is not in the collective" in verdict.detail
    assert (incident.trainer_pid, [one.pid for one in incident.culprits]) == (201, [201])
    assert not [one for one in scene.engine.incidents if one.cause in ("pause", "undersized-work")]  # what it was taken for at first
    assert incident.lost_s > policy.MEDIUM_S


@pytest.mark.parametrize(("looks", "hangs"), [(SLEEP, True), (SOCKET, False)], ids=["a lock file", "a download"])
def test_one_that_polls_does_so_on_a_busy_machine_too(looks: dict, hangs: bool):
    """20 looks a second, after each of which others keep it from its CPU for longer than it sleeps: the clock wakes it, nobody else."""
    scene = still(still(rest(ranks()), AWAIT, 200), looks, 201, switches=20)
    scene.procs[201].run, scene.procs[201].wait = 0.01, 0.65
    assert ("none of its 2 ranks has moved" in scene.play(9).engine.verdict.headline) == hangs


def test_one_whose_loader_hangs_is_told_as_that():
    scene = collective(ranks(), 0)
    scene.add(Proc(210, 201, "pt_data_worker", start_ticks=50_100))
    still(still(still(scene, AWAIT, 200), QUEUE, 201), FIFO, 210)
    assert hung(scene)[:2] == ("hung-worker", "high")


def test_ranks_that_wait_for_each_other_hang():
    assert hung(still(collective(ranks()), AWAIT, 200, 201))[:2] == ("straggler-rank", "high")
    assert hung(still(collective(ranks(), 0, 1), AWAIT, 200, 201))[:2] == ("straggler-rank", "high")


def test_who_waits_for_ranks_on_other_hosts_is_given_longer():
    scene = still(collective(ranks(2, 16), 0, 1), AWAIT, 200, 201)
    assert "hangs" not in scene.play(20).engine.verdict.headline
    assert hung(scene, 16)[:2] == ("straggler-rank", "high")
    assert "ranks on other hosts" in scene.engine.verdict.detail


@pytest.mark.parametrize("spins", [(0,), (0, 1)], ids=["one", "both"])
def test_who_spins_may_merely_wait_for_its_gpu(spins: tuple[int, ...]):
    """Unless all do, and nothing tells what at: small steps look like that, too."""
    scene = still(still(collective(ranks(), 0, 1), AWAIT, 200, 201), AWAIT, 201)
    for rank in spins:
        scene.procs[200 + rank].run, scene.procs[200 + rank].looks = 1.0, [ON_CPU]
    scene.play(9)
    assert ("hangs" in scene.engine.verdict.headline) == (len(spins) == 1)


def test_a_server_of_several_ranks_waits_for_requests():
    """The others of these stand in a broadcast until one comes."""
    scene = still(still(collective(ranks(), 1), AWAIT, 201), EPOLL, 200)
    scene.procs[200].info["sockets"] = "listening"
    assert "hangs" not in scene.play(20).engine.verdict.headline


def test_what_moves_again_has_an_end():
    scene = still(rest(steady(workers=0)), AWAIT, 100).play(9)
    scene.gpus[0] |= {"util_pct": 100.0, "power_w": 380.0}
    scene.procs[100].run, scene.procs[100].looks = 0.3, [FUTEX]
    scene.play(8)
    assert scene.engine.verdict.cause == "none"
    assert all(one.end_ns is not None for one in scene.engine.incidents)


def test_a_sleeping_program_on_a_pipe_is_not_told_apart():
    """What it reads from outside its job may come any time."""
    assert is_calm(still(rest(steady(workers=0)), READ_PIPE, 100))


@pytest.mark.parametrize(("late", "cause", "severity"), [(0, "pause", "info"), (1, "straggler-rank", "high")])
def test_what_the_first_rank_does_alone_it_does_for_all(late: int, cause: str, severity: str):
    """An evaluation, say. Any other rank that computes while the rest waits has lost its way."""
    scene = still(collective(ranks(), 1 - late), AWAIT, 201 - late)
    scene.procs[200 + late].run, scene.procs[200 + late].looks, scene.procs[200 + late].switches = 1.0, [ON_CPU], 5
    engine = scene.play(15).engine
    assert engine.verdict.cause == cause
    lasting = [one for one in engine.incidents if one.end_ns is None]
    assert {(one.cause, one.severity) for one in lasting} == {(cause, severity)}


@pytest.mark.parametrize("look", [{"state": "T"}, {"state": "Z", "exit_code": 9}], ids=["stopped", "killed"])
@pytest.mark.parametrize("waits", [FUTEX, READ_PIPE], ids=["at a lock", "at a pipe"])
def test_who_is_stopped_or_killed_is_told_at_once(look: dict, waits: dict):
    """Not first after 2 s without a move: no batch comes of it, and the GPU has nothing to do. A pool's own thread wakes the trainer."""
    scene = training(2, run=0.3)
    scene.probed, scene.wakeups = True, {(100, 150): 0.5}
    scene.procs[100].threads = {150: (0.05, 0.0)}
    for pid in (101, 102):
        scene.procs[pid].comm, scene.procs[pid].info = "python", {"libs": []}
    scene.play(8)
    still(rest(scene), look, 101, 102)
    assert still(scene, waits, 100).play(1.2).engine.verdict.cause == "hung-worker"


def test_who_is_stopped_while_others_deliver_holds_nobody_up():
    scene = still(steady(workers=3), {"state": "T"}, 101)
    assert scene.play(1.2).engine.verdict.cause == "none"


def test_all_that_are_stopped_go_on_by_one_command():
    scene = still(rest(steady(workers=3)), {"state": "T"}, 101, 102)
    fixes = still(scene, FUTEX, 100).play(1.2).engine.verdict.fixes
    assert [(fix.text, fix.command) for fix in fixes] == [("Let worker 0, worker 1 go on", "kill -CONT 101 102")]


def test_who_is_stopped_again_and_again_is_not_let_go_on():
    """A signal would wake nobody who runs: a debugger stops them, and lets them go each time."""
    scene = rest(steady())
    for pid in (101, 102):
        scene.procs[pid].looks = [{"state": "t"}] * 4 + [QUEUE] * 3
    still(scene, FUTEX, 100)
    verdicts = [scene.play(1.1).engine.verdict for _ in range(4)]  # at some of these a debugger holds them
    free = [one for one in verdicts if "stopped again and again" in one.detail]
    assert free
    assert {(one.cause, *(fix.look for fix in one.fixes)) for one in free} == {("hung-worker", True)}
