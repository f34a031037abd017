"""What a trainer beside ready workers waits for: a thread of its own, or somebody who reads what it writes."""

from __future__ import annotations

import pytest

from gputop.findings.verdict import Verdict
from gputop.model.frame import ThreadInfo
from tests.unit.diagnosis.causes import alone
from tests.unit.diagnosis.scene import AWAIT, DISK, HIDDEN, ON_CPU, READ, SLEEP, TURN, Proc, Scene

PIN = 131
WRITE = {"state": "S", "syscall": 1, "syscall_arg": 4, "wchan": "anon_pipe_write"}
SEND = {"state": "S", "syscall": 44, "syscall_arg": 3, "wchan": "sock_alloc_send_pskb"}
LOCKED = {"state": "S", "wchan": "futex_wait_queue"}
"""Where yama lets nobody read system calls."""


def pinning(look: dict, switches: int, name: str = "pt_data_pin", run: float = 0.85) -> Scene:
    """Workers are ahead; the trainer sleeps nearly all the time, and one thread of its own runs."""
    scene = alone(4.0, 0.04, [look], {PIN: (run, 0.02)})
    scene.procs[100].switches = switches
    scene.procs[100].info["threads"] = [ThreadInfo(100, "python"), ThreadInfo(PIN, name)]
    return scene


@pytest.mark.parametrize("look", [AWAIT, TURN, LOCKED], ids=["for ever", "with a time limit", "unreadable"])
def test_a_pin_thread_that_works_all_the_time_is_what_it_waits_for(look: dict):
    verdict = pinning(look, 20).play(6).engine.verdict
    assert (verdict.symptom, verdict.cause, verdict.severity) == ("input-bound", "main-thread-preprocessing", "high")
    assert "for its own threads (pt_data_pin), which run on 0.8 CPUs" in verdict.detail
    assert any("pin_memory=False" in fix.command for fix in verdict.fixes)
    assert _share(verdict) == pytest.approx(95.0, abs=3.0)


def test_another_thread_is_named_without_that_advice():
    verdict = pinning(AWAIT, 20, "tokenizer").play(6).engine.verdict
    assert verdict.cause == "main-thread-preprocessing"
    assert "(tokenizer)" in verdict.detail
    assert not any("pin_memory" in fix.command for fix in verdict.fixes)


def test_who_asks_anew_every_five_milliseconds_waits_for_the_gil():
    assert pinning(TURN, 200).play(6).engine.verdict.cause == "gil-contention"


@pytest.mark.parametrize(("share", "cause"), [(0.45, "main-thread-preprocessing"), (0.12, "gil-contention")])
def test_short_waits_that_its_own_threads_end_are_for_these(share: float, cause: str):
    """By the probe: the clock ends most of what is slept for the GIL."""
    scene = pinning(TURN, 480, "worker", run=0.48)
    scene.gpus[0]["util_pct"], scene.procs[100].looks = 45.0, [TURN, SLEEP]
    scene.probed, scene.calls = True, {(100, "cuStreamSynchronize"): (50.0, 0.45, 0)}
    scene.wakeups = {(100, PIN): share}
    assert scene.play(6).engine.verdict.cause == cause


def test_a_pin_thread_that_does_little_is_not_blamed():
    verdict = pinning(AWAIT, 20, run=0.1).play(6).engine.verdict
    assert "pt_data_pin" not in verdict.detail


def logging(look: dict = WRITE, probed: bool = False, twin: bool = False) -> Scene:
    """A trainer without loaders that sleeps 43 % of the time until its logger reads."""
    scene = alone(57.0, 0.02, [look, SLEEP, look, SLEEP, SLEEP, look, SLEEP])
    scene.drop(101, 102)
    logger = Proc(900, ppid=100, run=0.9, looks=[ON_CPU], start_ticks=50_200)
    if not twin:
        logger.cmdline = ["python", "logger.py"]
    scene.add(logger)
    if probed:
        scene.probed, scene.wakeups = True, {(100, 900): 0.42}
        scene.calls = {(100, "cuStreamSynchronize"): (25.0, 0.56, 0)}
    else:
        scene.procs[100].info["read_by"] = [900]
    return scene


@pytest.mark.parametrize("probed", [False, True], ids=["by /proc", "probed"])
@pytest.mark.parametrize("look", [WRITE, SEND], ids=["pipe", "socket"])
@pytest.mark.parametrize("twin", [False, True], ids=["a program", "a fork"])
def test_who_reads_what_it_writes_is_named_and_how_long_it_waits(look: dict, probed: bool, twin: bool):
    verdict = logging(look, probed, twin).play(6).engine.verdict
    assert (verdict.symptom, verdict.cause) == ("wait-heavy", "output-blocked")
    assert [(one.pid, one.name) for one in verdict.culprits] == [(900, "train.py" if twin else "logger.py")]
    assert [(step.pid, step.state) for step in verdict.path] == [(100, "waits"), (900, "runs")]
    assert "waits until its output is read" in verdict.headline
    name = "train.py" if twin else "logger.py"
    assert f"until {name} (900), which it started, reads what it writes: that one runs on 0.9 CPUs" in verdict.detail
    assert _share(verdict) == pytest.approx(43.0, abs=4.0)
    assert [("900" in fix.command, fix.look) for fix in verdict.fixes] == [(False, False), (False, False), (True, True)]


@pytest.mark.parametrize("met", [1, 5], ids=["seldom", "often"])
def test_how_long_it_waits_is_what_the_gpu_lost_however_often_samples_met_that(met: int):
    scene = logging()
    scene.procs[100].looks = [WRITE] * met + [SLEEP] * (7 - met)
    assert _share(scene.play(6).engine.verdict) == pytest.approx(43.0, abs=4.0)


def test_a_reader_that_is_not_known_is_looked_for():
    scene = logging()
    scene.procs[100].info["read_by"] = []
    verdict = scene.drop(900).play(6).engine.verdict
    assert "until its output is read: no reader is fast enough" in verdict.detail
    assert any("lsof" in fix.command for fix in verdict.fixes)


def test_who_reads_fast_is_nobodys_trouble():
    scene = logging(SLEEP)
    scene.gpus[0]["util_pct"] = 97.0
    assert scene.play(6).engine.verdict.cause == "none"


def test_nothing_is_said_of_readers_where_waits_cannot_be_read():
    assert "reads what it writes" not in logging(HIDDEN).play(6).engine.verdict.detail


def _share(verdict: Verdict) -> float | None:
    return next(one.value for one in verdict.evidence if one.metric == "main_waits_pct")


def under_a_mutex(look: dict, run: float, thread_look: dict, probed: bool = False) -> Scene:
    """A trainer without loaders that sleeps most of the time at a mutex."""
    scene = alone(25.0, 0.02, [look], {PIN: (run, 0.01)})
    scene.drop(101, 102)
    scene.procs[100].info["threads"] = [ThreadInfo(100, "python"), ThreadInfo(PIN, "flusher")]
    scene.procs[100].thread_looks = [thread_look]
    scene.add(Proc(900, comm="janitor", cmdline=["janitor"], run=run, looks=[SLEEP]))
    scene.probed = probed
    return scene


@pytest.mark.parametrize("probed", [False, True], ids=["proc", "eBPF"])
@pytest.mark.parametrize("run", [0.02, 0.9], ids=["sleeps", "works"])
def test_a_mutex_that_another_process_holds_is_a_lock_whatever_that_one_does(run: float, probed: bool):
    scene = under_a_mutex(AWAIT | {"locked_by": 900, "lock_tid": 900}, run, SLEEP, probed)
    scene.wakeups, scene.futexes = ({(100, 900): 0.72}, {(100, 900): 4096}) if probed else ({}, {})
    verdict = scene.play(6).engine.verdict
    assert (verdict.symptom, verdict.cause, verdict.culprits[0].pid) == ("wait-heavy", "lock-contention", 900)
    assert (verdict.path[-1].pid, verdict.path[-1].state) == (900, "holds")
    assert "mutex" in verdict.detail


@pytest.mark.parametrize("probed", [False, True], ids=["proc", "eBPF"])
def test_a_mutex_with_which_an_own_thread_sleeps_is_a_lock_and_the_thread_is_named(probed: bool):
    scene = under_a_mutex(AWAIT | {"lock_tid": PIN}, 0.02, SLEEP, probed)
    scene.wakeups = {(100, PIN): 0.72, (PIN, 0): 0.96} if probed else {}
    scene.waits_at = {(PIN, 0): "timer"} if probed else {}
    verdict = scene.play(6).engine.verdict
    assert (verdict.symptom, verdict.cause) == ("wait-heavy", "lock-contention")
    assert "flusher" in verdict.detail


def test_an_own_thread_that_works_under_the_mutex_is_late_work_and_one_that_reads_is_the_disks():
    working = under_a_mutex(AWAIT | {"lock_tid": PIN}, 0.93, ON_CPU).play(6).engine.verdict
    assert working.cause == "main-thread-preprocessing"
    assert under_a_mutex(AWAIT | {"lock_tid": PIN}, 0.03, DISK).play(6).engine.verdict.cause == "disk-io"


@pytest.mark.parametrize("asked", ["server", "fed"])
def test_a_stage_of_several_goes_at_the_pace_of_who_reads_it(asked: str):
    """The same wait of a training for its log is `wait-heavy`."""
    scene = logging()
    if asked == "server":
        scene.procs[100].info["sockets"] = "listening"
    else:
        scene.add(Proc(902, run=0.2, looks=[READ], comm="decode", cmdline=["decode"]))
        scene.procs[100].info["other_ends"] = [902]
    verdict = scene.play(6).engine.verdict
    assert (verdict.symptom, verdict.cause) == ("input-bound", "output-blocked")


def test_of_several_that_have_the_other_end_the_one_that_works_is_the_reader():
    scene = logging()
    scene.add(Proc(901, ppid=100, run=0.01, looks=[SLEEP], cmdline=["python", "front.py"]))
    scene.procs[100].info["read_by"] = [901, 900]
    assert [one.pid for one in scene.play(6).engine.verdict.culprits] == [900]


@pytest.mark.parametrize("probed", [False, True], ids=["proc", "eBPF"])
def test_a_mutex_that_a_worker_holds_is_a_lock_that_they_take_in_turn_and_no_wait_for_a_batch(probed: bool):
    """The worker writes while it has the mutex of a replay buffer; a second one waits for it, too."""
    scene = alone(25.0, 0.02, [AWAIT | {"locked_by": 101, "lock_tid": 101}])
    scene.procs[101].run, scene.procs[101].looks = 0.03, [SLEEP]
    scene.procs[102].run, scene.procs[102].looks = 0.02, [AWAIT | {"locked_by": 101, "lock_tid": 101}]
    scene.probed = probed
    if probed:
        scene.wakeups = {(100, 101): 0.72, (102, 101): 0.9}
        scene.futexes = dict.fromkeys(scene.wakeups, 4096)
    verdict = scene.play(6).engine.verdict
    assert (verdict.symptom, verdict.cause) == ("input-bound", "lock-contention")
    assert (verdict.path[-1].pid, verdict.path[-1].state) == (101, "holds")
    assert [one.pid for one in verdict.culprits] == [101]
