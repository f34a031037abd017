"""A job's family: who is at its ends, who is behind those, and what is told when they work, rest, or are nobody's."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest

from gputop.findings.verdict import COMPUTES, COORDINATES, FEEDS, READS, SERVES
from gputop.model.board import Board
from gputop.stream import snapshot
from tests.unit.diagnosis.causes_behind import lock_of_the_trainers_file_and_its_waker
from tests.unit.diagnosis.causes_fed import faulting_server, throttled_filler
from tests.unit.diagnosis.scene import AWAIT, DISK, EPOLL, ON_CPU, POLL_SOCKET, READ, SLEEP, SOCKET, Proc, Scene

GPU, FRONT, BEHIND, STRANGER = 100, 300, 301, 400
STOPPED = {"state": "T", "syscall": 0}


def behind_a_front(front: dict, behind: dict, util: float = 30.0, waits: str = "main", front_sockets: str = "listening") -> Scene:
    """A process on the GPU that a front of another session sends its input, which it has from a third one. ``waits``: who reads it."""
    scene = Scene(cpus=2, cpu_busy=[0.5, 0.5])
    scene.gpus[0] = {"util_pct": util, "power_w": 300.0, "power_limit_w": 700.0, "pids": [GPU]}
    info = {"uses_cuda": True, "sockets": "connected", "other_ends": [FRONT], "session": GPU}
    engine = Proc(GPU, run=0.02, comm="engine", cmdline=["engine"], looks=[READ], info=info)
    if waits == "thread":
        engine.looks, engine.threads, engine.thread_looks = [AWAIT], {110: (0.01, 0.0)}, [READ]
    asks = {"session": FRONT, "sockets": front_sockets, "other_ends": [GPU, BEHIND]}
    return scene.add(
        engine,
        Proc(FRONT, comm="front", cmdline=["front"], info=asks, **front),
        Proc(BEHIND, comm="tokenize", cmdline=["tokenize"], info={"session": FRONT, "other_ends": [FRONT]}, **behind),
        Proc(STRANGER, comm="other", cmdline=["other"], looks=[SLEEP]),
    )  # fmt: skip


RESTS = {"run": 0.01, "looks": [EPOLL]}
READS_IT = {"run": 0.01, "looks": [READ]}
WORKS = {"run": 0.97, "looks": [ON_CPU]}


def told(scene: Scene, seconds: float = 8.0) -> tuple[str, str]:
    scene.play(seconds)
    return scene.engine.verdict.symptom, scene.engine.verdict.cause


def members(scene: Scene) -> dict[int, str]:
    facts = scene.engine.facts
    assert facts is not None
    return {one.pid: one.part for one in facts.jobs[0].members}


@pytest.mark.parametrize("waits", ["main", "thread"])
def test_the_walk_goes_through_who_rests_to_who_works_behind_it(waits: str) -> None:
    scene = behind_a_front(RESTS, WORKS, waits=waits)
    assert told(scene) == ("input-bound", "slow-transform")
    assert members(scene) == {FRONT: SERVES, BEHIND: FEEDS}
    path = scene.engine.verdict.path
    assert path[-1].pid == BEHIND, path
    assert path[-1].state == "runs"


def test_the_front_itself_is_the_end_where_it_works() -> None:
    scene = behind_a_front(WORKS, READS_IT)
    assert told(scene) == ("input-bound", "slow-transform")
    assert scene.engine.verdict.path[-1].pid == FRONT


@pytest.mark.parametrize(
    ("behind", "cause"),
    [
        ({"run": 0.01, "looks": [DISK]}, "disk-io"),
        ({"run": 0.1, "wait": 0.88, "looks": [ON_CPU]}, "cpu-contention"),
        ({"run": 0.0, "looks": [STOPPED]}, "hung-worker"),
    ],
    ids=["disk", "no CPU", "stopped"],
)
def test_what_keeps_the_last_one_is_the_cause(behind: dict, cause: str) -> None:
    scene = behind_a_front(RESTS, behind)
    if cause == "cpu-contention":
        scene.cpu_busy = [1.0, 1.0]
        scene.procs[STRANGER].run, scene.procs[STRANGER].looks = 1.6, [ON_CPU]
    assert told(scene)[1] == cause


def test_no_member_is_a_culprit_and_a_stranger_is() -> None:
    """Both take CPUs that the front wants."""
    scene = behind_a_front({"run": 0.15, "wait": 0.8, "looks": [ON_CPU]}, {"run": 0.7, "looks": [ON_CPU]})
    scene.cpu_busy, scene.procs[STRANGER].run, scene.procs[STRANGER].looks = [1.0, 1.0], 1.1, [ON_CPU]
    assert told(scene) == ("input-bound", "cpu-contention")
    assert {one.pid for one in scene.engine.verdict.culprits} == {STRANGER}


def quiet(scene: Scene, busy_s: float = 4.0) -> Scene:
    """Everybody works for a while, and then nobody asks any more: all sleep where they did."""
    looks = {pid: deepcopy(proc.looks) for pid, proc in scene.procs.items()}
    scene.gpus[0]["util_pct"] = 98.0
    scene.procs[GPU].looks = [SLEEP]
    scene.play_tenths(lambda _: None, busy_s)
    scene.gpus[0] |= {"util_pct": 0.0, "power_w": 80.0}
    for pid, proc in scene.procs.items():
        proc.looks, proc.run, proc.switches = looks[pid], 0.0, 0
        proc.threads = dict.fromkeys(proc.threads, (0.0, 0.0))
    return scene.play_tenths(lambda _: None, 9.0)


@pytest.mark.parametrize("waits", ["main", "thread"])
@pytest.mark.parametrize("front", [EPOLL, READ, POLL_SOCKET], ids=["epoll", "read", "poll"])
def test_an_engine_that_nobody_asks_is_idle_and_neither_pauses_nor_hangs(waits: str, front: dict) -> None:
    scene = quiet(behind_a_front({"looks": [front]}, {"looks": [READ]}, waits=waits))
    assert (scene.engine.verdict.symptom, scene.engine.verdict.cause) == ("idle", "none")
    assert not any(one.severity in ("medium", "high") for one in scene.engine.incidents)


def test_who_asks_may_sleep_as_long_as_it_likes() -> None:
    scene = quiet(behind_a_front({"looks": [EPOLL]}, {"looks": [SLEEP]}))
    assert scene.engine.verdict.cause == "none"


@pytest.mark.parametrize(
    ("front", "behind"), [(DISK, READ), (EPOLL, DISK), (SLEEP, READ)], ids=["disk", "disk behind", "timer"]
)
def test_an_engine_whose_family_stands_at_something_else_is_not_idle(front: dict, behind: dict) -> None:
    scene = quiet(behind_a_front({"looks": [front]}, {"looks": [behind]}, front_sockets="none"))
    assert (scene.engine.verdict.symptom, scene.engine.verdict.cause) != ("idle", "none")


def test_who_does_not_wake_the_trainer_any_more_stays_a_member_while_it_lives() -> None:
    scene = behind_a_front(RESTS, READS_IT).play(3)
    scene.procs[GPU].info = scene.procs[GPU].info | {"other_ends": []}
    scene.play(4)
    assert FRONT in members(scene)
    scene.drop(FRONT).play(4)
    assert FRONT not in members(scene)
    scene.add(Proc(FRONT, comm="new", cmdline=["new"], looks=[SLEEP], start_ticks=99_999)).play(2)
    assert FRONT not in members(scene), "another process has its pid now"


def test_parts_are_what_they_do() -> None:
    scene = behind_a_front(RESTS, READS_IT, front_sockets="none")
    scene.procs[GPU].info |= {"read_by": [BEHIND]}
    scene.procs[GPU].ppid = FRONT
    scene.play(3)
    assert members(scene) == {FRONT: FEEDS, BEHIND: READS}
    assert COORDINATES not in members(scene).values()


def test_no_rank_worker_or_init_is_a_member() -> None:
    scene = behind_a_front(RESTS, READS_IT)
    scene.procs[GPU].info |= {"other_ends": [1, FRONT, GPU]}
    scene.add(Proc(1, ppid=0, comm="init", cmdline=["init"], looks=[SLEEP])).play(3)
    assert members(scene).keys() == {FRONT, BEHIND}


def native(threads: dict[int, tuple[float, float]], busy: list[float], main_calls: bool = True) -> Scene:
    """A program in C; its main thread waits for threads of its own that make its input."""
    scene = Scene(cpus=len(busy), cpu_busy=busy, gpus={0: {"util_pct": 40.0, "power_w": 300.0, "power_limit_w": 700.0, "pids": [GPU]}})
    engine = Proc(GPU, run=0.02, comm="render", cmdline=["/opt/render"], looks=[AWAIT], info={"uses_cuda": True, "exe": "/opt/render"})
    engine.threads, engine.thread_looks = threads, [ON_CPU]
    if not main_calls:
        scene.probed, scene.wakeups = True, {(GPU, 110): 0.6}
        scene.calls, scene.thread_calls = {(GPU, "cuStreamSynchronize"): (30, 0.35, 0)}, {(110, "cuStreamSynchronize"): 0.35}
    return scene.add(engine)


def test_threads_of_a_native_program_load_as_workers_do() -> None:
    assert told(native({110: (0.95, 0.0), 111: (0.95, 0.0)}, [0.98, 0.98])) == ("input-bound", "slow-transform")
    assert told(native({110: (0.97, 0.0)}, [0.98, 0.05, 0.05, 0.05])) == ("input-bound", "too-few-workers")


def test_a_thread_that_gives_the_gpu_its_work_does_not_load_for_the_main_thread() -> None:
    assert told(native({110: (0.6, 0.0)}, [0.7, 0.1, 0.1, 0.1], main_calls=False))[1] not in ("too-few-workers", "slow-transform")


@pytest.mark.parametrize("sockets", ["connected", "none", ""])
def test_a_client_of_a_service_that_polls_waits_for_the_service(sockets: str) -> None:
    """An event loop: its descriptors are known, and who holds the other end of its connection works all the time."""
    scene = behind_a_front(WORKS, READS_IT)
    scene.procs[GPU].looks = [POLL_SOCKET]
    scene.procs[GPU].info |= {"sockets": sockets}
    assert told(scene) == ("input-bound", "slow-transform")
    assert scene.engine.verdict.path[-1].pid == FRONT


def test_a_service_that_waits_for_another_machine_is_the_networks() -> None:
    scene = behind_a_front({"run": 0.02, "looks": [SOCKET]}, READS_IT, front_sockets="connected")
    scene.procs[FRONT].info = {"sockets": "connected", "other_ends": []}
    scene.drop(BEHIND)
    assert told(scene) == ("input-bound", "network-io")


def test_roles_carry_parts_and_the_names_that_processes_have() -> None:
    scene = behind_a_front(RESTS, WORKS).play(4)
    family = scene.engine.family
    assert {pid: (role.kind, role.part) for pid, role in family.items()} == {
        GPU: ("trainer", COMPUTES), FRONT: ("helper", SERVES), BEHIND: ("helper", FEEDS),
    }  # fmt: skip
    assert [family[pid].label for pid in (GPU, FRONT, BEHIND)] == ["engine", "server front", "feeder tokenize"]
    scene.drop(FRONT).play(2)
    assert FRONT not in scene.engine.family


def test_a_part_is_in_the_snapshot() -> None:
    scene = behind_a_front(RESTS, WORKS).play(4)
    taken = snapshot.take(Board(), scene.board, scene.engine.family, scene.engine.states)
    assert {one.pid: one.part for one in taken.procs if one.pid in (GPU, FRONT, BEHIND)} == {GPU: COMPUTES, FRONT: SERVES, BEHIND: FEEDS}


def test_a_server_that_polls_its_clients_does_not_wait_for_a_busy_client() -> None:
    scene = behind_a_front(WORKS, READS_IT, util=8.0)
    scene.procs[GPU].looks = [EPOLL]
    scene.procs[GPU].info |= {"sockets": "listening"}
    assert told(scene, 12) == ("idle", "none")


@pytest.mark.parametrize(
    ("feeder", "cause"), [(WORKS, "too-few-workers"), ({"run": 0.01, "looks": [DISK]}, "disk-io")], ids=["works", "reads the disk"]
)
def test_who_fills_the_shared_memory_that_the_trainer_waits_at_is_the_end(feeder: dict, cause: str) -> None:
    """Known from /proc alone: the trainer sleeps at a semaphore, and its maps show who can open it."""
    scene = Scene(cpus=2, cpu_busy=[0.5, 0.5])
    scene.gpus[0] = {"util_pct": 30.0, "power_w": 300.0, "power_limit_w": 700.0, "pids": [GPU]}
    info = {"uses_cuda": True, "other_ends": [FRONT], "session": GPU}
    scene.add(
        Proc(GPU, run=0.02, comm="engine", cmdline=["engine"], looks=[AWAIT | {"shared_futex": 70}], info=info),
        Proc(FRONT, comm="fill", cmdline=["fill"], info={"session": FRONT}, **feeder),
        Proc(STRANGER, comm="other", cmdline=["other"], looks=[SLEEP]),
    )
    assert told(scene) == ("input-bound", cause)
    assert scene.engine.verdict.path[-1].pid == FRONT
    assert STRANGER not in members(scene)


def test_a_sleep_at_a_lock_of_its_own_threads_is_nobody_elses() -> None:
    scene = Scene(cpus=2, cpu_busy=[0.5, 0.5])
    scene.gpus[0] = {"util_pct": 30.0, "power_w": 300.0, "power_limit_w": 700.0, "pids": [GPU]}
    info = {"uses_cuda": True, "other_ends": [FRONT], "session": GPU}
    scene.add(
        Proc(GPU, run=0.02, comm="engine", cmdline=["engine"], looks=[AWAIT], info=info),
        Proc(FRONT, comm="fill", cmdline=["fill"], info={"session": FRONT}, **WORKS),
    )
    assert told(scene)[1] != "too-few-workers"


HELD = AWAIT | {"locked_by": BEHIND, "lock_tid": BEHIND}


def fed_under_a_mutex(holder: dict, looks: list[dict], **front: dict) -> Scene:
    """The engine sleeps at a semaphore that a child of its posts, which takes a mutex in turn with a second child."""
    scene = Scene(cpus=2, cpu_busy=[0.5, 0.5])
    scene.gpus[0] = {"util_pct": 30.0, "power_w": 300.0, "power_limit_w": 700.0, "pids": [GPU]}
    info = {"uses_cuda": True, "other_ends": [FRONT, BEHIND], "session": GPU}
    return scene.add(
        Proc(GPU, run=0.02, comm="engine", cmdline=["engine"], looks=[AWAIT | {"shared_futex": 70}], info=info),
        Proc(FRONT, GPU, run=0.02, comm="ingest", cmdline=["ingest"], looks=looks, info={"session": GPU}, **front),
        Proc(BEHIND, GPU, comm="janitor", cmdline=["janitor"], info={"session": GPU}, **holder),
    )


@pytest.mark.parametrize("probed", [False, True], ids=["proc", "eBPF"])
@pytest.mark.parametrize("holder", [{"run": 0.0, "looks": [SLEEP]}, WORKS], ids=["sleeps", "works"])
def test_who_holds_the_mutex_that_a_feeder_waits_for_is_the_end(holder: dict, probed: bool) -> None:
    scene = fed_under_a_mutex(holder, [HELD, HELD, HELD, ON_CPU])
    scene.probed = probed
    scene.wakeups = {(GPU, FRONT): 0.7} if probed else {}
    assert told(scene) == ("input-bound", "lock-contention")
    verdict = scene.engine.verdict
    assert [one.pid for one in verdict.path] == [GPU, FRONT, BEHIND]
    assert (verdict.path[-1].state, verdict.culprits[0].pid, {one.pid for one in verdict.victims}) == ("holds", BEHIND, {GPU})


def test_a_mutex_of_a_feeder_without_a_known_holder_is_no_lock() -> None:
    scene = fed_under_a_mutex({"run": 0.0, "looks": [SLEEP]}, [AWAIT])
    assert told(scene)[1] != "lock-contention"


def test_a_mutex_that_is_seldom_held_is_not_the_cause() -> None:
    scene = fed_under_a_mutex({"run": 0.0, "looks": [READ]}, [HELD, *[DISK] * 7])
    assert told(scene)[1] == "disk-io"


UNREAD_SEND = {"state": "S", "syscall": 44, "syscall_arg": 9, "wchan": "sock_alloc_send_pskb"}


def of_a_service(service: dict, waits: str = "main") -> Scene:
    """A trainer that started its data service itself, and asks it over a socket: in its main thread, or in one that this one waits for."""
    scene = Scene(cpus=2, cpu_busy=[0.5, 0.5])
    scene.gpus[0] = {"util_pct": 30.0, "power_w": 300.0, "power_limit_w": 700.0, "pids": [GPU]}
    info = {"uses_cuda": True, "sockets": "connected", "other_ends": [FRONT], "session": GPU}
    trainer = Proc(GPU, run=0.02, comm="engine", cmdline=["engine"], looks=[SOCKET], info=info)
    if waits == "thread":
        trainer.looks, trainer.threads, trainer.thread_looks = [AWAIT], {110: (0.05, 0.0)}, [SOCKET]
    return scene.add(
        trainer,
        Proc(FRONT, GPU, comm="service", cmdline=["service"], info={"session": GPU}, **service),
        Proc(STRANGER, comm="other", cmdline=["other"], looks=[SLEEP]),
    )


@pytest.mark.parametrize("waits", ["main", "thread"])
@pytest.mark.parametrize(
    ("service", "cause"),
    [({"run": 0.1, "wait": 0.88, "looks": [ON_CPU]}, "cpu-contention"), ({"run": 0.02, "looks": [DISK]}, "disk-io")],
    ids=["no CPU", "disk"],
)
def test_a_service_that_the_trainer_started_is_the_end_of_its_waits_at_a_socket(service: dict, cause: str, waits: str) -> None:
    scene = of_a_service(service, waits)
    if cause == "cpu-contention":
        scene.cpu_busy = [1.0, 1.0]
        scene.procs[STRANGER].run, scene.procs[STRANGER].looks = 1.6, [ON_CPU]
    assert told(scene) == ("input-bound", cause)
    assert FRONT in {one.pid for one in scene.engine.verdict.path}


def test_a_thread_that_waits_until_its_output_is_read_blocks_its_trainer() -> None:
    """The main thread waits for a thread that logs; the reader of the log works on one CPU."""
    scene = Scene(cpus=2, cpu_busy=[0.5, 0.5])
    scene.gpus[0] = {"util_pct": 30.0, "power_w": 300.0, "power_limit_w": 700.0, "pids": [GPU]}
    info = {"uses_cuda": True, "read_by": [BEHIND], "session": GPU}
    scene.add(
        Proc(GPU, run=0.02, comm="engine", cmdline=["engine"], looks=[AWAIT], info=info, threads={110: (0.05, 0.0)},
             thread_looks=[UNREAD_SEND]),
        Proc(BEHIND, comm="shipper", cmdline=["shipper"], info={"session": BEHIND}, **WORKS),
    )  # fmt: skip
    assert told(scene)[1] == "output-blocked"
    assert [one.pid for one in scene.engine.verdict.culprits] == [BEHIND]


def pool(*looks: dict, run: float = 0.02) -> dict:
    """A process whose main thread waits for clients, and whose threads do the rest."""
    return {"run": 0.0, "looks": [EPOLL], "threads": dict.fromkeys(range(310, 310 + len(looks)), (run, 0.0)), "thread_looks": [*looks]}


@pytest.mark.parametrize("waits", ["main", "thread"])
@pytest.mark.parametrize("looks", [(DISK, DISK), (SOCKET, DISK, AWAIT)], ids=["all", "one of three"])
def test_threads_of_a_server_that_wait_for_a_disk_are_the_end(looks: tuple[dict, ...], waits: str) -> None:
    scene = behind_a_front(pool(*looks), READS_IT, waits=waits)
    assert told(scene) == ("input-bound", "disk-io")
    verdict = scene.engine.verdict
    assert (verdict.path[-1].pid, verdict.path[-1].state) == (FRONT, "disk")
    assert "front (300) waited" in verdict.detail
    assert any(f"/proc/{FRONT}/" in (fix.command or "") for fix in verdict.fixes)


def test_threads_of_a_server_that_wait_for_clients_are_no_end() -> None:
    scene = quiet(behind_a_front(pool(SOCKET, AWAIT), {"looks": [READ]}))
    assert (scene.engine.verdict.symptom, scene.engine.verdict.cause) == ("idle", "none")


def test_threads_of_a_server_that_tidies_up_while_nobody_asks_are_no_end() -> None:
    scene = behind_a_front(pool(SOCKET, DISK), {"looks": [READ]})
    threads = scene.procs[FRONT].threads
    scene = quiet(scene, 3.0)
    scene.procs[FRONT].threads = threads
    scene.play_tenths(lambda _: None, 6.0)
    assert (scene.engine.verdict.symptom, scene.engine.verdict.cause) == ("idle", "none")


def test_a_member_that_reads_the_disk_is_no_culprit_of_its_family() -> None:
    scene = behind_a_front(RESTS, pool(DISK) | {"read_bytes": 90_000_000})
    assert told(scene)[1] == "disk-io"
    assert not scene.engine.verdict.culprits


@pytest.mark.parametrize(
    ("arriving", "behind", "cause"),
    [(0.95, {"looks": [EPOLL]}, "network-io"), (0.95, WORKS, "slow-transform"), (0.0, {"looks": [EPOLL]}, "unexplained")],
    ids=["piece by piece", "from a process that works", "nothing comes"],
)
def test_what_a_feeder_is_sent_piece_by_piece_is_late_by_the_network(arriving: float, behind: dict, cause: str) -> None:
    """The trainer waits for it in memory that both map. Whoever sends it rests, or works for it."""
    scene = behind_a_front({"run": 0.02, "looks": [SOCKET], "arriving": arriving}, behind, front_sockets="connected")
    scene.procs[GPU].looks = [AWAIT | {"shared_futex": 70}]
    assert told(scene)[1] == cause


FUSE_FILE = {"state": "S", "syscall": 17, "wchan": "request_wait_answer"}
FUSE_REQUESTS = {"state": "S", "syscall": 0, "syscall_arg": 3, "wchan": "fuse_dev_do_read.constprop.0"}


@pytest.mark.parametrize("probed", [False, True], ids=["proc", "eBPF"])
@pytest.mark.parametrize(
    ("daemon", "cause"),
    [(WORKS, "slow-transform"), ({"run": 0.02, "looks": [DISK]}, "disk-io"), ({"run": 0.02, "looks": [SOCKET]}, "network-io")],
    ids=["works", "disk", "another machine"],
)
@pytest.mark.parametrize("waits", ["main", "thread"])
def test_what_keeps_the_daemon_of_a_file_system_is_the_cause(daemon: dict, cause: str, waits: str, probed: bool) -> None:
    """A second daemon, of other files, waits for requests."""
    scene = Scene(cpus=2, cpu_busy=[1.0, 1.0], probed=probed)
    if probed:
        reader = GPU if waits == "main" else 110
        scene.wakeups, scene.waits_at = {(reader, FRONT): 0.7}, {(reader, FRONT): "filesystem"}
        scene.wakeups |= {} if waits == "main" else {(GPU, 110): 0.7}
    scene.gpus[0] = {"util_pct": 30.0, "power_w": 300.0, "power_limit_w": 700.0, "pids": [GPU]}
    info = {"uses_cuda": True, "sockets": "none", "other_ends": [FRONT, BEHIND], "session": GPU}
    engine = Proc(GPU, run=0.02, comm="engine", cmdline=["engine"], looks=[FUSE_FILE], info=info)
    if waits == "thread":
        engine.looks, engine.threads, engine.thread_looks = [AWAIT], {110: (0.02, 0.0)}, [FUSE_FILE]
    scene.add(
        engine,
        Proc(FRONT, comm="zipfs", cmdline=["zipfs"], info={"session": FRONT}, **daemon),
        Proc(BEHIND, comm="lxcfs", cmdline=["lxcfs"], looks=[FUSE_REQUESTS], info={"session": BEHIND}),
    )
    assert told(scene) == ("input-bound", cause)
    verdict = scene.engine.verdict
    assert (verdict.path[0].pid, verdict.path[-1].pid) == (GPU, FRONT)
    assert "for files that zipfs" not in verdict.detail


def test_who_holds_the_lock_that_the_trainer_waits_for_feeds_nobody() -> None:
    scene = lock_of_the_trainers_file_and_its_waker().play(6)
    facts, verdict = scene.engine.facts, scene.engine.verdict
    assert (verdict.symptom, verdict.cause, [one.pid for one in verdict.culprits]) == ("wait-heavy", "lock-contention", [900])
    assert [(one.pid, one.state) for one in verdict.path] == [(GPU, "waits"), (900, "holds")]
    assert facts is not None
    assert not facts.jobs[0].feeders.pids


def test_a_semaphore_of_memory_that_processes_share_is_read_as_a_pipe_is() -> None:
    scene = throttled_filler().play(6)
    assert scene.engine.facts is not None
    job = scene.engine.facts.jobs[0]
    assert job.feeders.pids == {900}
    assert job.feeders.share == pytest.approx(job.trainer.awaits_memory)
    assert job.limits.fed_throttled_periods > 0.9


@pytest.mark.parametrize(
    ("server", "cause"),
    [
        ({}, "memory-pressure"),
        ({"system": 0.02}, "memory-pressure"),  # a disk that is slow: the search for pages takes little
        ({"majflt": 50, "switches": 50}, "memory-pressure"),  # they are few, but the kernel searches all the time
        ({"system": 0.02, "majflt": 50}, "slow-transform"),
        ({"system": 0.02, "threads": {901: (0.0, 0.0)}}, "slow-transform"),  # whose sleeps they are is not known
    ],
    ids=["both", "sleeps", "searches", "neither", "of its threads"],
)
def test_a_feeder_in_a_full_group_is_short_of_memory_as_far_as_its_counters_say(server: dict, cause: str) -> None:
    scene = faulting_server()
    scene.procs[900] = replace(scene.procs[900], **server)
    assert told(scene)[1] == cause


def test_the_kernel_time_of_a_feeder_is_its_own_where_memory_is_not_short() -> None:
    scene = faulting_server()
    scene.cgroups["/tiles"]["mem_bytes"] = 9 << 20
    assert told(scene)[1] != "memory-pressure"


def test_who_stalls_on_memory_is_named_with_its_share() -> None:
    verdict = faulting_server().play(8).engine.verdict
    assert "tile_server (900) stalled on memory 9" in verdict.detail
    assert (verdict.path[-1].pid, verdict.path[-1].state) == (900, "memory")
