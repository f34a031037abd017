"""Sources that deliver by a clock of their own: the job that has all their input is idle, and who sleeps for another reason is late."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gputop.findings.verdict import IDLE, LOOKING
from tests.unit.diagnosis.scene import EPOLL, ON_CPU, POLL_SOCKET, READ, READ_PIPE, SLEEP, SOCKET, Proc, Scene

GPU, CAMERA, OTHER = 100, 300, 301
ALONE = {"sockets": "none"}
AHEAD = {"state": "S", "syscall": 1, "syscall_arg": 1, "wchan": "pipe_write"}
TIMED_POLL = POLL_SOCKET | {"syscall_arg": 66}


def camera(pid: int = CAMERA, ppid: int = GPU, looks: tuple[dict, ...] = (SLEEP,), **more: object) -> Proc:
    """A decoder that sleeps until its next frame is due."""
    known = {"run": 0.08, "info": ALONE, "cmdline": ["ffmpeg", "-i", f"rtsp://gate/{pid}"]} | more
    return Proc(pid, ppid=ppid, comm="ffmpeg", looks=list(looks), switches=180, start_ticks=50_200, **known)  # type: ignore[arg-type]


def watching(*sources: Proc, reads: tuple[int, ...] = (), probed: bool = False) -> Scene:
    """A detector that reads frames from the sources at pipes, and works its GPU a tenth of the time."""
    scene = Scene(gpus={0: {"util_pct": 12.0, "power_w": 120.0, "power_limit_w": 700.0, "pids": [GPU]}}, probed=probed)
    ends = list(reads or (one.pid for one in sources))
    scene.add(Proc(GPU, run=0.02, looks=[READ_PIPE], info={"uses_cuda": True, "sockets": "none", "other_ends": ends}), *sources)
    if probed:
        scene.wakeups = {(GPU, pid): 0.85 / len(ends) for pid in ends}
        scene.waits_at = dict.fromkeys(scene.wakeups, "pipe")
    return scene


def told(scene: Scene, seconds: float = 12.0) -> tuple[str, str]:
    scene.play(seconds)
    return scene.engine.verdict.symptom, scene.engine.verdict.cause


@pytest.mark.parametrize("probed", [False, True], ids=["by /proc", "probed"])
@pytest.mark.parametrize("ppid", [GPU, 1], ids=["its child", "of a service"])
@pytest.mark.parametrize("look", [SLEEP, TIMED_POLL], ids=["sleep", "poll with a time limit"])
def test_a_job_that_has_each_input_as_it_comes_is_idle_without_fault(look: dict, ppid: int, probed: bool):
    scene = watching(camera(ppid=ppid, looks=(look,)), probed=probed)
    assert told(scene) == ("idle", "none")
    assert scene.engine.phases[GPU].word == IDLE
    assert f"ffmpeg ({CAMERA})" in scene.engine.verdict.headline
    assert scene.engine.incidents == []
    assert scene.engine.ledger.gpu_lost_s == 0.0


def test_two_cameras_are_two_sources():
    assert told(watching(camera(), camera(OTHER))) == ("idle", "none")


@pytest.mark.parametrize("probed", [False, True], ids=["by /proc", "probed"])
def test_a_filter_behind_a_camera_has_no_more_than_that_sends(probed: bool):
    scaler = Proc(OTHER, ppid=1, comm="scale", cmdline=["scale"], run=0.05, looks=[READ], info=ALONE | {"other_ends": [CAMERA]})
    assert told(watching(camera(ppid=1), scaler, reads=(OTHER,), probed=probed)) == ("idle", "none")


def test_nothing_is_said_until_its_pace_is_known():
    scene = watching(camera())
    assert told(scene, 2.8) == (LOOKING, "none")
    assert told(scene, 6.0) == ("idle", "none")


@pytest.mark.parametrize("probed", [False, True], ids=["by /proc", "probed"])
@pytest.mark.parametrize(
    "sources",
    [
        lambda: [camera(info={"sockets": "connected"})],
        lambda: [camera(info={})],
        lambda: [camera(cmdline=["load"]), camera(OTHER, cmdline=["load"])],
        lambda: [camera(run=0.97, looks=(ON_CPU,))],
        lambda: [camera(), camera(OTHER, run=0.97, looks=(ON_CPU,))],
    ],
    ids=["a rate limit of a store", "unknown sockets", "a pool of loaders", "works all the time", "another one works"],
)  # fmt: skip
def test_who_sleeps_for_another_reason_or_works_is_too_slow(sources: Callable[[], list[Proc]], probed: bool):
    scene = watching(*sources(), probed=probed)
    assert told(scene)[0] == "input-bound"
    assert scene.engine.verdict.cause != "none"
    assert scene.engine.ledger.gpu_lost_s > 0.6 * scene.engine.ledger.gpu_total_s


def test_one_that_tries_again_after_longer_and_longer_times_has_no_clock():
    scene = watching(camera())
    for switches in (200, 100, 50, 25, 200, 100, 50, 25, 200, 100):
        scene.procs[CAMERA].switches = switches
        scene.play(1.0)
    assert (scene.engine.verdict.symptom, scene.engine.verdict.cause) == ("input-bound", "slow-transform")


def test_one_that_waits_for_its_reader_is_not_what_holds_it():
    assert told(watching(camera(looks=(SLEEP, SLEEP, SLEEP, SLEEP, AHEAD)))) != ("idle", "none")


def test_one_that_reads_from_another_has_no_pace_of_its_own():
    source = Proc(OTHER, ppid=1, comm="fetch", cmdline=["fetch"], run=0.97, looks=[ON_CPU], info=ALONE)
    assert told(watching(camera(info=ALONE | {"other_ends": [OTHER]}), source, reads=(CAMERA,))) != ("idle", "none")


def test_a_sleeper_that_feeds_nobody_is_no_source():
    """A program beside the feeder that only reports now and then."""
    work = Proc(CAMERA, ppid=1, comm="decode", cmdline=["decode"], run=0.97, looks=[ON_CPU], info=ALONE)
    monitor = camera(OTHER, ppid=CAMERA)
    assert told(watching(work, monitor, reads=(CAMERA,)))[0] == "input-bound"


TICKS = (0.0, 0.0, 0.009)  # nothing sent, and 30 messages of 300 bytes received a second


def subscriber(wire: tuple[float, float, float] | None = TICKS, arriving: float = 0.0, **more: object) -> Proc:
    """A feed handler that writes to the model what another machine sends it, unasked."""
    known = {"ppid": GPU, "run": 0.02, "looks": [SOCKET], "info": {"sockets": "connected"}, "cmdline": ["feed_handler"]} | more
    return Proc(CAMERA, comm="feed_handler", wire=wire, arriving=None if wire is None else arriving, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize("probed", [False, True], ids=["by /proc", "probed"])
@pytest.mark.parametrize("ppid", [GPU, 1], ids=["its child", "of a service"])
@pytest.mark.parametrize("look", [SOCKET, EPOLL], ids=["receive", "event loop"])
def test_a_job_that_has_each_message_that_others_send_unasked_is_idle(look: dict, ppid: int, probed: bool):
    scene = watching(subscriber(looks=[look], ppid=ppid), probed=probed)
    assert told(scene, 2.8)[1] == "none"
    assert told(scene) == ("idle", "none")
    assert f"feed_handler ({CAMERA})" in scene.engine.verdict.headline
    assert scene.engine.incidents == []


@pytest.mark.parametrize("probed", [False, True], ids=["by /proc", "probed"])
@pytest.mark.parametrize(
    "feeder",
    [
        lambda: subscriber((0.0, 0.001, 0.009)),
        lambda: subscriber(arriving=0.9),
        lambda: subscriber((0.0, 0.0, 12.0)),
        lambda: subscriber((0.0, 0.0, 0.0)),
        lambda: subscriber(None),
    ],
    ids=["it asks", "a stream", "batches", "nothing comes", "connections that are not read"],
)
def test_who_asks_or_is_sent_all_that_the_network_carries_waits_for_the_network(feeder: Callable[[], Proc], probed: bool):
    assert told(watching(feeder(), probed=probed)) == ("input-bound", "network-io")


def test_an_answer_in_pieces_with_pauses_was_asked_for():
    scene = watching(subscriber())
    for second in range(10):
        scene.procs[CAMERA].wire = TICKS if second % 4 >= 2 else (0.0, 0.0, 0.0)
        scene.play(1.0)
        assert scene.engine.verdict.symptom != "idle"


@pytest.mark.parametrize(
    ("sender", "cause"), [({"run": 0.97, "looks": [ON_CPU]}, "too-few-workers"), ({"run": 0.02, "looks": [EPOLL]}, "none")],
    ids=["works", "rests"],
)  # fmt: skip
def test_a_sender_on_this_host_that_works_all_the_time_is_too_slow(sender: dict, cause: str):
    handler = subscriber(info={"sockets": "connected", "other_ends": [OTHER]})
    exchange = Proc(OTHER, ppid=1, comm="exchange", cmdline=["exchange"], info={"sockets": "listening"}, **sender)
    assert told(watching(handler, exchange, reads=(CAMERA,)))[1] == cause
