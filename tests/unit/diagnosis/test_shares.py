"""Shares of the wait-for graph that used to get lost, or to go to the wrong leaf: facts and scenes of kinds that the corpus has not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.facts import LoaderFacts
from gputop.diagnosis.facts.wakes import ThreadTime, Wake, WakeTrack, kind_of
from gputop.diagnosis.graph.edges import edges_of
from gputop.model.board import Board
from gputop.model.frame import SchedThread, Wakeup
from gputop.model.syscalls import syscall_numbers
from tests.unit.diagnosis.causes import alone, starved
from tests.unit.diagnosis.graph.test_graph import LOCK_AT, leaves, walked
from tests.unit.diagnosis.scene import FUTEX, ON_CPU, QUEUE, READ, SLEEP, Proc, Scene, training

S = 1_000_000_000  # ns
LOADS = 100, 110, 111, 112, 113  # the trainer's main thread and others of its own


def boards(*tables: tuple[dict[tuple[int, int], int], dict[int, int]]) -> WakeTrack:
    """A track of boards 1 s apart. Each: (wakee, waker) -> ns asleep until then; tid -> ns on a CPU. A waker's pid is its tens."""
    track = WakeTrack()
    for second, (wakes, threads) in enumerate(tables, start=1):
        board = Board(probed_ns=second * S)
        board.wakeups = {pair: Wakeup(*pair, pair[1] // 10 * 10, ns // 1000, ns, 202, "futex") for pair, ns in wakes.items()}
        board.threads = {tid: SchedThread(tid, 100, ns, 0, 0, 0, 0, 0, 0, 0, start_ns=1) for tid, ns in threads.items()}
        track.push(board, 0)
    return track


def test_who_ended_in_the_window_has_woken_others_and_has_run() -> None:
    """The board forgets a thread a second after its end."""
    track = boards(({(100, 110): S}, {110: S}), ({(100, 110): 3 * S // 2}, {110: 3 * S // 2}), ({}, {}))
    assert [(wake.pid, wake.share) for wake in track.by_thread()[100]] == [(110, 0.25)]
    assert track.threads()[110].run == 0.25
    for second in (4, 5):
        track.push(Board(probed_ns=second * S), (second - 1) * S)
    assert track.by_thread() == {}, "it ended before the window"


@pytest.mark.parametrize(("slept_s", "kind"), [(5.0, "queue"), (4.95, "queue"), (5.03, "queue"), (2.0, "pipe"), (5.4, "pipe")])
def test_a_poll_that_torchs_time_limit_ended_is_of_an_empty_queue(slept_s: float, kind: str) -> None:
    """A worker that has nothing to do waits for no other process."""
    track, poll = WakeTrack(), min(syscall_numbers("poll", machine="x86_64"))
    for second, times in enumerate((1, 2), start=1):
        board = Board(probed_ns=second * S)
        board.wakeups = {(100, 0): Wakeup(100, 0, 0, times, round(times * slept_s * S), poll, "pipe", timed=True)}
        track.push(board, 0)
    assert [(wake.pid, wake.kind) for wake in track.by_thread()[100]] == [(0, kind)]


@pytest.mark.parametrize("looks", [{"state": "S", "syscall": 17, "wchan": "request_wait_answer"}, {"state": "D", "syscall": -1}])
def test_of_files_that_a_daemon_serves_that_daemon_is_told(looks: dict) -> None:
    """FUSE: no disk of this host, and no page cache, is what the loaders wait for."""
    scene = starved(util=25.0, run=0.1, looks=[looks])
    scene.probed, scene.wakeups = True, {(101, 700): 0.8, (102, 700): 0.8}
    scene.waits_at = {(101, 700): "filesystem", (102, 700): "filesystem"}
    scene.add(Proc(700, comm="gcsfuse", cmdline=["/usr/bin/gcsfuse", "bucket", "/data"], run=0.3, looks=[READ])).play(8)
    verdict = scene.engine.verdict
    assert (verdict.symptom, verdict.cause) == ("input-bound", "network-io")
    assert "gcsfuse (700)" in verdict.detail
    assert "gcsfuse (700)" in verdict.fixes[0].text
    assert [step.pid for step in verdict.path][-1] == 700
    assert "data set in page cache" not in {one.change for one in scene.engine.what_if(verdict)}


def test_of_files_of_an_unseen_daemon_its_kind_is_told() -> None:
    scene = starved(util=25.0, run=0.1, looks=[{"state": "S", "syscall": 17, "wchan": "request_wait_answer"}]).play(8)
    assert scene.engine.verdict.cause == "network-io"
    assert "FUSE" in scene.engine.verdict.detail


def test_many_that_woke_it_seldom_are_told_as_one() -> None:
    """A thread for each sample: each of them wakes the main thread once, for less than a thousandth of the window."""
    track = boards(({}, {}), ({(100, 200 + i): S // 2000 for i in range(9)}, {}))
    assert [(wake.pid, wake.tid, round(wake.share, 4)) for wake in track.by_thread()[100]] == [(200, 0, 0.0045)]


def test_a_barrier_of_threads_without_a_cpu_is_no_gil() -> None:
    """OpenMP's threads wait for one another at one futex. Here eight workers share two CPUs, so each process runs on less than one."""
    scene = starved(util=20.0, run=0.2, wait=0.5, looks=[ON_CPU]).play(6)
    wakes = {100: [Wake(101, 111, waits.PIPE, 0.9, 10.0)]} | {
        pid: [Wake(pid, pid + 20, waits.LOCK, 0.3, 90.0, LOCK_AT)] for pid in (101, 102)} | {
        pid + 20: [Wake(pid, pid, waits.LOCK, 0.3, 90.0, LOCK_AT)] for pid in (101, 102)}  # fmt: skip
    threads = {tid: ThreadTime(100 + tid % 20, 0.2, 0.5, 0.3) for tid in (101, 102, 121, 122)}
    found = leaves(walked(scene, wakes, threads))
    assert ("gil", "worker") not in found
    threads = {tid: time._replace(run=0.4, runnable=0.05) for tid, time in threads.items()}
    assert leaves(walked(scene, wakes, threads))["gil", "worker"] > 0.2, "they run freely, in turn"


def test_threads_that_hand_on_a_lock_and_read_from_the_disk_meanwhile_have_a_slow_disk() -> None:
    """An LMDB's threads of one reader: whoever has the lock sleeps at the disk. Nobody who sleeps has the GIL."""
    scene = training(util=30.0, run=0.1, workers=0).play(6)
    wakes = {tid: [Wake(100, other, waits.LOCK, 0.2, 20.0, LOCK_AT) for other in LOADS[1:] if other != tid] for tid in LOADS}
    for tid in LOADS[1:]:
        wakes[tid].append(Wake(0, 0, waits.DISK, 0.3, 50.0))
    found = leaves(walked(scene, wakes, {tid: ThreadTime(100, 0.005, 0.0, 0.99) for tid in LOADS}))
    assert found["disk", "main"] > 0.5
    assert found.get(("gil", "main"), 0.0) < 0.1


def test_a_trainer_that_is_ready_behind_its_own_workers_waits_for_their_work() -> None:
    """The loss is its own run queue; more CPUs or a cheaper transform would help, fewer workers would not."""
    scene = alone(70.0, 0.05, [SLEEP, QUEUE])
    scene.cpus, scene.cpu_busy, scene.procs[100].wait = 2, [1.0, 1.0], 0.3
    for pid in (101, 102):
        scene.procs[pid].run, scene.procs[pid].wait, scene.procs[pid].looks = 0.85, 0.1, [ON_CPU]
    assert scene.play(6).engine.verdict.cause == "slow-transform"


def test_a_trainer_behind_workers_that_crowd_one_another_has_too_many() -> None:
    scene = alone(70.0, 0.05, [SLEEP, QUEUE])
    scene.cpus, scene.cpu_busy, scene.procs[100].wait = 1, [1.0], 0.5
    for pid in (101, 102):
        scene.procs[pid].run, scene.procs[pid].wait, scene.procs[pid].looks = 0.45, 0.5, [ON_CPU]
    assert scene.play(6).engine.verdict.cause == "worker-oversubscription"


def pushed(feeders: int, cpus: int, busy: list[float]) -> Scene:
    """Renderers of somebody else push batches into a socket of the trainer, whose thread 110 receives them and wakes the main thread."""
    scene = alone(45.0, 0.02, [FUTEX]).drop(101, 102)
    scene.cpus, scene.cpu_busy, scene.probed = cpus, busy, True
    scene.procs[100].threads, scene.procs[100].thread_looks = {110: (0.01, 0.0)}, [READ]
    scene.wakeups = {(100, 110): 0.55} | {(110, 900 + i): 0.9 / feeders for i in range(feeders)}
    return scene.add(*(Proc(900 + i, comm="blender", cmdline=["/opt/blender", "-b"], run=0.97, looks=[ON_CPU]) for i in range(feeders)))


@pytest.mark.parametrize(("feeders", "busy", "cause"), [
    (1, [1.0, 0.1, 0.1, 0.1], "too-few-workers"), (2, [1.0, 1.0, 0.1, 0.1], "too-few-workers"), (2, [1.0, 1.0], "slow-transform"),
])  # fmt: skip
def test_who_wakes_the_thread_that_receives_feeds_the_trainer(feeders: int, busy: list[float], cause: str) -> None:
    """Their number against the free CPUs tells whether more of them would help."""
    scene = pushed(feeders, len(busy), busy).play(6)
    facts = scene.engine.facts
    assert facts is not None
    assert facts.jobs[0].feeders.pids == {900 + i for i in range(feeders)}
    assert facts.jobs[0].feeders.share == pytest.approx(0.55, abs=0.05)
    assert (scene.engine.verdict.symptom, scene.engine.verdict.cause) == ("input-bound", cause)


def test_a_copy_takes_no_more_of_what_a_thread_ran_than_its_part() -> None:
    """In a call that copies a thread has a CPU as seldom as elsewhere: the rest of the call is a wait for one."""
    scene = alone(40.0, 0.2, [SLEEP])
    scene.procs[100].wait, scene.calls, scene.probed = 0.6, {(100, "cuMemcpyHtoD_v2"): (10, 0.4, 4e9)}, True
    walk = walked(scene.play(6), {})
    assert walk.copied == pytest.approx(0.25, abs=0.04), "asleep for 0.2 of the window, and of the other 0.2 a quarter on a CPU"


@pytest.mark.parametrize("woken", [0.0, 0.3, 0.9])
def test_who_is_stopped_has_no_more_time_than_there_is(woken: float) -> None:
    scene = starved(util=20.0, run=0.1, looks=[{"state": "t", "syscall": 0}, QUEUE]).play(6)
    facts = scene.engine.facts
    assert facts is not None
    wakes = {101: [Wake(77, 77, waits.TIMER, woken, 10.0)], 100: [Wake(101, 101, waits.PIPE, 0.8, 9.0)]}
    edges = edges_of(facts.jobs[0].workers[0], replace(facts, wakes=wakes))
    assert sum(edge.share for edge in edges) == pytest.approx(1.0, abs=0.02)
    assert sum(edge.share for edge in edges if edge.kind == waits.STOPPED) == pytest.approx(0.45, abs=0.1)


@pytest.mark.parametrize(("call", "kind", "uninterruptible", "found"), [
    ("flock", "filesystem", False, waits.LOCK), ("fcntl", "filesystem", False, waits.LOCK), ("vfork", "", True, waits.CHILD),
    ("openat", "filesystem", True, waits.DISK), ("futex", "futex", False, waits.LOCK),
])  # fmt: skip
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_call_tells_what_its_kind_does_not(call: str, kind: str, uninterruptible: bool, found: str, machine: str) -> None:
    for number in syscall_numbers(call, machine=machine):
        wake = Wakeup(100, 110, 110, 1, 10**6, number, kind, uninterruptible=uninterruptible)
        assert kind_of(wake, machine) == found


def test_a_wait_for_workers_that_are_gone_is_for_those_that_were_made_instead() -> None:
    """A validation in each epoch: its workers deliver, end, and the next window meets the training's workers alone, which are ahead."""
    scene = alone(45.0, 0.05, [QUEUE])
    scene.procs[101].run = scene.procs[102].run = 0.0
    facts = scene.play(6).engine.facts
    assert facts is not None
    scene.engine.facts = replace(facts, jobs=[replace(facts.jobs[0], loader=LoaderFacts(births=[facts.t_ns - 3 * S]))])
    rest = [Wake(100, 100, waits.PIPE, 0.99, 5.0)]
    walk = walked(scene, {100: [Wake(801, 801, waits.PIPE, 0.5, 1.0)], 101: rest, 102: rest}, idle=0.5)
    found = leaves(walk)
    assert found["birth", "worker"] > 0.8
    assert ("ahead", "worker") not in found
