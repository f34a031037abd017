"""The life of incidents, the ledger, and the JSON of the whole."""

from __future__ import annotations

import json
import re
import time

import msgspec
import pytest
from msgspec.structs import replace

from gputop.diagnosis.facts.stepclock import split
from gputop.diagnosis.incidents import severity
from gputop.findings import explanation as report
from gputop.findings.verdict import Ledger
from tests.unit.diagnosis.causes import throttled
from tests.unit.diagnosis.scene import EPOLL, ON_CPU, QUEUE, START_S, Proc, Scene, training


def sick(scene: Scene, hog: int = 900) -> Scene:
    """A hog takes the CPUs."""
    scene.gpus[0]["util_pct"], scene.cpu_busy = 20.0, [1.0] * scene.cpus
    for pid in (101, 102):
        scene.procs[pid].run, scene.procs[pid].wait, scene.procs[pid].looks = 0.3, 0.7, [ON_CPU]
    scene.procs[100].looks = [QUEUE]
    return scene.add(Proc(hog, comm="hog", cmdline=["/bin/hog"], run=3.0, looks=[ON_CPU], start_ticks=60_000 + hog))


def well(scene: Scene, hog: int = 900) -> Scene:
    """The hog leaves."""
    scene.gpus[0]["util_pct"], scene.cpu_busy = 100.0, [0.2] * scene.cpus
    for pid in (101, 102):
        scene.procs[pid].run, scene.procs[pid].wait, scene.procs[pid].looks = 0.2, 0.0, [QUEUE]
    scene.procs[100].looks = [{"state": "S", "syscall": 202}]
    return scene.drop(hog) if hog in scene.procs else scene


def test_a_short_lull_is_the_same_episode():
    scene = sick(training().play(4)).play(6)
    well(scene).play(2)
    sick(scene, 901).play(6)
    well(scene, 901).play(8)
    assert [incident.cause for incident in scene.engine.incidents] == ["cpu-contention"]
    [incident] = scene.engine.incidents
    assert [culprit.pid for culprit in incident.culprits] == [900, 901]


def test_a_long_one_ends_it():
    scene = sick(training().play(4)).play(6)
    well(scene).play(12)
    sick(scene, 901).play(6)
    first, second = scene.engine.incidents
    assert first.end_ns is not None
    assert first.end_ns < second.start_ns
    assert second.end_ns is None
    assert (first.id, second.id) == (1, 2)


def test_the_headline_is_of_the_whole_episode():
    scene = sick(training().play(4)).play(9)
    [incident] = scene.engine.incidents
    assert incident.headline == "GPU 0 lost 6.1 of 8.8 s: train.py (100) waits for its data"
    assert round(incident.lost_s, 1) == 6.1


def test_onset_and_recovery_are_not_the_state_that_a_bound_is_of():
    """Batches that were prepared before keep the GPU at work for two seconds, and those after it bring it back."""
    scene = sick(training().play(4))
    scene.gpus[0]["util_pct"] = 60.0
    scene.play(2)
    scene.gpus[0]["util_pct"] = 20.0
    scene.play(8)
    scene.gpus[0]["util_pct"] = 70.0
    scene.play(1.5)
    well(scene).play(8)
    [incident] = [one for one in scene.engine.incidents if one.cause == "cpu-contention"]
    assert incident.speedup_max == pytest.approx(1 / 0.2, rel=0.1)
    assert scene.engine.explain().verdict.speedup_max == incident.speedup_max


def test_culprits_stand_in_the_order_of_what_they_took():
    scene = training().add(Proc(950, comm="late", cmdline=["/bin/late"], run=0.0, looks=[ON_CPU]))
    sick(scene.play(4)).play(5)
    scene.procs[900].run, scene.procs[950].run = 0.8, 2.6
    [incident] = scene.play(9).engine.incidents
    assert [one.pid for one in incident.culprits] == [950, 900]
    scene.procs[900].run, scene.procs[950].run = 3.2, 0.1
    scene.play(9)
    assert [one.pid for one in incident.culprits] == [900, 950]


def test_who_took_much_for_a_moment_is_not_whom_the_fixes_begin_with():
    """Both hogs have a session of their own, and so a fix of their own."""
    scene = training().add(Proc(950, comm="late", cmdline=["/bin/late"], run=0.0, looks=[ON_CPU], info={"session": 950}))
    sick(scene.play(4)).play(14)
    scene.procs[900].info["session"] = 900
    scene.procs[900].run, scene.procs[950].run = 1.5, 1.8
    [incident] = scene.play(8).engine.incidents
    assert [one.pid for one in scene.engine.verdict.culprits] == [950, 900], "of the moment"
    assert [one.pid for one in incident.culprits] == [900, 950]
    assert incident.path[-1].pid == 900
    assert "late" not in next(fix.text for fix in incident.fixes if not fix.look)
    scene.play(60)
    assert incident.path[-1].pid == 950


def test_who_was_throttled_is_a_victim_of_the_quota():
    scene = throttled()
    scene.procs[100].run, scene.procs[100].wait = 0.1, 0.3
    scene.procs[102].info = {"cgroup": "/elsewhere"}
    [incident] = scene.play(8).engine.incidents
    assert (incident.cause, {one.pid for one in incident.victims}) == ("cgroup-throttle", {100, 101})


def test_the_verdict_of_a_stretch_is_the_cause_that_cost_most():
    """Also where its incident began later, and so has less."""
    scene = sick(training().play(4)).play(6)
    well(scene).play(1)
    first = scene.engine.incidents[0]
    incidents, ledger = [first, replace(first, cause="slow-transform", lost_s=first.lost_s / 2)], Ledger(20.0, 9.0)
    ledger.by_cause = {"slow-transform": 5.0, "cpu-contention": 4.0}
    found = report.explanation(scene.engine.verdict, ledger, incidents, {}, scene.board.header, scene.board.t_ns, lambda _: ())
    assert found.verdict.cause == "slow-transform"


def test_the_step_of_a_stretch_is_that_of_the_trainer_whose_incident_it_names():
    scene = sick(training().play(4)).play(6)
    [one] = scene.engine.incidents
    steps = {pid: split(pace, "CUDA calls", {"computing": 1.0}) for pid, pace in ((one.trainer_pid, 4.0), (7, 9.0))}
    for other in (one.trainer_pid, None, 7):
        now = replace(scene.engine.verdict, trainer_pid=other, step=steps[7])
        found = report.explanation(now, Ledger(), [one], {}, scene.board.header, scene.board.t_ns, lambda _: (), step_of=steps.get)
        assert found.verdict.steps_per_s == (4.0 if other == 7 else 9.0)


def test_a_sentence_about_the_host_alone_fits_a_narrow_screen():
    text = "train.py (100) waits for its data 92% of the time (no GPU is measured: host side only)"
    assert report.brief(report.without_pids(text), 46) == "train.py waits for data 92% (no GPU measured)"
    assert report.brief(text, 90) == text


def test_where_no_gpu_is_measured_the_verdict_is_what_lasted_longest():
    scene = sick(training().play(4)).play(6)
    [one] = scene.engine.incidents
    short = replace(one, cause="slow-transform", end_ns=one.start_ns + 10**9, lost_s=0.0)
    found = report.explanation(
        scene.engine.verdict, Ledger(), [short, replace(one, lost_s=0.0)], {}, scene.board.header, scene.board.t_ns, lambda _: ()
    )  # fmt: skip
    assert found.verdict.cause == one.cause == "cpu-contention"


GPUTOP = ["/usr/bin/python3", "/usr/bin/gputop", "record", "-o", "x"]


def recorded(by: int, *beside: Proc) -> Scene:
    """Process 900 takes the CPUs and calls itself gputop; the stream is made by the process ``by``, which `gputop record` (910) started."""
    scene = training()
    scene.board.header = replace(scene.board.header, collector_pid=by)
    sick(scene.add(Proc(910, cmdline=GPUTOP), *beside).play(4), 900)
    scene.procs[900].cmdline, scene.procs[900].comm = GPUTOP, "gputop"
    return scene


def blamed(scene: Scene) -> list[int]:
    return [culprit.pid for one in scene.play(6).engine.incidents for culprit in one.culprits]


def test_whoever_calls_himself_gputop_is_a_culprit_all_the_same():
    assert blamed(recorded(911, Proc(911, ppid=910, cmdline=GPUTOP))) == [900]
    assert blamed(recorded(0)) == [900]


def test_who_records_is_no_culprit():
    """The collector, who started it, and its loader of the probes, which a sudo with a terminal of its own stands above."""
    assert blamed(recorded(900)) == []
    collector, parent = recorded(911, Proc(911, ppid=900, cmdline=GPUTOP)), recorded(911, Proc(911, ppid=910), Proc(912, ppid=911))
    parent.add(Proc(913, ppid=912)).procs[900].ppid = 913
    assert blamed(collector) == blamed(parent) == []
    assert not [one for one in collector.engine.incidents if one.cause == "worker-oversubscription"]


def test_who_starts_a_recorder_is_a_culprit_unless_he_is_one():
    scene = recorded(911, Proc(911, ppid=900, cmdline=GPUTOP))
    scene.procs[900].cmdline = ["python", "miner.py"]
    assert blamed(scene) == [900]


def test_a_blink_is_no_incident():
    scene = sick(training().play(6)).play(0.6)
    well(scene).play(8)
    assert scene.engine.incidents == []


@pytest.mark.parametrize(
    ("lost_s", "seconds", "fault", "word"),
    [
        (1.0, 10, True, "low"),
        (6.0, 10, True, "medium"),
        (16.0, 20, True, "high"),
        (16.0, 20, False, "info"),
        (30.0, 600, True, "low"),
        (0.0, 0, True, "low"),
    ],
)
def test_severity(lost_s: float, seconds: float, fault: bool, word: str):
    assert severity(lost_s, seconds, fault) == word


def test_ledger_books_the_rest_as_unexplained():
    ledger = Ledger()
    ledger.add(2.0, 1.0, {"disk-io": 0.7})
    ledger.add(2.0, 1.0, {"disk-io": 0.5, "cpu-contention": 0.5})
    ledger.add(2.0, 0.0, {})
    assert ledger.by_cause == {"disk-io": pytest.approx(1.2), "cpu-contention": 0.5, "unexplained": pytest.approx(0.3)}
    assert sum(ledger.by_cause.values()) == pytest.approx(ledger.gpu_lost_s)


def test_explanation_is_the_contract():
    scene = sick(training().play(4)).play(10)
    explained = json.loads(msgspec.json.encode(scene.engine.explain()))
    assert explained["schema"] == 1
    assert {"symptom", "cause"} <= set(explained["verdict"])
    assert {"gpu_lost_s", "by_cause"} <= set(explained["ledger"])
    [incident] = explained["incidents"]
    when, what = ("id", "start_unix_s", "end_unix_s"), ("symptom", "cause", "severity", "confidence", "trainer_pid")
    assert {*when, *what, "victims", "culprits", "evidence", "fixes"} <= set(incident)
    assert incident["start_unix_s"] == pytest.approx(1_700_000_004, abs=1.5)
    assert incident["end_unix_s"] is None
    assert (incident["trainer_pid"], incident["culprits"][0]["pid"]) == (100, 900)
    assert incident["victims"][0] == {"pid": 101, "role": "worker", "name": "worker 0"}
    assert set(incident["evidence"][0]) == {"metric", "value", "unit", "text"}
    assert set(incident["fixes"][0]) == {"text", "command", "look"}
    assert "900" in incident["fixes"][0]["command"]


def test_the_whole_streams_verdict_is_what_cost_most_though_it_is_over():
    scene = sick(training().play(4)).play(15)
    explained = well(scene).play(10).engine.explain()
    assert explained.verdict.cause == "cpu-contention"
    assert scene.engine.verdict.symptom == "healthy"


def test_a_training_that_was_well_and_ended_is_told_and_not_its_end():
    scene = training(run=0.1).play(6).drop(100, 101, 102)
    scene.gpus[0] |= {"util_pct": 0.0, "pids": []}
    found = scene.play(4).engine.explain().verdict
    assert (found.symptom, found.headline) == ("healthy", "The GPU worked 100% of the time")
    assert scene.engine.verdict.headline == "No training process on this host"


def test_nor_does_it_hide_a_gpu_that_is_lost_or_one_who_rests_there():
    ended = training(run=0.1).play(6).drop(100, 101, 102)
    ended.gpus[0] |= {"lost": True, "util_pct": 0.0}
    assert "is lost" in ended.play(4).engine.explain().verdict.headline
    resting = training(run=0.1, workers=0, util=0.0)
    resting.procs[100] = Proc(100, looks=[EPOLL], info={"uses_cuda": True})
    assert resting.play(6).engine.explain().verdict.symptom == "idle"
    assert resting.drop(100).play(4).engine.explain().verdict.symptom == "idle"


def test_a_short_recording_with_a_long_quiet_lead_tells_what_it_ends_with():
    """Most of a fifth of the time is lost at its end: the screen says so, and so does the explanation of the whole."""
    scene = training().play(20)
    sick(scene).gpus[0]["util_pct"] = 82.0
    scene.play(12)
    assert scene.engine.verdict.cause == "cpu-contention"
    assert scene.engine.explain().verdict.cause == "cpu-contention"


def test_the_end_of_a_disturbance_is_not_the_jobs_own_doing():
    """The hog is gone, and with it all that the probe counted of it; the window still holds what it did."""
    scene = sick(training().play(4))
    scene.probed, scene.preempts = True, {(101, 900): 0.4, (102, 900): 0.4, (101, 102): 0.1, (102, 101): 0.1}
    scene.play(6)
    scene.preempts = {(101, 102): 0.0}
    well(scene)
    scene.board.preempts.clear()
    said = {scene.play(0.2).engine.verdict.cause for _ in range(30)}
    assert said == {"cpu-contention", "none"}


def orphaned(**info: object) -> Scene:
    scene = training(run=0.2).play(3)
    return scene.add(Proc(700, ppid=1, comm="pt_data_worker", cmdline=["python", "gone.py"], looks=[{"state": "T"}], info=info))


def test_a_worker_that_outlived_its_trainer_is_told_with_what_it_holds():
    scene = orphaned(uses_cuda=True)
    scene.gpus[0]["pids"] = [100, 700]
    assert scene.play(6).engine.incidents == []
    [incident] = scene.play(6).engine.incidents
    assert (incident.symptom, incident.cause, incident.severity, incident.gpu) == ("idle", "hung-worker", "low", 0)
    assert [(victim.pid, victim.name) for victim in incident.victims] == [(700, "orphaned worker")]
    assert incident.fixes[0].command == "kill 700"
    assert scene.engine.verdict.symptom == "healthy"
    scene.drop(700).play(2)
    assert incident.end_ns is not None


def test_on_a_host_without_training_it_is_the_verdict():
    scene = Scene(gpus={0: {"util_pct": 0.0, "pids": [700]}})
    scene.add(Proc(700, ppid=1, comm="pt_data_worker", cmdline=["python", "gone.py"], looks=[{"state": "T"}])).play(12)
    assert (scene.engine.verdict.symptom, scene.engine.verdict.cause) == ("idle", "hung-worker")


def test_one_that_holds_nothing_is_not_worth_a_word():
    assert orphaned().play(15).engine.incidents == []


def test_an_orphan_that_takes_the_cpus_is_a_stranger():
    scene = sick(training().play(4)).drop(900)
    scene.add(Proc(700, ppid=1, comm="pt_data_worker", cmdline=["python", "gone.py"], run=3.0, looks=[ON_CPU])).play(5)
    assert [culprit.pid for culprit in scene.engine.verdict.culprits] == [700]


def test_names_of_strangers_are_made_safe():
    scene = sick(training().play(4))
    scene.procs[900].cmdline, scene.procs[900].info = ["/bin/\x1b[2J[red]\nhog"], {"exe": "/bin/hog"}
    [culprit] = scene.play(6).engine.verdict.culprits
    assert culprit.name == "·[2J[red]·hog"


def test_a_jump_in_time_begins_a_new_window():
    scene = sick(training().play(4)).play(4)
    scene._t_ns += 60 * 10**9
    scene.play(0.4)
    assert scene.engine.verdict.cause == "none"
    assert scene.play(3).engine.verdict.cause == "cpu-contention"


def test_twenty_hot_processes_are_fed_within_milliseconds():
    scene = training(workers=19, util=20.0, run=0.4, wait=0.5, looks=[ON_CPU]).play(3)
    costs = sorted(_fed_s(scene) for _ in range(15))
    assert costs[0] < 0.02  # 1 ms is the aim on a quiet machine; twenty times that is a mistake in the method


def _fed_s(scene: Scene) -> float:
    engine, scene.engine = scene.engine, _Nobody()
    scene.play(0.2)
    scene.engine = engine
    began = time.thread_time()
    engine.feed(scene.board)
    return time.thread_time() - began


class _Nobody:
    def feed(self, board: object) -> None:
        pass


def test_what_a_hog_took_while_the_queues_drained_counts():
    """It was there before, at rest; its CPU time is felt only seconds after it begins."""
    scene = training().add(Proc(900, comm="hog", cmdline=["/bin/hog"], run=0.01, start_ticks=60_900)).play(6)
    scene.procs[900].run, scene.procs[900].looks = 3.0, [ON_CPU]
    sick(scene.play(4)).play(6)
    [incident] = scene.engine.incidents
    assert [(one.pid, one.cpu_s) for one in incident.culprits] == [(900, pytest.approx(30, rel=0.05))]


def test_what_a_hog_took_before_anybody_watched_does_not_count():
    """It was started shortly before the watch began, and took some CPU time for that."""
    scene = sick(training())
    scene.procs[900].start_ticks = (START_S - 2) * 100
    scene.add_cpu(900, 1.5)
    [incident] = scene.play(6).engine.incidents
    assert [one.cpu_s for one in incident.culprits] == [pytest.approx(3.0 * 6, rel=0.05)]


def test_what_a_hog_takes_after_an_episode_does_not_count():
    """It goes on, but the training needs no more than is left."""
    scene = well(sick(training().play(4)).play(6), hog=0).play(15)
    [incident] = scene.engine.incidents
    assert incident.end_ns is not None
    [culprit] = incident.culprits
    assert culprit.cpu_s == pytest.approx(3.0 * (incident.end_ns - incident.start_ns) / 1e9, abs=3.0 * 1.25)


def test_the_text_is_of_what_lasted():
    """Its first moments were worse than all that followed."""
    scene = sick(training().play(4)).play(3)
    [incident] = scene.engine.incidents
    scene.gpus[0]["util_pct"], scene.procs[101].wait, scene.procs[102].wait = 60.0, 0.5, 0.5
    scene.play(20)
    assert [one.value for one in incident.evidence if one.metric == "runq_pct"] == [pytest.approx(50, abs=3)]


def test_a_headline_counts_only_what_is_booked():
    """Of a trouble that stands from the first moment, the last second is not booked yet."""
    scene = sick(training())
    scene.gpus[0]["util_pct"] = 0.0
    scene.play(8)
    lost_s, whole_s = map(float, re.findall(r"[\d.]+(?= of| s:)", scene.engine.incidents[0].headline))
    assert lost_s >= 0.85 * whole_s > 0.0


def test_what_a_hog_took_long_before_an_episode_does_not_count():
    scene = sick(well(sick(training().play(4)).play(6), hog=0).play(15)).play(6)
    first, second = scene.engine.incidents
    assert [one.pid for one in second.culprits] == [900]
    assert second.culprits[0].cpu_s == pytest.approx(3.0 * 6, abs=3.0 * 2.5)
    assert first.end_ns is not None
