"""Shapes of inference servers and of what stands before them: who keeps requests from the engine, and where there are few."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gputop.findings.verdict import IDLE
from gputop.model.serving import NOT_LISTENING, TOO_SLOW
from tests.unit.diagnosis.causes_serving import CORE, TOP, full_api_server, scheduler_of_two_workers, tokenizer_of_its_own, vllm
from tests.unit.diagnosis.scene import DISK, EPOLL, FUTEX, ON_CPU, POLL_SOCKET, SLEEP, SOCKET, Proc, Scene

NFS = {"state": "D", "syscall": 17, "wchan": "rpc_wait_bit_killable"}
LOGS = {"state": "S", "syscall": 1, "syscall_arg": 1, "wchan": "pipe_write"}
NONE_RUNS = {"running": 0, "waiting": 0}


def verdict(scene: Scene, seconds: float = 8.0) -> tuple[str, str]:
    worked = {index: dict(gpu) for index, gpu in scene.gpus.items()}
    for gpu in scene.gpus.values():
        gpu["util_pct"] = 100.0
    scene.play(1.0, 0.5)
    scene.gpus = worked
    scene.play(seconds, 0.5)
    return scene.engine.verdict.symptom, scene.engine.verdict.cause


def polls(scene: Scene) -> Scene:
    """Its engine waits in the poll of an event loop, below a process that listens, as a shard of TGI does."""
    scene.procs[CORE].info |= {"sockets": "listening"}
    scene.procs[CORE].looks, scene.procs[CORE].threads = [EPOLL], {}
    return scene


def takes(scene: Scene) -> Scene:
    """Its engine waits at a queue, which a thread of its own fills, as vLLM's does."""
    scene.procs[CORE].looks, scene.procs[CORE].threads, scene.procs[CORE].thread_looks = [FUTEX], {110: (0.02, 0.0)}, [EPOLL]
    return scene


def spins(scene: Scene) -> Scene:
    """Its engine looks for requests again and again and never sleeps, as SGLang's does."""
    for pid in (101, 102) if 101 in scene.procs else (CORE,):
        scene.procs[pid].run, scene.procs[pid].looks = 0.97, [ON_CPU]
    return scene


WAYS = pytest.mark.parametrize("way", [polls, takes, spins])


@WAYS
def test_few_requests_are_no_fault_however_the_engine_waits_for_them(way: Callable[[Scene], Scene]) -> None:
    """The GPU rests seven tenths of the time, and as often there is no request."""
    scene = way(vllm(30.0, 0.1, 0.1, POLL_SOCKET, **NONE_RUNS))
    assert verdict(scene, 20.0) == ("idle", "none")
    assert scene.engine.phases[CORE].word == IDLE
    assert scene.engine.incidents == []


def test_an_engine_that_works_for_most_of_the_time_is_healthy_where_no_more_ask() -> None:
    scene = takes(vllm(60.0, 0.1, 0.1, POLL_SOCKET, **NONE_RUNS))
    assert verdict(scene, 20.0) == ("healthy", "none")
    assert "all requests that reach it" in scene.engine.verdict.headline


def test_few_requests_are_known_by_some_pages_of_the_last_seconds() -> None:
    """One of three has one that runs."""
    scene = takes(vllm(30.0, 0.1, 0.1, POLL_SOCKET, **NONE_RUNS))
    verdict(scene)
    for number in range(40):
        scene.server["running"] = int(number % 6 < 2)
        scene.play(0.5, 0.5)
        assert scene.engine.verdict.symptom in ("idle", "healthy"), number


def test_few_requests_are_no_fault_of_one_process_or_of_workers_that_spin() -> None:
    alone = takes(vllm(30.0, 0.0, 0.05, FUTEX, **NONE_RUNS)).drop(TOP)
    alone.procs[CORE].comm, alone.procs[CORE].cmdline, alone.server["pid"] = "llama-server", ["/opt/llama-server"], CORE
    alone.procs[CORE].info = {"uses_cuda": True, "libs": [], "exe": "/opt/llama-server", "sockets": "listening"}
    workers = spins(scheduler_of_two_workers())
    workers.server |= NONE_RUNS
    for scene in (alone, workers):
        assert verdict(scene, 20.0) == ("idle", "none")


@WAYS
def test_a_full_front_keeps_requests_from_the_engine_also_while_none_runs(way: Callable[[Scene], Scene]) -> None:
    scene = way(full_api_server())
    scene.server |= NONE_RUNS
    assert verdict(scene) == ("input-bound", "frontend-bound")
    assert [one.pid for one in scene.engine.verdict.culprits] == [TOP]


@pytest.mark.parametrize(
    ("threads", "exe", "cause"),
    [
        ((0.3, 0.3, 0.3, 0.3), "/usr/bin/python3", False),  # a tokenizer's, without Python's lock
        ((0.25, 0.25, 0.2, 0.2), "/usr/bin/python3", True),  # in turn: Python's lock lets no more run
        ((0.25, 0.25, 0.2, 0.2), "/usr/bin/text-generation-router", False),
        ((0.97, 0.3, 0.0, 0.0), "/usr/bin/text-generation-router", True),
    ],
)
def test_a_front_is_full_by_a_thread_or_by_pythons_lock_and_not_by_a_sum(threads: tuple[float, ...], exe: str, cause: bool) -> None:
    scene = vllm(40.0, 0.05, 0.1, POLL_SOCKET, running=1, waiting=0)
    scene.procs[TOP].threads = {190 + number: (run, 0.0) for number, run in enumerate(threads)}
    scene.procs[TOP].info |= {"exe": exe}
    if "python" not in exe:
        scene.procs[TOP].comm, scene.procs[TOP].cmdline = "vllm", ["vllm", "serve"]
    assert (verdict(scene)[1] == "frontend-bound") == cause


def test_a_scheduler_that_spins_waits_for_a_tokenizer_or_for_a_front_without_time_for_its_page() -> None:
    tokenizer, late = spins(tokenizer_of_its_own()), spins(full_api_server())
    tokenizer.server |= NONE_RUNS
    late.server = {"pid": TOP, "problem": TOO_SLOW}
    for scene in (tokenizer, late):
        assert verdict(scene) == ("input-bound", "frontend-bound")


def without_page(util: float, front: float, title: str = "sglang::scheduler") -> Scene:
    """SGLang without its metrics, below a process that listens; its scheduler never sleeps."""
    scene = spins(vllm(util, front, 0.97, ON_CPU))
    scene.procs[TOP].comm, scene.procs[TOP].cmdline, scene.server = "python3", ["python3", "-m", "sglang.launch_server"], {}
    scene.procs[CORE].comm, scene.procs[CORE].cmdline = title[:15], [title]
    scene.procs[CORE].info["sockets"] = "listening"
    return scene


def test_a_scheduler_that_spins_beside_a_gpu_without_any_work_is_idle_also_without_a_page() -> None:
    assert verdict(without_page(0.0, 0.02), 40.0) == ("idle", "none")
    assert verdict(without_page(0.0, 0.02, "train.py"), 40.0) != ("idle", "none")


def test_a_front_at_a_full_core_is_what_a_scheduler_spins_for_also_without_a_page() -> None:
    scene = without_page(30.0, 0.98)
    assert verdict(scene) == ("input-bound", "slow-transform")
    assert scene.engine.verdict.path[-1].pid == TOP
    assert verdict(without_page(30.0, 0.1))[1] == "main-thread-preprocessing"  # a spin and work look the same


def test_a_scheduler_that_computes_while_requests_run_is_no_spin() -> None:
    scene = spins(full_api_server())
    scene.procs[TOP].run, scene.procs[TOP].looks = 0.3, [EPOLL]
    assert verdict(scene) == ("wait-heavy", "scheduler-bound")


def test_requests_that_wait_while_none_runs_are_neither_idle_nor_the_schedulers() -> None:
    """An engine that has to get its keys and values from another one."""
    assert verdict(spins(vllm(20.0, 0.1, 0.1, POLL_SOCKET, running=0, waiting=12))) == ("wait-heavy", "unexplained")


@pytest.mark.parametrize("way", [polls, takes])
def test_what_keeps_the_front_is_the_cause_also_while_none_runs(way: Callable[[Scene], Scene]) -> None:
    found = {}
    for what in ("disk", "network", "quota", "log"):
        scene = way(vllm(20.0, 0.05, 0.1, POLL_SOCKET, **NONE_RUNS))
        front = scene.procs[TOP]
        if what == "disk":
            front.looks = [DISK]
        elif what == "network":
            front.arriving = 0.9
        elif what == "quota":
            front.run, front.wait, scene.cgroups = 0.4, 0.55, {"/job": {"quota_cpus": 0.5, "throttled": 0.9}}
        else:
            front.looks = [LOGS]
        found[what] = verdict(scene)[1]
    assert found == {"disk": "disk-io", "network": "network-io", "quota": "cgroup-throttle", "log": "output-blocked"}


def test_a_server_whose_log_is_not_read_is_named() -> None:
    scene = polls(vllm(5.0, 0.02, 0.02, POLL_SOCKET))
    scene.procs[TOP].looks, scene.server = [LOGS], {"pid": TOP, "problem": TOO_SLOW}
    assert verdict(scene) == ("input-bound", "output-blocked")
    found = scene.engine.verdict
    assert "log is not read" in found.headline
    assert f"vllm ({TOP}) waits until its log is read" in found.detail
    assert any(f"-p {TOP}" in fix.command for fix in found.fixes)


def test_a_program_that_writes_to_its_standard_output_is_ahead_and_not_blocked() -> None:
    """It serves nobody: what it writes is the engine's input."""
    scene = vllm(20.0, 0.05, 0.1, POLL_SOCKET)
    scene.procs[TOP].looks, scene.procs[TOP].info = [LOGS], {"sockets": "none"}
    assert verdict(scene)[1] != "output-blocked"


def test_a_quota_of_the_front_alone_is_the_cause_and_no_neighbour() -> None:
    scene = vllm(30.0, 0.4, 0.1, POLL_SOCKET)
    scene.procs[TOP].wait, scene.procs[TOP].info["cgroup"] = 0.55, "/front"
    scene.cgroups = {"/front": {"quota_cpus": 0.4, "throttled": 0.9}, "/job": {}}
    assert verdict(scene) == ("input-bound", "cgroup-throttle")
    found = scene.engine.verdict
    assert "cgroup /front, in which vllm (90) loads for it, may use 0.4 CPUs" in found.detail
    assert "/front" in found.fixes[0].command
    assert found.path[-1].on == "the quota of 0.4 CPUs"


def test_a_quota_of_a_front_that_keeps_up_is_none_of_the_jobs() -> None:
    """The engine itself wants a CPU that a neighbour has."""
    scene = vllm(30.0, 0.1, 0.1, ON_CPU)
    scene.procs[CORE].wait, scene.procs[TOP].info["cgroup"], scene.cpu_busy = 0.6, "/front", [1.0] * 4
    scene.cgroups = {"/front": {"quota_cpus": 0.4, "throttled": 0.9}, "/job": {}}
    scene.add(*(Proc(900 + i, comm="bowtie2", cmdline=["bowtie2"], run=0.98, looks=[ON_CPU]) for i in range(4)))
    assert verdict(scene)[1] == "cpu-contention"


def test_threads_of_the_engine_that_compute_while_requests_run_are_scheduling() -> None:
    """Masks for grammars are made by a pool of its own."""
    found = {}
    for is_read in (True, False):
        scene = vllm(30.0, 0.3, 0.15, FUTEX)
        scene.procs[CORE].threads, scene.procs[CORE].thread_looks = {110: (0.9, 0.02), 111: (0.85, 0.02)}, [ON_CPU]
        scene.server = scene.server if is_read else {}
        found[is_read] = verdict(scene), "threads" in scene.engine.verdict.detail
    assert found == {True: (("wait-heavy", "scheduler-bound"), True), False: (("input-bound", "main-thread-preprocessing"), True)}


def test_weights_that_come_over_the_network_are_loaded_like_those_on_a_disk() -> None:
    scene = vllm(2.0, 0.02, 0.1, NFS)
    scene.server = {"pid": TOP, "problem": NOT_LISTENING}
    assert verdict(scene) == ("input-bound", "model-load")
    assert "over the network" in scene.engine.verdict.detail
    scene.server = {"pid": TOP, "running": 2, "waiting": 0, "generated_tokens": 50.0}
    assert verdict(scene)[1] == "network-io"  # an adapter for each request


def event_loop(thread: float, util: float = 30.0) -> Scene:
    """A server of one process: an event loop takes requests, and a thread of its own, which runs so much, computes them."""
    scene = Scene(gpus={0: {"util_pct": util, "power_w": 300.0, "power_limit_w": 400.0, "pids": [CORE]}})
    info = {"uses_cuda": True, "libs": ["torch"], "sockets": "listening"}
    return scene.add(
        Proc(CORE, 1, "uvicorn", ["python3", "/opt/bin/uvicorn", "app:app"], 0.05, looks=[EPOLL], threads={110: (thread, 0.02)},
             thread_looks=[ON_CPU], info=info),
    )  # fmt: skip


def test_a_thread_that_computes_whenever_the_gpu_rests_has_requests() -> None:
    scene = event_loop(0.69)
    assert verdict(scene) == ("input-bound", "main-thread-preprocessing")
    assert "own threads" in scene.engine.verdict.detail


def test_a_client_at_the_other_end_of_a_full_thread_is_no_feeder() -> None:
    scene = event_loop(0.69)
    scene.procs[CORE].info |= {"other_ends": [300]}
    scene.add(Proc(300, comm="locust", cmdline=["locust"], run=0.01, looks=[SOCKET], info={"sockets": "connected"}))
    assert verdict(scene) == ("input-bound", "main-thread-preprocessing")


@pytest.mark.parametrize("thread", [0.02, 0.2, 0.45])
def test_a_thread_that_rests_between_requests_waits_to_be_asked(thread: float) -> None:
    assert verdict(event_loop(thread), 20.0) == ("idle", "none")


def test_a_thread_that_computes_beside_a_gpu_without_any_work_asks_for_nothing() -> None:
    scene = event_loop(0.95, util=0.0)
    scene.play(40.0, 0.5)
    assert scene.engine.verdict.symptom == "idle"


def test_a_front_that_sleeps_by_a_timer_is_not_what_computes() -> None:
    scene = takes(vllm(20.0, 0.02, 0.1, POLL_SOCKET))
    scene.procs[TOP].looks = [SLEEP]
    assert verdict(scene)[1] not in ("frontend-bound", "scheduler-bound", "slow-transform")


def one_worker_without_a_cpu() -> Scene:
    """Of two workers on two GPUs one wants a CPU that neighbours have; the other waits for the next batch, for which the core waits."""
    scene = scheduler_of_two_workers()
    scene.procs[102].run, scene.procs[102].wait, scene.procs[102].looks, scene.cpu_busy = 0.3, 0.65, [ON_CPU], [1.0] * 4
    return scene.add(*(Proc(900 + i, comm="bowtie2", cmdline=["bowtie2"], run=0.98, looks=[ON_CPU]) for i in range(3)))


@pytest.mark.parametrize("other", [{}, {"run": 0.97, "looks": [ON_CPU], "system": 0.45}], ids=["sleeps", "yields again and again"])
def test_workers_of_one_engine_are_ranks_and_wait_for_the_late_one(other: dict) -> None:
    scene = one_worker_without_a_cpu()
    for name, value in other.items():
        setattr(scene.procs[101], name, value)
    assert verdict(scene) == ("straggler", "straggler-rank")
    named = {one.pid for one in scene.engine.verdict.culprits}
    assert {102, 900} <= named
    assert not {TOP, CORE} & named


def test_stages_of_an_engine_have_other_work_and_are_no_ranks() -> None:
    scene = one_worker_without_a_cpu()
    for number in range(2):
        scene.procs[101 + number].cmdline = [f"VLLM::Worker_PP{number}_TP0"]
    assert verdict(scene)[1] != "straggler-rank"


def test_workers_of_one_engine_that_all_wait_have_no_late_one() -> None:
    assert verdict(scheduler_of_two_workers()) == ("wait-heavy", "scheduler-bound")
