"""Scenes of inference servers: vLLM's processes, and the page of its own metrics."""

from __future__ import annotations

from collections.abc import Callable

from gputop.model.serving import NOT_LISTENING, NOT_READY, TOO_SLOW
from tests.unit.diagnosis.scene import DISK, EPOLL, FUTEX, ON_CPU, POLL_SOCKET, Proc, Scene

TOP, CORE = 90, 100
SERVE = ["python3", "/opt/bin/vllm", "serve", "tiny"]


def vllm(util: float, front: float, core: float, look: dict, **page: float) -> Scene:
    """An API server that runs on ``front`` of a CPU, and the engine on one GPU whose main thread runs ``core`` of the time."""
    scene = Scene(gpus={0: {"util_pct": util, "power_w": 300.0, "power_limit_w": 400.0, "pids": [CORE]}})
    scene.add(Proc(TOP, comm="vllm", cmdline=SERVE, run=front, looks=[ON_CPU] if front > 0.8 else [EPOLL], info={"sockets": "listening"}))
    info = {"uses_cuda": True, "libs": ["torch", "vllm"], "sockets": "connected", "other_ends": [TOP]}
    scene.add(Proc(CORE, TOP, "VLLM::EngineCor", ["VLLM::EngineCore"], core, looks=[look], info=info))
    asked = {"running": 4, "waiting": 20, "kv_used_pct": 40.0, "generated_tokens": 300.0, "finished": 3.0, "preemptions": 0.0}
    scene.server = {"pid": TOP, **asked, **page}
    return scene


def full_api_server() -> Scene:
    return vllm(30.0, 0.98, 0.1, POLL_SOCKET)


def tokenizer_of_its_own() -> Scene:
    """The API server rests; a process that it started makes the tokens."""
    scene = vllm(30.0, 0.1, 0.1, POLL_SOCKET)
    scene.procs[TOP].cmdline = ["python3", "-m", "sglang.launch_server"]
    scene.procs[TOP].comm, scene.procs[CORE].comm, scene.procs[CORE].cmdline = "python3", "sglang::schedul", ["sglang::scheduler"]
    scene.procs[CORE].info["other_ends"] = [92]
    return scene.add(Proc(92, TOP, "sglang::tokeniz", ["sglang::tokenizer_worker:92"], 0.97, looks=[ON_CPU]))


def busy_scheduler() -> Scene:
    return vllm(25.0, 0.3, 0.75, ON_CPU)


def scheduler_of_two_workers() -> Scene:
    """On each of two GPUs a worker waits for the next batch of an engine core that is no process on a GPU."""
    scene = vllm(20.0, 0.3, 0.97, ON_CPU)
    scene.procs[CORE].info = {"libs": ["torch", "vllm"], "uses_cuda": False}
    for number in range(2):
        pid = 101 + number
        info = {"uses_cuda": True, "libs": ["torch", "vllm"], "sockets": "connected", "other_ends": [CORE]}
        scene.add(Proc(pid, CORE, f"VLLM::Worker_TP{number}"[:15], [f"VLLM::Worker_TP{number}"], 0.1, looks=[POLL_SOCKET], info=info))
        scene.gpus[number] = {"util_pct": 20.0, "power_w": 300.0, "power_limit_w": 400.0, "pids": [pid]}
    return scene


def no_room_for_keys_and_values() -> Scene:
    scene = vllm(99.0, 0.3, 0.2, FUTEX, kv_used_pct=98.0, preemptions=2.0, waiting=30)
    scene.gpus[0] |= {"sm_active_pct": 15.0, "power_w": 180.0}
    return scene


def no_time_for_its_page() -> Scene:
    """The API server is so busy that its page of metrics comes too late."""
    scene = full_api_server()
    scene.server = {"pid": TOP, "problem": TOO_SLOW}
    return scene


def weights_from_a_slow_disk() -> Scene:
    """The engine reads its weights; the API server does not listen yet."""
    scene = vllm(2.0, 0.02, 0.1, DISK)
    scene.procs[CORE].read_bytes, scene.procs[CORE].uninterruptible = 50 << 20, 0.85
    scene.server = {"pid": TOP, "problem": NOT_LISTENING}
    return scene


def weights_of_a_server_that_answers_already() -> Scene:
    """The same of a server that listens, and answers that it is not ready."""
    scene = weights_from_a_slow_disk()
    scene.server = {"pid": TOP, "problem": NOT_READY}
    return scene


def clients_that_hardly_read() -> Scene:
    """The engine sleeps in its send to the API server, which sleeps until a client has taken what it wrote."""
    scene = vllm(8.0, 0.01, 0.02, {"state": "S", "syscall": 1, "syscall_arg": 9, "wchan": "sock_alloc_send_pskb"}, waiting=0)
    scene.procs[CORE].info["read_by"] = [TOP]
    return scene


SERVED: dict[Callable[[], Scene], tuple[str, str]] = {
    full_api_server: ("input-bound", "frontend-bound"),
    scheduler_of_two_workers: ("wait-heavy", "scheduler-bound"),
    no_time_for_its_page: ("input-bound", "frontend-bound"),
    tokenizer_of_its_own: ("input-bound", "frontend-bound"),
    busy_scheduler: ("wait-heavy", "scheduler-bound"),
    weights_from_a_slow_disk: ("input-bound", "model-load"),
    weights_of_a_server_that_answers_already: ("input-bound", "model-load"),
    no_room_for_keys_and_values: ("busy-not-working", "kv-full"),
}
