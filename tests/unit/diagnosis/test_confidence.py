"""How sure a verdict is, where two causes are near, and that no second of a GPU is lost from the books."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gputop.diagnosis.engine import Engine
from gputop.diagnosis.facts.facts import JobFacts
from gputop.diagnosis.symptoms import Standing, judge_job
from gputop.findings import policy
from gputop.findings.nexttest import COME_AND_GO, LINES, LOADED, LONG_S, SWITCHED, TESTS, TRACED, UNKNOWN, WAITS, Doubt, next_test
from gputop.findings.path import certainty
from gputop.findings.policy import NOBODY
from gputop.findings.verdict import OWN_CAUSES, total
from gputop.prove.interventions import NONE
from tests.unit.diagnosis.all_causes import ALL
from tests.unit.diagnosis.causes import cpu_contention, preprocessing, too_few
from tests.unit.diagnosis.scene import EPOLL, Proc, Scene


def standing(scene: Scene) -> Standing:
    [one] = scene.play(6).engine.standing.values()
    return one


def with_shares(one: Standing, **shares: float) -> Standing:
    """The standing, were the loss divided like that."""
    job = replace(one.job, claims=[replace(claim, share=shares.pop("own")) for claim in one.job.claims if claim.cause == one.cause])
    found = judge_job(job, one.facts, one.phase)
    found.shares |= {cause.replace("_", "-"): share for cause, share in shares.items()}
    return found


def test_a_cause_that_holds_more_than_all_else_is_surer():
    known = [certainty(margin) for margin in (-0.5, 0.0, 0.1, 0.3, 0.5, 1.0)]
    assert known == sorted(known)
    assert (known[0], known[-1]) == (0.0, 1.0)
    one = standing(too_few())
    alone, beside, unexplained = (with_shares(one, **parts) for parts in ({"own": 0.98}, {"own": 0.5, "slow_transform": 0.4}, {"own": 0.5}))
    assert alone.verdict.confidence > 0.9
    assert beside.verdict.confidence < 0.6
    assert unexplained.verdict.confidence < 0.6


@pytest.mark.parametrize(
    ("make", "test", "probed"),
    [(cpu_contention, "sudo gputop", "gputop prove 100 --cause cpu-contention"),
     (preprocessing, "sudo gputop", "gputop stacks 100 --duration 10")],
)  # fmt: skip
def test_where_two_causes_are_near_both_stand_with_the_test_that_tells_them_apart(make: Callable[[], Scene], test: str, probed: str):
    one = with_shares(standing(make()), own=0.45, disk_io=0.4)
    assert one.near == one.verdict.near == "disk-io"
    assert "or disk-io, which holds 40% of the loss" in one.verdict.detail
    assert proposed(one, watched_s=90.0) == test
    assert proposed(one, watched_s=6.0) == "gputop explain --last 60s", "a disk may be busy for a while"
    assert proposed(one, watched_s=90.0, probed=True) == probed
    inside = with_shares(standing(preprocessing()), own=0.45, gil_contention=0.4)
    assert proposed(inside, watched_s=6.0, probed=True) == "gputop stacks 100 --duration 10"
    far = with_shares(standing(make()), own=0.7, disk_io=0.25)
    assert far.near is far.verdict.near is far.verdict.next_test is None
    assert "disk-io" not in far.verdict.detail


def proposed(one: Standing, **facts: object) -> str:
    """The command of the next test of a standing, with other facts."""
    test = replace(one, facts=replace(one.facts, **facts)).verdict.next_test
    assert test is not None
    assert test.look
    return test.command


def test_a_cause_beside_an_unexplained_rest_and_a_loss_without_cause_have_a_next_test():
    half = with_shares(standing(preprocessing()), own=0.5)
    assert (half.near, half.rival) == (None, UNKNOWN)
    assert proposed(half, watched_s=90.0) == "sudo gputop"
    unknown = next_test(Doubt(UNKNOWN, "", 100, probed=True, watched_s=90.0))
    assert unknown is not None
    assert unknown.command == "gputop stacks 100 --duration 10"


@pytest.mark.parametrize(("cause", "other"), [
    ("cpu-contention", "disk-io"), ("small-kernels", "undersized-work"), ("too-few-workers", "slow-transform"), ("affinity", "numa-remote"),
    ("gil-contention", "unexplained"), ("comm-fallback", "slow-wire"), ("worker-oversubscription", "too-few-workers"),
])  # fmt: skip
def test_the_next_test_is_the_cheapest_that_is_possible(cause: str, other: str):
    """Whatever was done already is not proposed again, and each proposal is dearer than the last."""
    tables = [(COME_AND_GO, "--last"), (WAITS, "sudo"), (LINES, "stacks"), (SWITCHED, "prove"), (LOADED, "loader"), (TRACED, "trace")]
    assert [test.shows for test in TESTS] == [causes for causes, _ in tables]
    last = -1
    for probed, watched_s in ((False, 5.0), (False, LONG_S), (True, LONG_S)):
        test = next_test(Doubt(cause, other, 7, probed, watched_s))
        assert test is not None
        place = next(i for i, (_, word) in enumerate(tables) if word in f"{test.command} {test.text}")
        assert place >= last
        assert (place, probed) != (1, True)
        assert (place, watched_s) != (0, LONG_S)
        assert {cause, other} & {*tables[place][0]}
        assert all(name in test.text for name in {cause, other} - {UNKNOWN})
        last = place


def test_causes_that_nothing_distinguishes_have_no_next_test():
    assert next_test(Doubt("small-kernels", "comm-fallback", 7, probed=True, watched_s=90.0, traced=True)) is None
    assert next_test(Doubt("kv-full", "gpu-lost", 7, probed=True, watched_s=90.0)) is None
    assert {cause for test in TESTS for cause in test.shows} <= {*OWN_CAUSES}


def test_what_gputop_prove_can_switch_off_is_what_it_is_asked_for():
    assert {*SWITCHED} == {*OWN_CAUSES} - {*NONE}


def test_a_program_of_a_kind_that_was_hardly_learnt_from_is_judged_with_care():
    scene, torch = preprocessing().drop(101, 102), preprocessing().drop(101, 102)
    scene.procs[100].info["libs"], torch.procs[100].info["libs"] = ["cuda"], ["cuda", "torch"]
    told, known = scene.play(6).engine.verdict, torch.play(6).engine.verdict
    assert told.cause == known.cause
    assert told.confidence == pytest.approx(policy.UNLEARNT * known.confidence, abs=0.02)


@pytest.mark.parametrize(("libs", "util", "changes"), [(["cuda"], 82.0, False), (["cuda"], 20.0, True), (["cuda", "torch"], 82.0, True)])
def test_a_slight_loss_of_an_unfamiliar_program_is_no_reason_to_change_anything(libs: list[str], util: float, changes: bool):
    scene = preprocessing().drop(101, 102)
    scene.procs[100].info["libs"], scene.gpus[0]["util_pct"] = libs, util
    verdict = scene.play(8).engine.verdict
    [incident] = [one for one in scene.engine.incidents if one.cause == verdict.cause]
    assert verdict.cause == "main-thread-preprocessing"
    assert incident.severity in (("medium", "high") if util < 50.0 else ("low",))
    for fixes in (verdict.fixes, incident.fixes):
        assert fixes
        assert any(not fix.look for fix in fixes) == changes


def asked_seldom() -> Scene:
    """A training, and a server that works and then waits to be asked."""
    scene = too_few()
    scene.gpus[1] = {"util_pct": 95.0, "power_w": 400.0, "power_limit_w": 700.0, "pids": [500]}
    scene.add(Proc(500, cmdline=["python", "serve.py"], run=0.3, looks=[EPOLL], info={"uses_cuda": True, "sockets": "listening"})).play(6)
    scene.procs[500].run, scene.gpus[1]["util_pct"] = 0.0, 0.0
    return scene.play(20)


def ended() -> Scene:
    scene = cpu_contention().play(6)
    scene.gpus[0] |= {"util_pct": 0.0, "pids": []}
    return scene.drop(100, 101, 102).play(6)


def test_each_second_of_a_gpu_is_booked_once_or_idle(monkeypatch: pytest.MonkeyPatch):
    """Whatever is called a start, idle or an end: what is booked to causes, what nobody explains, work and idle time are together all
    the seconds for which a trainer had the GPU."""
    noted = Engine._note_time
    seen: dict[int, float] = {}

    def note(engine: Engine, job: JobFacts, t_ns: int, seconds: float) -> None:
        before = len(engine._pending.get(job.trainer.pid, ()))
        noted(engine, job, t_ns, seconds)
        added = engine._pending.get(job.trainer.pid, [])[before:]
        seen[id(engine)] = seen.get(id(engine), 0.0) + sum(part.own_whole_s for part in added)

    monkeypatch.setattr(Engine, "_note_time", note)
    idle_s = 0.0
    for make in (*ALL, asked_seldom, ended):
        engine = make().play(6, 1.0).engine
        ledgers = engine.settled()[1].values()
        for ledger in ledgers:
            assert sum(ledger.by_cause.values()) == pytest.approx(ledger.gpu_lost_s, abs=1e-6), make.__name__
            assert all(part >= -1e-9 for part in ledger.by_cause.values()), make.__name__
            assert ledger.gpu_lost_s <= ledger.gpu_total_s + 1e-6, make.__name__
        lost_by_nobody = engine.ledgers[NOBODY].gpu_total_s if NOBODY in engine.ledgers else 0.0
        whole = total(ledgers)
        assert whole.gpu_total_s - lost_by_nobody + whole.gpu_idle_s == pytest.approx(seen.get(id(engine), 0.0), abs=1e-6), make.__name__
        assert engine.explain().ledger.gpu_idle_s in (None, pytest.approx(whole.gpu_idle_s, abs=0.001)), make.__name__
        idle_s += whole.gpu_idle_s
        seen.clear()
    assert idle_s > 10.0
