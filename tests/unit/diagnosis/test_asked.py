"""Who waits to be asked, and who starves: a trainer without workers whose GPU hardly works, beside servers that look alike."""

from __future__ import annotations

import pytest

from gputop.findings.verdict import IDLE
from tests.unit.diagnosis.scene import AWAIT, CHILD, EPOLL, POLL_SOCKET, READ_PIPE, SLEEP, SOCKET, Proc, Scene

SHARES = (45.0, 25.0, 12.0, 8.0, 3.0, 1.0)  # per cent of the time that its GPU works


def lone(util: float, *looks: dict, sockets: str = "", switches: int = 60, **more: object) -> Scene:
    """A process without workers on a GPU."""
    scene = Scene(gpus={0: {"util_pct": util, "power_w": 120.0, "power_limit_w": 700.0, "pids": [100]}})
    return scene.add(Proc(100, run=0.01, looks=list(looks), switches=switches, info={"uses_cuda": True, "sockets": sockets} | more))


def told(scene: Scene, seconds: float = 8.0) -> tuple[str, str]:
    scene.play(seconds)
    return scene.engine.verdict.symptom, scene.engine.verdict.cause


def pulsing(scene: Scene, every_s: float, seconds: float = 30.0) -> Scene:
    """Its GPU works for a tenth of a second, and then rests until the next step."""

    def work(i: int) -> None:
        scene.gpus[0]["util_pct"] = 8.0 if i % round(10 * every_s) == 0 else 0.0

    return scene.play_tenths(work, seconds)


@pytest.mark.parametrize("util", SHARES)
@pytest.mark.parametrize("sockets", ["connected", "none", ""])
def test_the_worse_a_slow_store_starves_it_the_surer_that_is_told(util: float, sockets: str):
    """It asks for each batch itself, and sleeps in recv until it is there."""
    scene = lone(util, SOCKET, sockets=sockets)
    assert told(scene) == ("input-bound", "network-io")
    assert scene.engine.ledger.by_cause["network-io"] > 0.8 * (1 - util / 100) * scene.engine.ledger.gpu_total_s
    assert scene.engine.incidents


@pytest.mark.parametrize("util", SHARES)
@pytest.mark.parametrize("look", [READ_PIPE, CHILD, SLEEP], ids=["pipe", "child", "timer"])
def test_who_waits_for_something_of_its_own_and_makes_steps_is_no_server(util: float, look: dict):
    scene = lone(util, look, sockets="none")
    assert told(scene)[1] != "none"
    assert scene.engine.phases[100].word != IDLE
    assert scene.engine.ledger.gpu_lost_s > 0.7 * (1 - util / 100) * scene.engine.ledger.gpu_total_s


@pytest.mark.parametrize("util", [45.0, 8.0, 1.0])
def test_a_client_that_polls_for_its_answer_is_late_however_seldom_it_gets_one(util: float):
    assert told(lone(util, POLL_SOCKET, sockets="connected")) == ("input-bound", "network-io")


@pytest.mark.parametrize("util", [45.0, 8.0, 1.0])
def test_a_program_that_it_started_is_its_feeder_and_asks_for_nothing(util: float):
    """`pipe:curl`: the trainer reads what the program fetches; a store for other ranks listens in it, too."""
    scene = lone(util, READ_PIPE, sockets="listening", other_ends=[300])
    scene.add(Proc(300, ppid=100, comm="curl", cmdline=["curl", "-s", "http://store/1.tar"], looks=[POLL_SOCKET], info={"cgroup": "/job"}))
    assert told(scene) == ("input-bound", "network-io")


@pytest.mark.parametrize("every_s", [0.5, 1.0, 3.0, 6.0])
def test_steps_that_come_seldom_are_steps(every_s: float):
    scene = pulsing(lone(0.0, SOCKET, sockets="connected"), every_s)
    assert scene.engine.verdict.cause == "network-io"


def test_one_that_listens_and_reads_from_whom_it_asked_is_no_server():
    """The collector tells that of a first rank, in which a store for the others listens."""
    assert told(lone(8.0, SOCKET, sockets="connected")) == ("input-bound", "network-io")


@pytest.mark.parametrize("util", [25.0, 8.0, 1.0])
@pytest.mark.parametrize("look", [EPOLL, AWAIT], ids=["event loop", "threads"])
def test_a_server_that_is_asked_seldom_is_idle_without_fault(util: float, look: dict):
    scene = lone(util if look is EPOLL else min(util, 8.0), look, sockets="listening")
    assert told(scene, 20) == ("idle", "none")
    assert scene.engine.incidents == []


def test_a_server_whose_main_thread_sleeps_for_ever_is_idle():
    """gRPC's examples: threads answer, and the main thread sleeps for a day."""
    assert told(lone(8.0, SLEEP, sockets="listening", switches=0), 20) == ("idle", "none")
    assert told(lone(8.0, SLEEP, sockets="listening", switches=60))[1] == "main-thread-preprocessing"


def test_a_server_that_reads_from_its_client_is_idle():
    assert told(lone(8.0, SOCKET, sockets="listening"), 20) == ("idle", "none")


@pytest.mark.parametrize(("other_ends", "idle"), [([77], True), ([77, 101], True), ([300], False), ([], False)])
def test_a_pipe_brings_requests_where_who_started_it_holds_the_other_end(other_ends: list[int], idle: bool):
    """A pool's child that computes for its parent; a model behind standard input."""
    scene = lone(8.0, READ_PIPE, sockets="none", other_ends=other_ends)
    scene.procs[100].ppid = 77
    for pid in (77, 101, 300):
        scene.add(Proc(pid, ppid=100 if pid == 300 else 1, comm="sh", cmdline=["sh", f"{pid}.sh"], looks=[SLEEP]))
    scene.play(8)
    assert (scene.engine.phases[100].word == IDLE) == idle


@pytest.mark.parametrize(
    ("every_s", "look", "cause"),
    [(2.0, AWAIT, "none"), (2.0, EPOLL, "none"), (1.3, AWAIT, "none"), (2.0, SLEEP, "network-io"), (0.4, AWAIT, "network-io")],
    ids=["scheduler at its queue", "scheduler at its sockets", "more often", "server that sleeps before it answers", "answers in turn"],
)
@pytest.mark.parametrize("own", [SOCKET, POLL_SOCKET], ids=["reads", "polls"])
def test_who_waits_at_the_socket_of_a_coordinator_without_requests_is_idle(own: dict, every_s: float, look: dict, cause: str):
    """A GPU worker of a task graph: the scheduler sends it a task now and then."""
    scene = lone(0.0, own, sockets="connected", switches=0, other_ends=[300])
    scene.add(Proc(300, ppid=1, comm="scheduler", cmdline=["scheduler"], looks=[look], info={"sockets": "listening"}))

    def work(i: int) -> None:
        asked = i % round(10 * every_s) == 0
        scene.gpus[0]["util_pct"], scene.procs[100].run = (80.0, 0.1) if asked else (0.0, 0.0)

    scene.play_tenths(work, 20.0)
    assert scene.engine.verdict.cause == cause


@pytest.mark.parametrize(("sockets", "idle"), [("listening", True), ("connected", False)], ids=["client", "server that it asked"])
def test_a_client_that_sleeps_by_its_clock_wants_nothing(sockets: str, idle: bool):
    """A dashboard asks a database every two seconds; a server that sleeps is late."""
    scene = lone(0.0, SOCKET, sockets=sockets, switches=0, other_ends=[300])
    scene.procs[100].threads, scene.procs[100].thread_looks = {110: (0.0, 0.0)}, [SOCKET]
    info = {"sockets": "connected", "other_ends": [100]}
    scene.add(Proc(300, ppid=1, comm="grafana", cmdline=["grafana"], looks=[SLEEP], info=info))

    def work(i: int) -> None:
        asked = i % 20 < 3
        scene.gpus[0]["util_pct"], scene.procs[100].run = (95.0, 0.1) if asked else (0.0, 0.0)

    scene.play_tenths(work, 20.0)
    assert (scene.engine.verdict.symptom == "idle") == idle


@pytest.mark.parametrize("look", [SOCKET, READ_PIPE, AWAIT, SLEEP, EPOLL], ids=["socket", "pipe", "lock", "timer", "poll"])
def test_a_context_that_is_kept_open_without_steps_is_idle(look: dict):
    """Nobody runs anything in it."""
    assert told(lone(0.0, look, sockets="none"), 20) == ("idle", "none")


def test_whose_sockets_may_not_be_read_is_not_called_a_starving_trainer():
    """Another user's: neither its system calls nor its descriptors are known."""
    assert told(lone(8.0, {"state": "S"})) == ("idle", "none")


def bursts(look: dict, busy_s: float, idle_s: float, rounds: int = 6, **more: object) -> Scene:
    """Its GPU works without a pause for a while, then rests, and the main thread sleeps there."""
    scene = lone(0.0, look, **more)
    scene.gpus[0]["power_w"] = 500.0
    for _ in range(rounds):
        for util, run, seen, seconds in ((98.0, 0.3, SLEEP, busy_s), (0.0, 0.01, look, idle_s)):
            scene.gpus[0]["util_pct"], scene.procs[100].run, scene.procs[100].looks = util, run, [seen]
            scene.play(seconds)
    return scene


@pytest.mark.parametrize("look", [EPOLL, AWAIT, POLL_SOCKET], ids=["epoll", "its own queue", "poll"])
@pytest.mark.parametrize(("busy_s", "idle_s"), [(2.0, 3.0), (3.0, 1.6), (5.0, 10.0), (1.0, 4.0)])
def test_bursts_of_requests_are_no_pauses_of_the_server(look: dict, busy_s: float, idle_s: float):
    scene = bursts(look, busy_s, idle_s, sockets="listening")
    assert not [one for one in scene.engine.incidents if one.severity != "low"]
    assert scene.engine.ledger.gpu_lost_s < 0.1 * 6 * idle_s


def test_a_training_that_rests_again_and_again_pauses():
    scene = bursts(AWAIT, 3.0, 2.0, sockets="none")
    assert {incident.cause for incident in scene.engine.incidents} == {"pause"}
    assert scene.engine.ledger.by_cause["pause"] > 0.7 * 6 * 2.0
