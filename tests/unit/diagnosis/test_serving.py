"""What speaks against the causes of inference servers: nobody asks, there is room, another process has a full core, no page is read."""

from __future__ import annotations

import pytest

from gputop.findings.line import line_of
from gputop.model.serving import TOO_SLOW
from gputop.tui.draw.why import measured
from tests.unit.diagnosis.causes_serving import (
    CORE,
    TOP,
    busy_scheduler,
    clients_that_hardly_read,
    full_api_server,
    no_room_for_keys_and_values,
    tokenizer_of_its_own,
    vllm,
)
from tests.unit.diagnosis.scene import EPOLL, FUTEX, ON_CPU, POLL_SOCKET, Proc, Scene

OF_SERVERS = ("frontend-bound", "scheduler-bound", "kv-full")
NOBODY = {"running": 0, "waiting": 0, "generated_tokens": 0.0, "finished": 0.0}


def verdict(scene: Scene) -> tuple[str, str]:
    worked = dict(scene.gpus[0])
    scene.gpus[0]["util_pct"] = 100.0
    scene.play(1.0, 0.5)
    scene.gpus[0] = worked
    scene.play(12, 0.5)
    return scene.engine.verdict.symptom, scene.engine.verdict.cause


def test_a_scheduler_that_spins_while_nobody_asks_is_no_load() -> None:
    scene = vllm(0.0, 0.02, 0.97, ON_CPU, **NOBODY)
    assert verdict(scene) == ("idle", "none")
    assert "no requests" in scene.engine.verdict.headline


def test_no_requests_are_no_fault() -> None:
    assert verdict(vllm(0.0, 0.02, 0.02, POLL_SOCKET, **NOBODY)) == ("idle", "none")


def test_a_full_core_with_requests_that_its_metrics_do_not_have_yet_is_no_rest() -> None:
    """Tokens are made before the engine knows of a request."""
    rests = {}
    for front in (0.98, 0.05):
        scene = vllm(10.0, front, 0.05, POLL_SOCKET, **NOBODY).play(6)
        assert scene.engine.facts is not None
        rests[front] = scene.engine.facts.servers[CORE].rests
    assert rests == {0.98: False, 0.05: True}


def test_a_process_that_is_none_of_its_own_is_not_the_front() -> None:
    scene = full_api_server()
    scene.procs[TOP].run, scene.procs[TOP].looks = 0.2, [EPOLL]
    scene.add(Proc(900, comm="client", cmdline=["/bin/client"], run=0.98, looks=[ON_CPU]))
    assert verdict(scene)[1] != "frontend-bound"


def test_a_server_of_one_process_does_not_wait_for_itself() -> None:
    """llama.cpp's takes requests and computes: its threads at work are no process of their own."""
    scene = vllm(30.0, 0.0, 0.05, FUTEX)
    scene.drop(TOP).procs[CORE].threads, scene.procs[CORE].thread_looks = {110: (0.97, 0.0)}, [ON_CPU]
    scene.procs[CORE].comm, scene.procs[CORE].cmdline, scene.server["pid"] = "llama-server", ["/opt/llama-server"], CORE
    scene.procs[CORE].info = {"uses_cuda": True, "libs": [], "exe": "/opt/llama-server", "sockets": "listening"}
    assert verdict(scene)[1] not in ("frontend-bound", "none")
    assert scene.engine.facts is not None
    assert scene.engine.facts.servers[CORE].front is None


def test_memory_that_is_full_without_a_queue_is_a_cache() -> None:
    scene = no_room_for_keys_and_values()
    scene.server |= {"waiting": 0, "preemptions": 0.0}
    assert verdict(scene)[1] not in OF_SERVERS


def test_room_for_keys_and_values() -> None:
    scene = no_room_for_keys_and_values()
    scene.server |= {"kv_used_pct": 60.0, "preemptions": 0.0}
    assert verdict(scene)[1] != "kv-full"


@pytest.mark.parametrize("make", [full_api_server, busy_scheduler, no_room_for_keys_and_values])
def test_without_a_page_the_causes_of_any_program_remain(make) -> None:
    scene = make()
    scene.server = {}
    assert verdict(scene)[1] not in (*OF_SERVERS, "none")


def test_an_engine_whose_launches_take_the_time_has_small_kernels() -> None:
    causes = {}
    for per_s in (30_000.0, 1000.0):
        scene = busy_scheduler()
        scene.probed, scene.launches, scene.calls = True, {CORE: per_s}, {(CORE, "cuStreamSynchronize"): (40, 0.02, 0)}
        causes[per_s] = verdict(scene)[1]
    assert causes == {30_000.0: "small-kernels", 1000.0: "scheduler-bound"}


def test_a_page_without_the_requests_that_run_shows_no_rest() -> None:
    """Triton's: one that computes for a while has none in its queue, and none that ends."""
    scene = vllm(0.0, 0.02, 0.05, POLL_SOCKET)
    scene.server = {"pid": TOP, "waiting": 0, "finished": 0.0}
    facts = scene.play(6).engine.facts
    assert facts is not None
    server = facts.servers[CORE]
    assert (server.rests, server.running, server.tokens_per_s) == (False, None, None)
    assert server.requests is not None
    assert server.requests.told() == "0 requests wait"


def test_fixes_fit_the_engine_and_never_name_loaders() -> None:
    for make, word in ((full_api_server, "--api-server-count"), (tokenizer_of_its_own, "--tokenizer-worker-num"),
                       (no_room_for_keys_and_values, "--gpu-memory-utilization")):  # fmt: skip
        scene = make()
        if make is tokenizer_of_its_own:
            page = scene.next_frame
            scene.next_frame = lambda dt, page=page: _of_sglang(page(dt))  # type: ignore[method-assign]
        verdict(scene)
        told = " ".join(f"{fix.text} {fix.command}" for fix in scene.engine.verdict.fixes)
        assert word in told
        assert "num_workers" not in told


def _of_sglang(frame):
    from msgspec.structs import replace

    frame.servings = [replace(one, family="sglang") for one in frame.servings]
    return frame


def test_a_server_has_requests_and_passes_where_a_trainer_has_steps() -> None:
    scene = vllm(97.0, 0.2, 0.2, POLL_SOCKET, steps=40.0, first_token={100_000: 5})
    verdict(scene)
    found = scene.engine.verdict
    assert found.requests is not None
    assert (found.requests.running, found.requests.waiting, found.requests.tokens_per_s, found.requests.kv_used_pct) == (4, 20, 300.0, 40.0)
    assert found.step is not None
    assert (found.step.per_s, found.step.source) == (pytest.approx(40.0), "the server's metrics")
    assert found.requests.told().startswith("4 requests run, 20 wait; 300 tokens/s")
    assert "20 waiting" in line_of(scene.board, found).text()
    assert "300 tokens/s" in "".join(text for line in measured(found, 100) for text, _ in line)
    scene.server = {"pid": TOP, "problem": TOO_SLOW}
    busy = scene.play(6).engine.verdict.requests
    assert busy is not None
    assert (busy.running, busy.waiting, busy.tokens_per_s, busy.told()) == (None, None, None, "")
    assert "no time to answer" in busy.way[0].told


def test_the_path_leads_from_the_engine_to_the_process_that_it_waits_for() -> None:
    scene = full_api_server()
    verdict(scene)
    found = scene.engine.verdict
    assert next(step.pid for step in found.path) == CORE
    assert [culprit.pid for culprit in found.culprits] == [TOP]
    assert {one.metric for one in found.evidence} >= {"requests_waiting", "front_cpus"}


def test_streams_that_back_up_are_no_pause_and_no_rest() -> None:
    """However long the GPU rests: requests are under way. The engine waits in its send, and the server hardly runs."""
    for waits in (POLL_SOCKET, clients_that_hardly_read().procs[CORE].looks[0]):
        scene = clients_that_hardly_read()
        scene.procs[CORE].looks, scene.procs[CORE].run, scene.procs[CORE].switches = [waits], 0.0, 1
        scene.gpus[0]["util_pct"] = 100.0
        scene.play(8, 0.5)
        scene.gpus[0]["util_pct"] = 0.0
        scene.server["generated_tokens"] = 0.0
        said = {(scene.play(1, 0.5).engine.verdict.symptom, scene.engine.verdict.cause) for _ in range(12)}
        assert not {("idle", "none"), ("idle", "pause")} & said, said
    assert scene.engine.verdict.cause == "output-blocked"
    assert [one.pid for one in scene.engine.verdict.culprits] == [TOP]
    assert any("proxy" in fix.text for fix in scene.engine.verdict.fixes)
