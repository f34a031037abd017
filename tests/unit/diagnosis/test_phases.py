"""The phases of a trainer: which follows which, since when, and what becomes of the seconds that its GPU did not work."""

from __future__ import annotations

import pytest

from gputop.diagnosis.phases import TABLE, Phase
from gputop.findings.verdict import ANY, BOOKED, DROPPED, ENDING, HELD, IDLE, PAUSING, SAME, STARTING, TRAINING
from gputop.model.frame import GpuProc
from tests.unit.diagnosis.causes import alone, starved
from tests.unit.diagnosis.facts.test_starts import young
from tests.unit.diagnosis.scene import AWAIT, DISK, EPOLL, FUTEX, ON_CPU, START_S, Proc, Scene

S = 1_000_000_000


def phase(scene: Scene, pid: int = 100) -> Phase:
    return scene.engine.phases[pid]


def words(scene: Scene, seconds: float) -> list[str]:
    """The phases of the next seconds, each once as long as it lasts."""
    found: list[str] = []
    for _ in range(round(seconds / 0.2)):
        word = phase(scene.play(0.2)).word
        found += [word] if [word] != found[-1:] else []
    return found


def test_every_row_names_phases_and_a_way_to_book():
    assert {row.to for row in TABLE} == {*ANY, SAME}
    assert all(set(row.before) <= set(ANY) and row.books in (BOOKED, DROPPED, HELD) for row in TABLE)
    assert all(row.says for row in TABLE if row.books != BOOKED), "what is not booked has no cause that could tell it"


def test_the_life_of_a_trainer():
    """It is born, works its GPU with the batches of two workers, saves, works on, lets its workers go and ends."""
    scene = Scene(gpus={0: {"util_pct": 0.0}}).play(1.0)
    scene.add(Proc(100, run=0.9, looks=[ON_CPU], info={"uses_cuda": True}, start_ticks=scene.ticks))
    assert words(scene, 4) == [STARTING]
    scene.gpus[0] |= {"util_pct": 98.0, "procs": [GpuProc(100, mem_bytes=2 << 30)]}
    scene.add(*(Proc(101 + i, 100, comm="pt_data_worker", run=0.1, start_ticks=scene.ticks) for i in range(2)))
    scene.procs[100].run, scene.procs[100].looks = 0.1, [FUTEX]
    assert words(scene, 8)[-1] == TRAINING
    scene.gpus[0]["util_pct"], scene.procs[100].looks, scene.procs[100].write_bytes = 0.0, [DISK], 200_000_000
    assert words(scene, 3) == [TRAINING, PAUSING]
    assert phase(scene).why == "pauses"
    scene.gpus[0]["util_pct"], scene.procs[100].looks, scene.procs[100].write_bytes = 98.0, [FUTEX], 0
    assert words(scene, 6) == [PAUSING, TRAINING]
    scene.drop(101, 102).gpus[0]["util_pct"] = 0.0
    scene.procs[100].run, scene.procs[100].looks = 0.95, [ON_CPU]
    assert words(scene, 1.6)[-1] == ENDING
    assert scene.drop(100).play(3).engine.phases == {}
    assert scene.engine.explain().ledger.gpu_lost_s == pytest.approx(3.0, abs=0.7), "the pause alone"


def test_a_phase_lasts_since_it_began_and_a_start_since_the_birth():
    scene = Scene(gpus={0: {"util_pct": 0.0}}).play(2.0)
    scene.add(Proc(100, run=0.9, looks=[ON_CPU], info={"uses_cuda": True}, start_ticks=scene.ticks))
    born_ns = scene.board.t_ns
    assert phase(scene.play(6)).since_ns == pytest.approx(born_ns, abs=S)
    scene = alone(98.0, 0.1, [FUTEX]).play(6)
    since_ns = phase(scene).since_ns
    assert phase(scene.play(6)).since_ns == since_ns
    scene.gpus[0]["util_pct"] = 0.0
    began_ns = scene.board.t_ns
    assert phase(scene.play(4)).word == PAUSING
    assert began_ns < phase(scene).since_ns < began_ns + 3 * S


@pytest.mark.parametrize(("held", "books"), [(False, DROPPED), (True, BOOKED)])
def test_a_start_is_no_loss_unless_somebody_holds_it_up(held: bool, books: str):
    scene = young(starved(util=0.0, workers=4))
    if held:
        scene.procs[102].looks, scene.procs[102].switches = [{"state": "T"}], 0
    scene.play(6)
    assert (phase(scene).word, phase(scene).books) == (STARTING, books)
    assert (scene.engine.ledger.gpu_lost_s > 0.0) == held


def test_what_may_be_the_end_is_held_and_booked_if_it_was_none():
    scene = alone(98.0, 0.1, [FUTEX]).play(6).drop(101, 102)
    scene.gpus[0]["util_pct"], scene.procs[100].run, scene.procs[100].looks = 0.0, 0.95, [ON_CPU]
    scene.play(1.4)
    assert (phase(scene).word, phase(scene).books) == (ENDING, HELD)
    before_s = scene.engine.ledger.gpu_lost_s
    scene.play(3)
    assert phase(scene).word in (TRAINING, PAUSING)
    assert scene.engine.ledger.gpu_lost_s > before_s + 2.5


def test_who_lets_workers_go_before_it_has_begun_does_not_end():
    """A first pool indexes the data set; then the main thread reads it, from a slow disk."""
    scene = young(starved(util=0.0, workers=2, run=0.0, looks=[DISK], read_bytes=1_000_000))
    for proc in scene.procs.values():
        proc.start_ticks = (START_S - 60) * 100
    assert phase(scene.play(6)).word == STARTING
    scene.drop(101, 102)
    scene.procs[100].looks, scene.procs[100].read_bytes = [DISK], 1_000_000
    assert words(scene, 3) == [STARTING]
    assert (phase(scene).books, scene.engine.verdict.cause) == (BOOKED, "disk-io")


def test_who_waits_to_be_asked_is_idle_and_loses_nothing():
    scene = alone(2.0, 0.0, [EPOLL]).drop(101, 102)
    scene.procs[100].info["sockets"] = "listening"
    scene.play(6)
    assert (phase(scene).word, phase(scene).books) == (IDLE, DROPPED)
    assert scene.engine.ledger.gpu_lost_s < 2.0


def test_who_hangs_wants_to_train_and_its_seconds_are_lost():
    scene = alone(98.0, 0.1, [FUTEX]).play(8)
    scene.gpus[0]["util_pct"] = 0.0
    for proc in scene.procs.values():
        proc.run, proc.switches, proc.looks = 0.0, 0, [AWAIT]
    scene.play(9)
    assert (phase(scene).word, phase(scene).books, phase(scene).why) == (TRAINING, BOOKED, "hangs")
    assert scene.engine.verdict.cause == "hung-worker"


def test_another_by_the_same_number_has_a_machine_of_its_own():
    scene = alone(98.0, 0.1, [FUTEX]).play(6)
    scene.drop(100, 101, 102).gpus[0]["util_pct"] = 0.0
    assert scene.play(1).engine.phases == {}
    scene.add(Proc(100, run=0.9, looks=[ON_CPU], info={"uses_cuda": True}, start_ticks=scene.ticks))
    assert words(scene, 3) == [STARTING]
