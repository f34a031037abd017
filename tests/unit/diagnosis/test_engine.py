"""The engine over whole scenes: states, verdict, ledger, incidents."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from gputop.diagnosis import Engine
from gputop.findings.policy import EARLIER, WINDOW_NS
from gputop.findings.text import explain_lines
from gputop.findings.verdict import LOOKING, total
from gputop.model.board import Board
from gputop.model.frame import Frame, Header, SourceState
from gputop.system.colour import painted
from tests.unit.diagnosis import causes
from tests.unit.diagnosis.scene import FUTEX, ON_CPU, QUEUE, Proc, Scene, training

START = 50_000  # clock ticks; of the scenes' trainers


def contended() -> Scene:
    """Two workers kept from both CPUs by two hogs; the trainer polls for its next batch."""
    scene = training(util=20.0, run=0.38, wait=0.6, looks=[ON_CPU])
    scene.cpus, scene.cpu_busy = 2, [1.0, 1.0]
    scene.procs[100].looks = [QUEUE]
    return scene.add(Proc(900, comm="node_exporter", cmdline=["/usr/bin/node_exporter"], run=0.7, looks=[ON_CPU]),
                     Proc(901, comm="fluent-bit", cmdline=["/usr/bin/fluent-bit"], run=0.6, looks=[ON_CPU]))  # fmt: skip


def test_contention_is_named_with_its_culprits_within_three_seconds():
    engine = contended().play(3).engine
    assert (engine.verdict.symptom, engine.verdict.cause, engine.verdict.gpu) == ("input-bound", "cpu-contention", 0)
    assert engine.verdict.lost_pct == pytest.approx(80, abs=1)
    assert [(c.pid, c.name) for c in engine.verdict.culprits] == [(900, "node_exporter"), (901, "fluent-bit")]
    assert {victim.pid for victim in engine.verdict.victims} == {101, 102}
    assert engine.states[101].starving
    assert engine.states[101].state == "runnable"
    assert engine.states[100].state == "waiting-data"


def test_workers_ahead_are_healthy_and_never_starve():
    engine = training(run=0.2).play(5).engine
    assert (engine.verdict.symptom, engine.verdict.cause) == ("healthy", "none")
    assert engine.states[101].state == "ahead"
    assert not engine.states[101].starving
    assert engine.incidents == []


def test_an_episode_is_one_incident_with_the_culprits_cpu_seconds():
    scene = training(run=0.2).play(5)
    sick = contended()
    scene.procs, scene.cpus, scene.cpu_busy = sick.procs, 2, [1.0, 1.0]
    scene.gpus[0]["util_pct"] = 20.0
    scene.play(20)
    well = training(run=0.2)
    scene.procs, scene.cpu_busy = well.procs, [0.2, 0.2]
    scene.gpus[0]["util_pct"] = 100.0
    scene.play(10)
    [incident] = scene.engine.incidents
    assert (incident.cause, incident.severity) == ("cpu-contention", "high")
    assert incident.end_ns is not None
    assert (incident.end_ns - incident.start_ns) / 1e9 == pytest.approx(20, abs=2.5)
    assert incident.lost_s == pytest.approx(16, abs=2.5)
    assert {c.pid: c.cpu_s for c in incident.culprits} == pytest.approx({900: 14, 901: 12}, rel=0.1)
    assert scene.engine.verdict.symptom == "healthy"


def test_ledger_parts_sum_to_the_whole():
    engine = contended().play(10).engine
    explained = engine.explain()
    ledger = explained.ledger
    assert ledger.gpu_lost_s == pytest.approx(0.8 * ledger.gpu_total_s, rel=0.02)
    assert sum(ledger.by_cause.values()) == pytest.approx(ledger.gpu_lost_s)
    assert explained.verdict.cause == "cpu-contention"


def test_of_a_gpu_that_several_train_on_each_second_counts_once():
    """A node of notebooks: a total beyond what there was would say nothing."""
    alone, scene = contended().play(10), contended()
    scene.add(Proc(200, run=0.1, looks=[FUTEX], info={"uses_cuda": True}), Proc(300, run=0.1, looks=[FUTEX], info={"uses_cuda": True}))
    scene.gpus[0]["pids"] = [100, 200, 300]
    scene.gpus[1] = {"util_pct": 100.0, "pids": [300]}
    ledger = scene.play(10).engine.explain().ledger
    assert len(scene.engine.facts.jobs) == 3
    assert ledger.gpu_total_s == pytest.approx(2 * alone.engine.explain().ledger.gpu_total_s, rel=0.01)
    assert ledger.gpu_lost_s == pytest.approx(0.8 * ledger.gpu_total_s / 2, rel=0.05)
    assert sum(ledger.by_cause.values()) == pytest.approx(ledger.gpu_lost_s)


def test_two_readings_far_apart_are_too_few_and_not_too_short():
    verdict = training(workers=2).play(3.0, step_s=1.5).engine.verdict
    assert verdict.headline.endswith("has been looked at 2 times in 1.5 s, too seldom to judge")
    assert verdict.symptom == LOOKING


@pytest.mark.parametrize("util", [97.0, 5.0])
def test_before_anything_can_be_judged_nothing_is_said_of_the_gpu(util: float):
    scene = training(util=util, workers=2)
    assert scene.engine.verdict.symptom == LOOKING
    verdict = scene.play(0.4).engine.verdict
    assert verdict.headline.endswith("has been looked at for 0.2 s, too short to judge")
    assert (verdict.symptom, verdict.cause, verdict.confidence) == (LOOKING, "none", 0.0)
    assert scene.engine.explain().verdict.symptom is None
    assert painted(next(explain_lines(scene.engine.explain())), on=False) == "… LOOKING"
    assert scene.play(2.4).engine.verdict.symptom != LOOKING


def test_who_has_been_watched_for_long_is_judged_however_short_the_window():
    """What nothing explains is said to be so; only in the beginning it may show yet."""
    scene = training(util=5.0, workers=2).play(8, step_s=0.49)
    assert scene.engine.facts is not None
    assert scene.engine.facts.seconds * 1e9 < WINDOW_NS
    assert scene.engine.verdict.cause == "unexplained"


def test_a_gpu_without_fresh_readings_is_not_called_idle():
    scene = training(util=97.0).play(4)
    del scene.gpus[0]["util_pct"]
    verdict = scene.play(6).engine.verdict
    assert (verdict.symptom, verdict.headline) == (LOOKING, "train.py (100): no fresh reading of its GPU")
    found = scene.engine.explain().verdict
    assert (found.symptom, found.headline) == ("healthy", "The GPU worked 97% of the time")


def test_the_same_moment_twice_changes_nothing():
    scene = contended().play(4)
    before = scene.engine.explain()
    scene.engine.feed(scene.board)
    assert scene.engine.explain() == before


def test_in_a_container_a_trainer_has_the_gpus_its_environment_chooses():
    """NVML's pids are of another namespace, and on the other GPUs others train."""
    scene = training(run=0.2)
    for index, util in enumerate((100.0, 0.0, 40.0)):
        scene.gpus[index] = {"util_pct": util, "pids": [90_000 + index]}
    scene.procs[100].info |= {"env": {"CUDA_VISIBLE_DEVICES": "2"}}
    engine = scene.play(4).engine
    assert (engine.verdict.gpu, engine.verdict.trainer_pid or 100) == (2, 100)
    assert engine.verdict.lost_pct == pytest.approx(60, abs=1)


@pytest.mark.parametrize("make", [contended, causes.straggling, causes.beside_another_training], ids=lambda make: make.__name__)
def test_what_a_feed_leaves_is_freed_without_the_garbage_collector(make: Callable[[], Scene]):
    """The screen collects seldom: facts that held each other grew it by megabytes with many ranks."""
    scene = make().play(3)
    gc.collect()
    gc.disable()
    try:
        scene.play(3)
        assert gc.collect() < 100
    finally:
        gc.enable()


@pytest.mark.parametrize("shift", range(5))
def test_a_spawned_worker_that_is_named_for_a_moment_is_told(shift: int):
    scene = training(util=40.0, workers=2).play(4)
    child = Proc(105, 100, cmdline=["python", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork"], run=1.0)
    scene.add(child).play(2 + 0.2 * shift)
    child.comm = "pt_data_worker"
    scene.play(0.4).drop(105).play(1)
    assert scene.engine.facts is not None
    assert len(scene.engine.facts.jobs[0].loader.births) == 1


def test_a_trainer_by_the_number_of_one_that_ended_has_a_first_set_of_its_own():
    scene = training().play(4)
    scene.drop(100, 101, 102).play(2)
    scene.add(Proc(100, run=0.1, looks=[FUTEX], start_ticks=90_000, info={"uses_cuda": True}))
    scene.add(*(Proc(101 + i, ppid=100, comm="pt_data_worker", start_ticks=90_100 + i) for i in range(2))).play(4)
    assert [job.loader.births for job in scene.engine.facts.jobs] == [[]]


def test_what_a_trainer_spent_ends_with_it_and_its_loss_is_booked():
    """Another may come by the same number: its steps are not the other's."""
    scene = contended().play(10)
    before = scene.engine.explain().ledger
    scene.drop(100, 101, 102).play(0.2)
    engine = scene.engine
    assert not any((engine._pending, engine._judged, engine._spent, engine._paces))
    assert engine.explain().ledger == before
    assert engine.ledger.gpu_lost_s == pytest.approx(before.gpu_lost_s, abs=0.01)


def two_jobs() -> Scene:
    """A job that waits for its workers, which hogs keep from their CPUs, and beside it one on another GPU that works."""
    scene = contended()
    scene.gpus[1] = {**scene.gpus[0], "util_pct": 100.0, "pids": [200]}
    return scene.add(Proc(200, cmdline=["python", "other.py"], looks=[QUEUE]))


def test_each_trainer_has_a_ledger_and_the_nodes_is_their_sum():
    engine = two_jobs().play(10).engine
    (one, other), whole = (engine.ledgers[100, START], engine.ledgers[200, START]), engine.ledger
    assert one.by_cause["cpu-contention"] > 5.0
    assert other.gpu_lost_s == pytest.approx(0.0, abs=0.1)
    assert one.gpu_total_s == pytest.approx(other.gpu_total_s)
    assert whole.gpu_total_s == pytest.approx(one.gpu_total_s + other.gpu_total_s)
    assert whole.gpu_lost_s == pytest.approx(sum(whole.by_cause.values()))
    assert whole.by_cause["cpu-contention"] == pytest.approx(one.by_cause["cpu-contention"] + other.by_cause.get("cpu-contention", 0.0))


def test_of_a_trainer_that_ended_the_ledger_stays_though_its_pid_is_given_again():
    scene = two_jobs().play(10)
    scene.drop(100, 101, 102).play(2)
    ended = total([scene.engine.ledgers[100, START]])
    scene.gpus[0]["util_pct"] = 0.0
    scene.add(Proc(100, start_ticks=START + 500, cmdline=["python", "train.py"], looks=[QUEUE])).play(10)
    assert scene.engine.ledgers[100, START] == ended
    assert scene.engine.ledgers[100, START + 500].gpu_total_s > 1.0
    assert scene.engine.ledger.gpu_total_s == pytest.approx(sum(one.gpu_total_s for one in scene.engine.ledgers.values()))


def test_of_very_many_trainers_those_that_ended_first_have_one_ledger(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gputop.diagnosis.engine.MOST_LEDGERS", 2)
    scene, told = training().drop(100, 101, 102), []
    for i in range(5):
        scene.gpus[0]["pids"] = [1000 + i]
        scene.add(Proc(1000 + i, start_ticks=START + i, cmdline=["python", "train.py"], looks=[QUEUE])).play(6)
        told.append(scene.engine.ledger.gpu_total_s)
        scene.drop(1000 + i).play(0.4)
    assert EARLIER in scene.engine.ledgers
    assert len(scene.engine.ledgers) <= 2
    assert told == sorted(told)
    assert scene.engine.ledger.gpu_total_s >= told[-1] > 20.0


@pytest.mark.parametrize("first_ns", [0, 300_000_000, 10_100_000_000])
def test_whoever_begins_to_follow_feeds_at_the_same_moments(first_ns: int):
    engine, board, fed = Engine(), Board(Header()), []
    for t_ns in range(first_ns + 8_412_345, 14_000_000_000, 100_000_000):
        frame = Frame(0, t_ns)
        board.fold(frame)
        if engine.follow(board, frame):
            fed.append(t_ns)
    assert [t_ns for t_ns in fed if t_ns > 11_000_000_000] == [11_008_412_345 + 500_000_000 * n for n in range(6)]


@pytest.mark.parametrize(
    ("counted", "loading", "seconds"), [(True, False, 1.4), (False, False, 2.6), (False, True, 2.6), (None, False, 1.4)],
)
def test_what_a_main_thread_computes_is_told_when_its_calls_are_counted(counted: bool | None, loading: bool, seconds: float):
    """Or when they should have been; at once without the probes, which alone tell computing from launching and from spinning."""
    scene = causes.alone(30.0, 0.95, [ON_CPU]).drop(101, 102)
    if loading:
        scene.board.sources["ebpf"] = SourceState("ebpf", "partial", "the probes are being loaded")
    elif counted is not None:
        scene.probed = True
    if counted:
        scene.calls, scene.launches = {(100, "cuStreamSynchronize"): (8, 0.2, 0)}, {100: 200.0}
    said = 0.0
    while scene.engine.verdict.cause == "none":
        scene.play(0.2)
        said += 0.2
    assert scene.engine.verdict.cause == "main-thread-preprocessing"
    assert said == pytest.approx(seconds, abs=0.35)


@pytest.mark.parametrize(("sampled", "seconds"), [((0.5, 0.0, 0.0, 20.0), 2.6), ((0.0, 0.0, 0.0, 0.0), 1.4), ((0.5, 0.0, 0.0, 400.0), 1.4)])
def test_waits_that_few_samples_count_are_not_called_computing_yet(sampled: tuple[float, ...], seconds: float):
    """A storm is told at once, and who computes without waiting too."""
    scene = causes.alone(30.0, 0.95, [ON_CPU]).drop(101, 102)
    scene.sampled = {100: sampled}
    said = 0.0
    while scene.engine.verdict.cause == "none":
        scene.play(0.2)
        said += 0.2
    assert scene.engine.verdict.cause == ("sync-storm" if sampled[3] > 250 else "main-thread-preprocessing")
    assert said == pytest.approx(seconds, abs=0.35)
