"""States of workers and trainers in a window, and how sure they are."""

from __future__ import annotations

import pytest

from gputop.diagnosis.facts import waits
from gputop.model.board import Board
from gputop.model.frame import Frame, Header, ProcSample, ThreadInfo
from tests.unit.diagnosis.causes import alone, starved
from tests.unit.diagnosis.scene import AWAIT, DISK, EPOLL, FUTEX, HIDDEN, ON_CPU, QUEUE, READ, SLEEP, SOCKET, START_S, Proc, Scene, training


def sample(**fields: object) -> ProcSample:
    facts: dict = {"pid": 1, "start_ticks": 1, "t_ns": 1, "state": "S", "utime_ns": 0, "stime_ns": 0, "rss_bytes": 0, "num_threads": 1}
    return ProcSample(**(facts | fields))


@pytest.mark.parametrize(
    ("look", "kind"),
    [
        (QUEUE, waits.QUEUE), ({"syscall": 7, "syscall_arg": 4000}, waits.POLL), ({"syscall": 7, "syscall_arg": -1}, waits.POLL),
        (FUTEX, waits.LOCK), ({"syscall": 73, "syscall_arg": 4}, waits.LOCK), (SLEEP, waits.TIMER), (SOCKET, waits.NETWORK),
        ({"syscall": 45, "wchan": "unix_stream_read_generic"}, waits.PIPE), ({"syscall": 0, "wchan": "anon_pipe_read"}, waits.PIPE),
        ({"syscall": 257, "wchan": "wait_for_partner"}, waits.PIPE), ({"syscall": 257}, waits.DISK),
        ({"syscall": 0, "wchan": "wait_woken"}, waits.NETWORK), ({"syscall": 0, "wchan": "folio_wait_bit_common"}, waits.DISK),
        ({"syscall": 17}, waits.DISK), (DISK, waits.DISK), ({"state": "D"}, waits.DISK),
        ({"state": "D", "wchan": "rpc_wait_bit_killable"}, waits.NETWORK),
        ({"state": "D", "syscall": 58}, waits.CHILD), ({"state": "D", "wchan": "kernel_clone"}, waits.CHILD),
        ({"state": "R"}, waits.ONCPU), ({"syscall": -1}, waits.ONCPU), ({"state": "T"}, waits.STOPPED), ({"state": "Z"}, waits.STOPPED),
        ({}, waits.UNKNOWN), ({"wchan": "0"}, waits.UNKNOWN), ({"wchan": "futex_do_wait"}, waits.LOCK), ({"syscall": 61}, waits.CHILD),
        ({"wchan": "poll_schedule_timeout.constprop.0"}, waits.POLL), ({"syscall": 16}, waits.DRIVER), ({"syscall": 9999}, waits.UNKNOWN),
    ],
)  # fmt: skip
def test_what_a_sample_waits_for(look: dict, kind: str):
    met = sample(**look)
    assert waits.kinds("x86_64")(met.state, met.syscall, met.syscall_arg, met.wchan) == kind


@pytest.mark.parametrize(
    ("kind", "x86_64", "aarch64"),
    [
        (waits.LOCK, (202, 449, 73, 72, 65, 220), (98, 449, 32, 25, 193, 192)),
        (waits.NETWORK, (45, 47, 44, 46, 42, 299), (207, 212, 206, 211, 203, 243)),
        (waits.PIPE, (0, 1, 19, 20), (63, 64, 65, 66)),
        (waits.TIMER, (35, 230, 34), (101, 115)),
        (waits.DISK, (17, 18, 295, 296, 327, 328, 74, 75, 162, 2, 257, 4, 5, 6, 262, 332, 217, 26, 40, 326, 187, 82, 264, 316, 83, 258, 87,
                      263, 10, 11, 12, 9, 208, 333, 426),
         (67, 68, 69, 70, 286, 287, 82, 83, 81, 56, 79, 80, 291, 61, 227, 71, 285, 213, 34, 35, 38, 276, 222, 226, 215, 214, 4, 292, 426)),
        (waits.POLL, (7, 271, 23, 270, 232, 281, 441, 43, 288), (73, 72, 22, 441, 202, 242)),
        (waits.CHILD, (61, 247, 56, 58, 435), (260, 95, 220, 435)),
        (waits.DRIVER, (16,), (29,)),
    ],
)  # fmt: skip
def test_what_a_system_call_waits_for(kind: str, x86_64: tuple[int, ...], aarch64: tuple[int, ...]):
    """By its number (asm/unistd_64.h, asm-generic/unistd.h); no other number below 600 says the same."""
    for machine, numbers in (("x86_64", x86_64), ("aarch64", aarch64), ("riscv64", ())):
        kind_of = waits.kinds(machine)
        assert {number for number in range(600) if kind_of("S", number, 3, None) == kind} == set(numbers), machine


@pytest.mark.parametrize(("machine", "futex", "accept"), [("x86_64", 202, 43), ("aarch64", 98, 202)])
def test_who_waits_at_a_futex_is_told_from_who_accepts(machine: str, futex: int, accept: int):
    """202 is a futex on one machine, and accept on the other; the second argument of both is told."""
    scene = Scene(board=Board(Header(t_ns=START_S * 10**9, unix_ns=1, cpus=4, machine=machine)))
    scene.gpus, scene.procs = (like := training(util=20.0)).gpus, like.procs
    scene.procs[100].looks = [{"state": "S", "syscall": futex, "syscall_arg": -1}]
    scene.procs[101].looks = [{"state": "S", "syscall": accept, "syscall_arg": 0}]
    job = scene.play(3).engine.facts.jobs[0]
    assert (job.trainer.waits_its_turn, job.workers[0].waits_its_turn) == (False, None)


@pytest.mark.parametrize(("machine", "write"), [("x86_64", 1), ("aarch64", 64)])
def test_who_writes_what_nobody_reads_is_told_by_the_number_of_its_machine(machine: str, write: int):
    for call in (1, 64):
        assert waits.is_mute(machine, call, 2, "pipe_write") is (call == write)
        assert waits.is_unheard(machine, call, 1, "pipe_write") is (call == write)


def test_system_calls_are_those_of_the_machine_that_was_watched():
    """A recording of a Grace Hopper is looked at on a laptop."""
    scene = Scene(board=Board(Header(t_ns=START_S * 10**9, unix_ns=1, cpus=4, machine="aarch64")))
    like = training(util=20.0)
    scene.gpus, scene.procs = like.gpus, like.procs
    scene.procs[100].looks, scene.procs[101].looks = [{"state": "S", "syscall": 73, "syscall_arg": 5000}], [{"state": "S", "syscall": 98}]
    states = scene.play(3).engine.states
    assert (states[100].state, states[101].waits) == ("waiting-data", {"lock": pytest.approx(1.0)})


@pytest.mark.parametrize(
    ("worker", "state", "starves"),
    [
        ({"run": 0.95, "looks": [ON_CPU]}, "running", False),
        ({"run": 0.3, "wait": 0.7, "looks": [ON_CPU]}, "runnable", True),
        ({"run": 0.2, "looks": [DISK]}, "disk", True),
        ({"run": 0.1, "looks": [SOCKET]}, "blocked", True),
        ({"run": 0.2, "looks": [FUTEX]}, "blocked", True),
        ({"looks": [QUEUE]}, "ahead", False),
        ({"run": 0.3, "looks": [QUEUE]}, "ahead", False),
        ({"looks": [{"state": "T"}]}, "stopped", True),
    ],
)
@pytest.mark.parametrize("waits_for_data", [True, False])
def test_worker(worker: dict, state: str, starves: bool, waits_for_data: bool):
    scene = training(util=20.0 if waits_for_data else 99.0, **worker)
    if waits_for_data:
        scene.procs[100].looks = [QUEUE]
    states = scene.play(4).engine.states
    assert states[101].state == state
    assert states[101].starving is (starves and waits_for_data)
    assert sum(states[101].fractions.values()) == pytest.approx(1)


def test_fractions_are_measured():
    fractions = training(run=0.25, wait=0.5, looks=[QUEUE]).play(4).engine.states[101].fractions
    assert (fractions["running"], fractions["runnable"], fractions["ahead"]) == (
        pytest.approx(0.25, abs=0.02), pytest.approx(0.5, abs=0.02), pytest.approx(0.25, abs=0.02),
    )  # fmt: skip


def test_never_having_got_a_cpu_is_runnable_though_no_delay_is_booked_yet():
    scene = training(util=10.0, run=0.0, wait=0.0, looks=[ON_CPU])
    scene.procs[100].looks = [QUEUE]
    assert scene.play(4).engine.states[101].state == "runnable"


def test_throttled_is_not_runnable():
    scene = training(util=20.0, run=0.2, wait=0.8, looks=[ON_CPU])
    scene.cgroups = {"/job": {"quota_cpus": 0.5, "throttled": 0.9}}
    state = scene.play(4).engine.states[101]
    assert (state.state, state.fractions.get("runnable", 0.0)) == ("throttled", pytest.approx(0, abs=0.05))


def test_the_probe_measures_the_disk_where_samples_miss_it():
    scene = training(util=20.0, run=0.3, looks=[ON_CPU, QUEUE], uninterruptible=0.6)
    scene.probed = True
    assert scene.play(4).engine.states[101].fractions["disk"] == pytest.approx(0.6, abs=0.03)


def test_short_sleeps_that_no_sample_met_are_the_disks_where_bytes_were_read():
    scene = training(util=20.0, run=0.4, looks=[ON_CPU], read_bytes=50_000_000)
    assert scene.play(4).engine.states[101].fractions["disk"] == pytest.approx(0.6, abs=0.03)


@pytest.mark.parametrize(("run", "looks"), [(0.1, [FUTEX]), (0.1, [SLEEP])])
def test_trainer_waiting_for_its_gpu(run: float, looks: list[dict]):
    scene = training(util=95.0)
    scene.procs[100].run, scene.procs[100].looks = run, looks
    assert scene.play(4).engine.states[100].state == "waiting-gpu"


def test_trainer_whose_probe_sees_it_spin_is_waiting_and_not_computing():
    scene = training(util=95.0)
    scene.procs[100].run, scene.procs[100].looks = 1.0, [ON_CPU]
    scene.probed, scene.calls = True, {(100, "cuStreamSynchronize"): (20, 0.9, 0)}
    state = scene.play(4).engine.states[100]
    assert (state.state, state.fractions["waiting-gpu"]) == ("waiting-gpu", pytest.approx(0.9, abs=0.02))


def test_who_never_slept_may_spin_whatever_a_hypervisor_took():
    scene = training(util=55.0, run=0.1).drop(101, 102)
    scene.procs[100].run, scene.procs[100].wait, scene.procs[100].switches, scene.procs[100].looks = 0.78, 0.04, 0, [ON_CPU]
    assert "or spin in waits for the GPU" in scene.play(5).engine.verdict.detail
    scene.procs[100].switches = 100
    assert "or spin in waits for the GPU" not in scene.play(5).engine.verdict.detail


def test_who_is_kept_from_its_cpu_in_a_call_does_not_wait_for_the_gpu_meanwhile():
    """A throttled pool of the trainer's threads: the call that waits for the GPU returns late, and then it waits for these."""
    scene = training(util=52.0, run=0.0).drop(101, 102)
    trainer = scene.procs[100]
    trainer.run, trainer.wait, trainer.looks, trainer.threads = 0.0, 0.26, [EPOLL, EPOLL, EPOLL, AWAIT], {110: (0.3, 0.6), 111: (0.3, 0.6)}
    trainer.info, scene.cgroups = {"cgroup": "/job"}, {"/job": {"quota_cpus": 0.6, "throttled": 1.0}}
    scene.probed, scene.calls, scene.wakeups = True, {(100, "cuStreamSynchronize"): (9, 0.76, 0)}, {(100, 100): 0.19}
    state = scene.play(5).engine.states[100].fractions
    assert state["waiting-gpu"] == pytest.approx(0.55, abs=0.03)
    assert state["blocked"] == pytest.approx(0.19, abs=0.03)


def test_an_environment_is_not_late_while_nobody_asks_it():
    """Both of two compute for each step, and rest while the GPU works."""
    scene = training(util=28.0, run=0.05, workers=0)
    scene.procs[100].looks, scene.probed, scene.calls = [READ], True, {(100, "cuStreamSynchronize"): (12, 0.28, 0)}
    scene.add(*(Proc(101 + i, 100, start_ticks=50_100 + i, run=0.65, wait=0.05, looks=[READ]) for i in range(2)))
    engine = scene.play(5).engine
    assert engine.states[101].fractions["ahead"] == pytest.approx(0.3, abs=0.05)
    assert engine.explain().ledger.by_cause.get("unexplained", 0.0) < 0.1 * engine.ledger.gpu_lost_s


def test_trainer_woken_by_a_worker_waited_for_data():
    """A pin thread or another loader hides the poll behind a lock; the wake-up tells."""
    scene = training(util=40.0, run=0.9, looks=[ON_CPU])
    scene.procs[100].looks = [FUTEX]
    scene.probed, scene.wakeups = True, {(100, 101): 0.3, (100, 102): 0.3}
    state = scene.play(4).engine.states[100]
    assert state.fractions["waiting-data"] == pytest.approx(0.6, abs=0.03)


def test_unreadable_waits_are_less_sure():
    scene = training(util=20.0, run=0.9, looks=[ON_CPU])
    scene.procs[100].looks = [HIDDEN]
    unreadable, worker, _ = scene.play(4).engine.states.values()
    scene = training(util=20.0, run=0.9, looks=[ON_CPU])
    scene.procs[100].looks = [QUEUE]
    readable = scene.play(4).engine.states[100]
    assert unreadable.state == readable.state == "waiting-data"
    assert unreadable.confidence < readable.confidence == 1.0
    assert (unreadable.inferred, readable.inferred) == (True, False)
    assert (worker.state, worker.starving, worker.inferred) == ("running", False, False)


def test_who_starves_by_an_unreadable_wait_is_inferred_to():
    scene = training(util=20.0, run=0.5, wait=0.4, looks=[ON_CPU])
    scene.procs[100].looks = [HIDDEN]
    assert [(one.starving, one.inferred) for one in scene.play(4).engine.states.values()] == [(False, True), (True, True), (True, True)]


def test_what_the_probes_measured_is_not_inferred():
    scene = training(util=20.0, run=0.9, looks=[ON_CPU])
    scene.procs[100].looks = [HIDDEN]
    scene.probed, scene.wakeups = True, {(100, 101): 0.4, (100, 102): 0.4}
    state = scene.play(4).engine.states[100]
    assert (state.state, state.inferred) == ("waiting-data", False)


def test_samples_between_feeds_sharpen_the_kinds():
    """Fed twice a second, with nine frames looked at between: what the feeds alone happen to meet does not decide."""
    scene = training(util=99.0, run=0.0)
    for _ in range(10):
        scene.procs[101].looks = [FUTEX]
        for _ in range(9):
            scene.engine.look(Frame(0, 0, procs=[sample(pid=101, syscall=7, syscall_arg=5000)]))
        scene.play(0.5, 0.5)
    fractions = scene.engine.states[101].fractions
    assert fractions["ahead"] > 0.85


def test_a_restarted_process_under_the_same_pid_starts_anew():
    scene = training(run=0.9, looks=[ON_CPU]).play(3)
    scene.procs[101].start_ticks, scene.procs[101].run, scene.procs[101].looks = 77_777, 0.0, [QUEUE]
    scene._totals = {key: value for key, value in scene._totals.items() if key[0] != 101}
    states = scene.play(0.6).engine.states
    assert states[101].state == "ahead"


def test_a_small_copy_that_takes_long_waits_for_the_gpu():
    """Copies begin when the kernels before them are through: of 98 KB in 40 ms a millisecond is the copy's."""
    scene = alone(98.0, 0.05, [SLEEP])
    scene.probed, scene.calls = True, {(100, "cuMemcpyHtoD_v2"): (20, 0.8, 20 * 98_304), (100, "cuStreamSynchronize"): (2, 0.05, 0)}
    state = scene.play(6).engine.states[100]
    assert state.fractions.get("transfer", 0.0) < 0.05
    assert state.fractions["waiting-gpu"] > 0.6


def test_of_a_single_look_nobody_is_said_to_starve_or_not_to():
    scene = starved(run=0.1, wait=0.8).play(0.4)
    assert {state.starving for pid, state in scene.engine.states.items() if pid != 100} == {None}
    assert {state.starving for pid, state in scene.play(3).engine.states.items() if pid != 100} == {True}


def test_who_is_ahead_does_not_starve():
    """Nor where it is ahead for little more of its time than it is blocked."""
    for blocked in range(0, 100, 5):
        looks = [FUTEX] * blocked + [QUEUE] * (100 - blocked)
        scene = starved(run=0.02, looks=looks).play(4)
        assert not [state for state in scene.engine.states.values() if state.state == "ahead" and state.starving]


def backward(util: float, run: float) -> Scene:
    """PyTorch with a pin thread, which is ahead with the workers: the main thread sleeps while the backward pass launches."""
    scene = alone(util, run, [AWAIT], threads={150: (0.01, 0.0), 151: (0.38, 0.0)}, sm_active_pct=min(util, 90.0))
    scene.procs[100].info = {"uses_cuda": True, "threads": [ThreadInfo(150, "pt_data_pin"), ThreadInfo(151, "pt_autograd_0")]}
    scene.probed, scene.calls = True, {(100, "cuMemcpyHtoDAsync"): (8, 0.01, 1 << 20)}
    scene.wakeups = {(100, 151): 0.36, (100, 150): 0.01, (150, 101): 0.5, (150, 102): 0.5}
    return scene


def test_who_waits_for_its_own_backward_pass_waits_for_no_data():
    state = backward(99.0, 0.62).play(4).engine.states[100]
    assert state.fractions["waiting-data"] < 0.03
    assert state.fractions["blocked"] > 0.3
    late = backward(30.0, 0.1)
    late.wakeups |= {(100, 150): 0.5, (100, 151): 0.2}
    assert late.play(4).engine.states[100].fractions["waiting-data"] > 0.45


def test_nor_does_it_share_the_gil_with_that():
    scene = backward(13.0, 0.62)
    scene.procs[100].looks, scene.launches = [FUTEX], {100: 30_000.0}
    assert scene.play(6).engine.verdict.cause == "small-kernels"
    assert "gil-contention" not in scene.engine.ledger.by_cause


@pytest.mark.parametrize(("util", "ran", "word"), [(97.0, 0.04, "waiting-gpu"), (97.0, 0.95, "blocked"), (20.0, 0.04, "blocked")])
def test_who_is_called_back_by_a_thread_that_sleeps_waits_for_its_gpu(util: float, ran: float, word: str):
    """JAX: the main thread makes no call of CUDA that waits."""
    scene = alone(util, 0.04, [AWAIT], threads={151: (ran, 0.0)}, sm_active_pct=min(util, 90.0)).drop(101, 102)
    scene.probed, scene.wakeups = True, {(100, 151): 0.95}
    scene.calls = {(100, "cuMemcpyDtoHAsync"): (34, 0.001, 100)}
    assert scene.play(4).engine.states[100].state == word
