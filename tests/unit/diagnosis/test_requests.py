"""The way of a request through an inference server, on every surface that shows it: where the time to the first token goes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from gputop.agents.diagnose import details
from gputop.findings.explanation import from_elsewhere
from gputop.findings.sentence import pack, unpack
from gputop.findings.text import explain_lines
from gputop.findings.verdict import RequestStage
from gputop.stream.session import Session
from gputop.system.colour import painted
from gputop.tui.draw.served import COLUMNS, ServedNow
from gputop.tui.draw.table import columns_of, rows
from gputop.tui.draw.view import View
from gputop.tui.draw.why import asked, victims
from tests.unit.diagnosis.causes_serving import (
    CORE,
    TOP,
    busy_scheduler,
    clients_that_hardly_read,
    full_api_server,
    no_room_for_keys_and_values,
    no_time_for_its_page,
    scheduler_of_two_workers,
    tokenizer_of_its_own,
    vllm,
    weights_from_a_slow_disk,
)
from tests.unit.diagnosis.scene import EPOLL, ON_CPU, POLL_SOCKET, Proc, Scene


def neighbours() -> Scene:
    """The API server keeps up with 0.4 of a CPU, which neighbours take from it."""
    scene = vllm(30.0, 0.4, 0.1, POLL_SOCKET)
    scene.procs[TOP].wait, scene.procs[TOP].looks, scene.cpu_busy = 0.55, [ON_CPU], [1.0] * 4
    return scene.add(*(Proc(900 + i, comm="bowtie2", cmdline=["bowtie2"], run=0.98, looks=[ON_CPU]) for i in range(2)))


def quota() -> Scene:
    scene = vllm(20.0, 0.2, 0.1, POLL_SOCKET)
    scene.cgroups = {"/pod": {"quota_cpus": 0.4, "throttled": 0.9}}
    for proc in scene.procs.values():
        proc.info |= {"cgroup": "/pod"}
    scene.procs[TOP].looks, scene.procs[TOP].wait = [ON_CPU], 0.75
    return scene


def full_gpu() -> Scene:
    """It has more requests than the GPU can compute, and that one always works."""
    return vllm(100.0, 0.2, 0.3, EPOLL)


def way(scene: Scene) -> tuple[RequestStage, ...]:
    requests = scene.play(12, 0.5).engine.verdict.requests
    return () if requests is None else requests.way


@pytest.mark.parametrize(
    ("make", "part", "pid"),
    [
        (full_api_server, "tokenizer", TOP), (tokenizer_of_its_own, "tokenizer", 92), (no_time_for_its_page, "tokenizer", TOP),
        (busy_scheduler, "scheduler", CORE), (scheduler_of_two_workers, "scheduler", CORE), (no_room_for_keys_and_values, "memory", None),
        (neighbours, "CPU", 900), (quota, "CPU", None), (full_gpu, "GPU", None), (clients_that_hardly_read, "client", None),
    ],
)  # fmt: skip
def test_the_part_where_the_time_goes_is_marked(make: Callable[[], Scene], part: str, pid: int | None) -> None:
    """It stands among all others, in the order in which a request comes to them."""
    found = way(make())
    assert [(one.part, one.pid) for one in found if one.slow] == [(part, pid)]
    order = ("requests", "tokenizer", "scheduler", "memory", "GPU", "detokenizer", "client", "CPU")
    assert [one.part for one in found] == sorted((one.part for one in found), key=order.index)
    assert {"requests", "tokenizer", "scheduler", "GPU"} <= {one.part for one in found}


def test_who_wants_a_cpu_says_so_before_those_who_have_it() -> None:
    found = {one.part: one for one in way(neighbours())}
    assert "gets none 55% of the time" in found["tokenizer"].told
    assert (found["CPU"].name, "0.98" in found["CPU"].told) == ("bowtie2", True)


def test_a_server_with_nothing_to_do_is_nowhere_slow_and_one_that_loads_has_no_way() -> None:
    rests = way(vllm(0.0, 0.02, 0.02, POLL_SOCKET, running=0, waiting=0, generated_tokens=0.0, finished=0.0))
    assert rests
    assert not any(one.slow for one in rests)
    assert way(weights_from_a_slow_disk()) == ()


def test_a_server_of_one_process_has_no_tokenizer_of_its_own() -> None:
    scene = vllm(30.0, 0.0, 0.6, ON_CPU).drop(TOP)
    scene.procs[CORE].comm, scene.procs[CORE].cmdline, scene.server["pid"] = "llama-server", ["/opt/llama-server"], CORE
    scene.procs[CORE].info = {"uses_cuda": True, "libs": [], "exe": "/opt/llama-server", "sockets": "listening"}
    found = {one.part: one for one in way(scene)}
    assert "tokenizer" not in found
    assert found["scheduler"].pid == CORE


def test_screen_explanation_and_agents_show_the_same_way() -> None:
    scene = neighbours().play(20, 0.5)
    verdict, found = scene.engine.verdict, scene.engine.explain()
    assert verdict.requests is not None
    wanted = [one.line().strip() for one in verdict.requests.way]
    box = ["".join(text for text, _ in line).strip() for line in asked(verdict, 100)]
    assert box[1:] == wanted
    printed = [painted(line, on=False) for line in explain_lines(found)]
    parts = [one.part for one in verdict.requests.way]
    shown = [line for line in printed if any(f" {part}  " in line for part in parts) and "%" not in line.split()[0]]
    assert [part for part in parts if not any(part in line for line in shown)] == []
    assert any("►" in line and "bowtie2" in line for line in shown)
    told = details(found.incidents[-1])["request_way_untrusted"]
    assert any("tokenizer" in str(one) for one in told)


def test_a_way_from_elsewhere_has_harmless_names_and_only_own_texts() -> None:
    scene = neighbours()
    scene.procs[900].comm = scene.procs[900].cmdline[0] = "evil; rm -rf $(x)"
    found = from_elsewhere(unpack(pack(scene.play(20, 0.5).engine.found()), type(scene.engine.explain())))
    requests = found.incidents[-1].requests
    assert requests is not None
    assert not any(char in one.name for one in requests.way for char in ";$")
    assert all(one.told for one in requests.way)
    assert found.incidents[-1].brief().requests is None


def test_the_row_of_a_serving_job_has_its_requests() -> None:
    """Where a training has its arguments; of a server with several processes on GPUs the first one has them."""
    scene, session = scheduler_of_two_workers(), Session()
    session.ingest(scene.board.header)
    for _ in range(20):
        session.ingest(scene.next_frame(0.5))
    wide = {row.pid: row.served for row in rows(session, View(width=160))}
    assert wide[101] is not None
    assert (wide[101].waiting, wide[101].running, wide[101].tokens_per_s) == (20, 4, 300.0)
    late = next(one for one in COLUMNS if one.title == "TTFT")
    assert late.cell(SimpleNamespace(served=ServedNow(20, 4, 300.0, 984.0)), None)[0] == "984ms"
    assert late.cell(SimpleNamespace(served=ServedNow(20, 4, 300.0, None)), None)[0] == "–"
    assert wide[102] is None
    narrow, view = {row.pid: row for row in rows(session, View(width=80))}, View(width=160)
    assert narrow[101].arguments == "20 wait 4 run 300 tok/s"
    rows(session, view)
    assert {"QUEUE", "REQ", "TOK/S", "TTFT"} <= {one.title for one in columns_of(view)}


def test_who_suffers_is_an_engine_and_no_trainer() -> None:
    shown = "".join(text for line in victims(no_room_for_keys_and_values().play(12).engine.verdict, 200) for text, _ in line)
    assert "EngineCore (100)" in shown
    assert "trainer" not in shown
