"""What a trainer beside ready workers waits for: a thread of its own, or somebody who reads what it writes."""

from __future__ import annotations

import pytest

from gputop.findings.verdict import Verdict
from gputop.model.frame import ThreadInfo
from tests.unit.diagnosis.causes import alone
from tests.unit.diagnosis.scene import AWAIT, HIDDEN, ON_CPU, SLEEP, TURN, Proc, Scene

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
