"""A young trainer whose GPU nobody has seen at work is starting, unless somebody whom it needs is held as no start holds him."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis.causes import starved
from tests.unit.diagnosis.causes import stopped
from tests.unit.diagnosis.scene import CHILD
from tests.unit.diagnosis.scene import FUTEX
from tests.unit.diagnosis.scene import ON_CPU
from tests.unit.diagnosis.scene import POLL_SOCKET
from tests.unit.diagnosis.scene import QUEUE
from tests.unit.diagnosis.scene import READ_PIPE
from tests.unit.diagnosis.scene import SLEEP
from tests.unit.diagnosis.scene import SOCKET
from tests.unit.diagnosis.scene import START_S
from tests.unit.diagnosis.scene import Proc
from tests.unit.diagnosis.scene import Scene


def young(scene: Scene) -> Scene:
    """All of its processes began 5 s before anybody watched; its GPU has not worked since."""
    scene.gpus[0]["util_pct"] = 0.0
    for proc in scene.procs.values():
        proc.start_ticks = (START_S - 5) * 100
    return scene


def standing(look: dict) -> Scene:
    """Both workers of a young trainer sleep there and do not stir."""
    scene = young(starved(workers=2, run=0.0, looks=[look], switches=0))
    scene.procs[100].switches = 0
    return scene


def test_a_worker_that_was_stopped_before_anybody_watched_is_no_start():
    assert young(stopped()).play(4).engine.verdict.cause == "hung-worker"
    scene = standing(READ_PIPE)
    scene.procs[101].looks = [QUEUE]  # that one is ahead; the other reads from a mount that is gone
    scene.procs[102].looks = [{"state": "S", "syscall": 0, "wchan": "request_wait_answer"}]
    assert scene.play(8).engine.verdict.cause == "hung-worker"
    assert young(starved(util=0.0, workers=4)).play(4).engine.verdict.headline.endswith("is starting")


@pytest.mark.parametrize("look", [FUTEX, SOCKET, POLL_SOCKET], ids=["lock of a fork", "server", "server, with a time limit"])
def test_workers_that_all_stand_before_anybody_saw_the_gpu_work_hang(look: dict):
    scene = standing(look).play(4)
    verdict = scene.engine.verdict
    assert (verdict.symptom, verdict.cause) == ("idle", "none")
    assert verdict.headline.endswith("is starting, or held up: 2 of 2 workers starve")
    verdict = scene.play(4).engine.verdict
    assert verdict.cause == "hung-worker"
    assert verdict.detail.endswith("nobody is left to deliver")


@pytest.mark.parametrize(
    ("look", "program"),
    [(SLEEP, None), (CHILD, None), (READ_PIPE, None), (POLL_SOCKET, SOCKET), (SOCKET, ON_CPU)],
    ids=["pauses", "ends of programs", "answers of somebody near", "programs that download", "programs that compute"],
)
def test_workers_that_wait_for_whom_they_asked_may_be_starting(look: dict, program: dict | None):
    scene = standing(look)
    if program is not None:
        scene.add(*[Proc(200 + pid, ppid=pid, comm="unpack", cmdline=["unpack"], looks=[program]) for pid in (101, 102)])
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
