"""The walk from lost GPU time to its cause: steps, words, how sure it is, and what would come back without the cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gputop.diagnosis.graph.edges import Hop, LeafLoss
from gputop.findings.explanation import booked
from gputop.findings.path import _VERBS, amount, confidence, factor, sentence, tree, without
from gputop.findings.text import explain_lines, ledger_lines
from gputop.findings.verdict import PATH_STATES, Incident, Ledger, PathStep, Verdict, speedup_max, total
from gputop.system.colour import painted
from tests.unit.diagnosis.causes import cpu_contention, hidden_contention, probed_contention, starved, straggling_gpu, throttled
from tests.unit.diagnosis.causes_behind import lock_between_trainers, lock_of_a_file, programs_on_the_disk, stopped_programs
from tests.unit.diagnosis.causes_fed import throttled_actors
from tests.unit.diagnosis.causes_gpu import hot_gpu, probed_items
from tests.unit.diagnosis.scene import HIDDEN, ON_CPU, Proc, Scene, training
from tests.unit.diagnosis.test_incidents import sick, well
from tests.unit.diagnosis.test_verdicts import respawning

WALK = (
    PathStep(812, "train.py", 0.62, "waits", "worker 2 (833)", measured=True),
    PathStep(833, "worker 2", 0.71, "runnable", "fluent-bit (903)", measured=True),
    PathStep(903, "fluent-bit", 0.9, "runs", "", measured=False),
)


def played(make: Callable[[], Scene]) -> Verdict:
    scene = make()
    if not scene.engine.fed_ns:
        worked, scene.gpus[0] = scene.gpus[0], {**scene.gpus[0], "util_pct": 100.0}
        scene.play(1.0)
        scene.gpus[0] = worked
    return scene.play(8, 0.5).engine.verdict


def test_a_sentence_tells_each_step_and_says_what_only_seems_so():
    assert sentence(WALK) == (
        "train.py (812) waits 62 % of the time for worker 2 (833), which was runnable 71 % of that, behind fluent-bit (903), "
        "which probably ran 90 % of that"
    )
    assert sentence(WALK[2:]) == "fluent-bit (903) probably runs 90 % of the time"
    assert sentence(()) == ""


def test_a_tree_has_a_line_for_each_step():
    assert tree(WALK) == [
        ("", "train.py (812) waits 62 % of the time for worker 2 (833)"),
        ("", "└ worker 2 (833) is runnable 71 % of that, behind fluent-bit (903)"),
        ("  ", "└ fluent-bit (903) probably runs 90 % of that"),
    ]


def test_who_is_not_the_one_that_was_waited_for_is_told_by_name():
    text = sentence((WALK[0], PathStep(None, "GPU 0", 0.5, "light", "", measured=True)))
    assert text.endswith("for worker 2 (833); GPU 0 ran kernels on few SMs 50 % of that")


def test_each_state_has_words():
    assert set(_VERBS) == set(PATH_STATES)


def test_confidence_is_the_measured_share_of_the_path():
    """Weights are shares of the window: 0.62, 0.62 x 0.71, 0.62 x 0.71 x 0.9; the last one is inferred, and counts half."""
    assert confidence(WALK) == pytest.approx(1 - 0.5 * 0.396 / (0.62 + 0.440 + 0.396), abs=0.001)
    assert confidence(WALK[:2]) == confidence(()) == 1.0
    assert confidence(WALK[2:]) == 0.5


def test_with_the_probe_the_whole_walk_is_measured():
    verdict = played(probed_contention)
    assert [(step.pid, step.state, step.measured) for step in verdict.path] == [
        (100, "waits", True), (101, "runnable", True), (900, "runs", True),
    ]  # fmt: skip
    assert sentence(verdict.path).endswith("worker 0 (101), which was runnable 50 % of that, behind backup (900), which ran 100 % of that")
    assert verdict.confidence == 1.0


def test_where_nothing_of_the_waits_can_be_read_the_walk_only_seems_so():
    seen, hidden = played(cpu_contention), played(hidden_contention)
    assert [step.pid for step in hidden.path] == [step.pid for step in seen.path] == [100, 101, 900]
    assert [step.measured for step in seen.path] == [True, True, False]
    assert [step.measured for step in hidden.path] == [False, True, False]
    assert sentence(hidden.path).startswith("train.py (100) probably waits ")
    assert 0.5 <= hidden.confidence < seen.confidence < 1.0


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lock_of_a_file, "worker 0 (101), which waited 98 % of that for label-tool (900), which held it 100 % of that"),
        (lock_between_trainers, "for train.py rank 0 (100), which probably held it 100 % of that"),
        (throttled_actors, "for actor (900), which was throttled 100 % of that by the quota of 0.3 CPUs"),
        (stopped_programs, "for serve.py (900), which was stopped 100 % of that"),
        (programs_on_the_disk, "for worker 1 (102), which probably waited for the disk 98 % of that"),
        (straggling_gpu, "for train.py rank 1 (200); GPU 1 ran 99 % of that"),
        (probed_items, "train.py (100) waits 55 % of the time for its GPU, 3,000 times a second"),
        (hot_gpu, "GPU 0 runs at lowered clocks 58 % of the time"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_walk_goes_on_to_whom_nobody_keeps(make: Callable[[], Scene], told: str):
    assert sentence(played(make).path).endswith(told)


def test_workers_that_are_born_again_are_waited_for():
    path = respawning().engine.verdict.path
    assert sentence(path).startswith("train.py (100) waits ")
    assert path[0].on == "workers that start" or path[-1].state == "starts"


def test_a_copy_or_a_wait_is_told_with_all_of_its_time():
    """Steps of one process and kind are one, whoever ended each."""
    one, two = (Hop(7, 7, "lock", share, True) for share in (0.2, 0.3))
    first, booked = Hop(1, 1, "workers", 0.6, True), LeafLoss()
    booked.book(0.2, (first, one))
    booked.book(0.3, (first, two))
    assert booked.trail == (first, Hop(7, 7, "lock", 0.5, True))


def test_a_quota_is_the_end_of_the_walk():
    last = played(throttled).path[-1]
    assert (last.pid, last.state, last.on) == (101, "throttled", "the quota of 0.5 CPUs")


@pytest.mark.parametrize("make", [training, lambda: training(util=97.0)])
def test_who_is_well_has_no_walk_and_nothing_comes_back(make: Callable[[], Scene]):
    verdict = make().play(6).engine.verdict
    assert (verdict.path, verdict.regain_gpu_s, verdict.speedup_max) == ((), None, None)


def test_names_in_a_walk_are_made_safe():
    scene = sick(training().play(4))
    scene.procs[900].cmdline, scene.procs[900].info = ["/bin/\x1b[2J[red]\nhog"], {"exe": "/bin/hog"}
    path = scene.play(6).engine.verdict.path
    assert path[-1].name == "·[2J[red]·hog"
    assert path[-2].on == "·[2J[red]·hog (900)"


@pytest.mark.parametrize(
    ("lost_s", "total_s", "bound"), [(0.0, 10.0, 1.0), (5.0, 10.0, 2.0), (4.1, 10.0, 1.69), (9.9, 10.0, None), (0.0, 0.0, None)]
)
def test_the_bound_of_a_speed_up_is_the_time_that_is_left(lost_s: float, total_s: float, bound: float | None):
    assert speedup_max(lost_s, total_s) == bound


def test_seconds_of_causes_add_up_and_factors_do_not():
    ledger = Ledger(10.0, 8.0, {"disk-io": 2.0, "cpu-contention": 4.0, "unexplained": 2.0})
    regains = [(one.cause, one.regain_gpu_s, one.speedup_max) for one in ledger.regains()]
    assert regains == [("cpu-contention", 4.0, 1.67), ("disk-io", 2.0, 1.25)]
    assert ledger.speedup_of_all() == 2.5 > 1.67 * 1.25


def test_what_nobody_explains_is_promised_to_nobody():
    assert Ledger(10.0, 8.0, {"unexplained": 8.0}).regains() == []


def test_the_verdict_promises_no_more_than_the_gpu_lost():
    """Its GPU works 30 % of the window: without the hog, it may do so all the time."""
    scene = cpu_contention().play(8)
    verdict, facts = scene.engine.verdict, scene.engine.facts
    assert facts is not None
    assert verdict.regain_gpu_s == pytest.approx(0.7 * facts.seconds, abs=0.01)
    assert verdict.speedup_max == pytest.approx(1 / 0.3, abs=0.01)


def settled(scene: Scene) -> Ledger:
    return total(scene.engine.settled()[1].values())


def incident_of(scene: Scene) -> Incident:
    [incident] = scene.engine.settled()[0]
    return incident


def test_an_incident_carries_what_would_come_back_over_its_own_time():
    scene = well(sick(training().play(4)).play(8)).play(10)
    incident, ledger = incident_of(scene), settled(scene)
    assert incident.regain_gpu_s == pytest.approx(incident.lost_s)
    assert [one.cause for one in ledger.regains()] == ["cpu-contention"]
    of_all = ledger.regains()[0].speedup_max
    assert incident.speedup_max is not None
    assert of_all is not None
    assert incident.speedup_max > of_all > 1.0  # the stream was well before and after
    assert [step.pid for step in incident.path] == [100, 101, 900]


def test_while_the_gpu_works_nothing_is_promised_though_cpus_are_short():
    """The workers hardly get a CPU, and are in time all the same."""
    scene = sick(training().play(4))
    scene.gpus[0]["util_pct"] = 100.0
    ledger = settled(scene.play(8))
    assert sum(one.regain_gpu_s for one in ledger.regains()) == pytest.approx(0.0, abs=0.01)


def test_jobs_that_share_a_gpu_are_not_promised_its_seconds_twice():
    scene = starved(run=0.3, wait=0.7, looks=[ON_CPU])
    scene.cpu_busy = [1.0] * 4
    scene.add(Proc(200, cmdline=["python", "other.py"], looks=scene.procs[100].looks))
    for pid in (201, 202):
        scene.add(Proc(pid, ppid=200, comm="pt_data_worker", run=0.3, wait=0.7, looks=[ON_CPU], cmdline=["python", "other.py"]))
    scene.gpus[0]["pids"] = [100, 200]
    scene.add(Proc(900, comm="hog", cmdline=["/bin/hog"], run=3.0, looks=[ON_CPU]))
    scene.play(10)
    incidents, ledger = scene.engine.settled()[0], settled(scene)
    assert len(incidents) == 2
    assert sum(one.regain_gpu_s or 0.0 for one in incidents) <= ledger.gpu_lost_s + 0.01 < sum(one.lost_s for one in incidents)


def test_without_a_gpu_nothing_is_promised():
    scene = sick(training().play(4))
    scene.gpus = {}
    for pid in (100,):
        scene.procs[pid].looks = [HIDDEN]
    verdict = scene.play(8).engine.verdict
    assert (verdict.regain_gpu_s, verdict.speedup_max) == (None, None)


@pytest.mark.parametrize(
    ("cause", "culprits", "said"),
    [
        ("cpu-contention", ["fluent-bit (903)"], "without fluent-bit (903): up to 1.70× as fast; 4.1 GPU s would come back"),
        ("cpu-contention", ["a (1)", "b (2)"], "without a (1) and 1 more: up to 1.70× as fast; 4.1 GPU s would come back"),
        ("slow-transform", [], "without slow-transform: up to 1.70× as fast; 4.1 GPU s would come back"),
        ("straggler-rank", ["train.py (5)"], "without straggler-rank: up to 1.70× as fast; 4.1 GPU s would come back"),
    ],
)
def test_a_bound_is_told_as_one(cause: str, culprits: list[str], said: str):
    assert without(cause, culprits, 4.1, 1.7) == said
    assert without(cause, culprits, None, None) == ""


@pytest.mark.parametrize(("bound", "text"), [(1.044, "up to 1.04×"), (2.51, "up to 2.5×"), (12.4, "up to 12×"), (1.0, ""), (None, "")])
def test_factors_have_as_many_digits_as_they_deserve(bound: float | None, text: str):
    assert factor(bound) == text


def test_explain_tells_the_walk_and_what_would_come_back():
    scene = sick(training().play(4)).play(8)
    found = scene.engine.explain()
    assert [step.pid for step in found.verdict.path] == [100, 101, 900]
    [incident] = found.incidents
    assert incident.path == found.verdict.path
    assert found.verdict.regain_gpu_s == found.ledger.regain[0].regain_gpu_s == pytest.approx(incident.regain_gpu_s)
    assert found.verdict.speedup_max == incident.speedup_max > found.ledger.regain[0].speedup_max == found.ledger.speedup_max
    text = "\n".join(painted(line, on=False) for line in explain_lines(found))
    assert "  way   train.py (100) waits 80 % of the time for worker 0 (101)\n        └ worker 0 (101) is runnable 70 % of that" in text
    assert "without hog (900): up to " in text


def test_the_ledger_tells_causes_by_what_would_come_back_and_all_together():
    ledger = Ledger(10.0, 8.0, {"disk-io": 2.0, "cpu-contention": 4.0, "unexplained": 2.0})
    lines = [painted(line, on=False) for line in ledger_lines(booked(ledger))]
    assert [line.split()[0] for line in lines[1:4]] == ["cpu-contention", "disk-io", "unexplained"]
    assert [line.partition("without it ")[2] for line in lines[1:4]] == ["up to 1.67×", "up to 1.25×", ""]
    assert "without any of these up to 2.5×" in lines[4]


@pytest.mark.parametrize(("seconds", "told"), [
    (0.0, "0"), (0.012, "<0.1"), (0.3, "0.3"), (3.96, "4.0"), (9.94, "9.9"), (9.96, "10"), (123.4, "123"), (1e9, "1000000000"),
])  # fmt: skip
def test_an_amount_has_a_decimal_while_that_matters(seconds: float, told: str) -> None:
    assert amount(seconds) == told
