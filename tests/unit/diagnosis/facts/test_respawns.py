"""What workers that are made anew cost: from their birth until steps are made again, less what steps take with warm ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gputop.diagnosis.facts.respawns import Respawns
from tests.unit.diagnosis.causes import starved
from tests.unit.diagnosis.scene import ON_CPU, Proc, Scene

S = 1_000_000_000
FEED_S = 0.5


def epochs(length_s: float, idle_s: float, count: int = 5, shift_s: float = 0.13) -> Iterator[tuple[float, float]]:
    """(moment, share of the time since the last feed in which steps were made), each epoch beginning with ``idle_s`` without any."""
    moment, steps = 0.0, 0.0
    fine = 0.01
    while moment < count * length_s:
        steps += fine if (moment + shift_s) % length_s >= idle_s else 0.0
        moment = round(moment + fine, 2)
        if round(moment / fine) % round(FEED_S / fine) == 0:
            yield moment, steps / FEED_S
            steps = 0.0


def fed(length_s: float, idle_s: float, per_s: float = 100.0, calls: bool = True, unread_s: float = -1.0) -> Respawns:
    """``unread_s``: when the GPU could not be read."""
    respawns, total = Respawns(), 0.0
    for moment, share in epochs(length_s, idle_s):
        total += per_s * share * FEED_S
        util = None if moment == unread_s else share
        respawns.note(round(moment * S), round(total) if calls else None, 7 if calls else round(total), util)
    for epoch in range(1, 6):
        respawns.note_birth(round((epoch * length_s - 0.13) * S))
    return respawns


@pytest.mark.parametrize("calls", [True, False], ids=["probed", "by /proc"])
@pytest.mark.parametrize(("length_s", "idle_s"), [(5.0, 1.2), (5.0, 0.1), (2.5, 1.0), (2.0, 0.6), (4.0, 2.5)])
def test_births_cost_what_is_missing_to_the_pace_of_warm_workers(length_s: float, idle_s: float, calls: bool):
    cost = fed(length_s, idle_s, calls=calls).cost(round(length_s * S))
    assert cost is not None
    assert cost[0] == pytest.approx(4 * idle_s, rel=0.15, abs=0.2)
    assert cost[1] == pytest.approx(idle_s, rel=0.15, abs=0.05)


@pytest.mark.parametrize("unread_s", [0.5, 1.0, 3.0, 5.5, 8.0])
def test_a_gpu_that_is_not_read_once_is_no_counter(unread_s: float) -> None:
    cost = fed(5.0, 1.2, calls=False, unread_s=unread_s).cost(5 * S)
    assert cost is not None
    assert cost[1] == pytest.approx(1.2, rel=0.2)


@pytest.mark.parametrize("per_s", [4.0, 1000.0])
def test_a_slow_pace_is_none_of_their_doing(per_s: float):
    cost = fed(5.0, 0.1, per_s).cost(5 * S)
    assert cost is not None
    assert cost[0] < 0.1 * 20.0


def test_switches_while_a_dataset_is_pickled_are_no_steps():
    respawns, total = Respawns(), 0.0
    for moment, share in epochs(5.0, 2.0):
        total += 100 * share * FEED_S + 400 * (1 - share) * FEED_S
        respawns.note(round(moment * S), None, round(total), share)
    for epoch in range(1, 6):
        respawns.note_birth(round((5 * epoch - 0.13) * S))
    cost = respawns.cost(5 * S)
    assert cost is not None
    assert cost[1] == pytest.approx(2.0, rel=0.15)


def test_without_a_pace_of_warm_workers_nobody_knows():
    assert fed(0.7, 0.3).cost(0) is None
    assert Respawns().cost(0) is None


def played(util: float, worker: dict, idle_s: float, epoch_s: float = 5.0) -> Scene:
    """Epochs of forked workers after whose birth the GPU idles for a while."""
    scene = starved(util=util, run=0.97, looks=[ON_CPU]).play(3)
    for epoch in range(1, 5):
        for pid in [pid for pid in scene.procs if pid != 100]:
            scene.drop(pid)
        like = {"ppid": 100, "comm": "pt_data_worker", "start_ticks": scene.ticks, "run": 0.97, "looks": [ON_CPU]}
        born = [Proc(1000 * epoch + i, **like) for i in range(2)]
        scene.add(*born)
        if idle_s:
            scene.gpus[0]["util_pct"] = 0.0
            scene.play(idle_s)
        scene.gpus[0]["util_pct"] = util
        for one in born:
            vars(one).update(worker)
        scene.play(epoch_s - idle_s)
    return scene


def test_where_workers_run_flat_out_all_the_time_it_is_their_work_that_is_slow():
    scene = played(6.0, {}, idle_s=0.0)
    scene.cpus = 2
    lost, by_cause = scene.engine.ledger.gpu_lost_s, scene.engine.ledger.by_cause
    assert by_cause.get("worker-respawn", 0.0) < 0.1 * lost
    assert by_cause.get("too-few-workers", 0.0) + by_cause.get("slow-transform", 0.0) > 0.8 * lost
    assert "worker-respawn" not in {incident.cause for incident in scene.engine.incidents}


def test_where_their_start_takes_long_it_is_that():
    scene = played(95.0, {"run": 0.3, "looks": [{"state": "S", "syscall": 7, "syscall_arg": 5000}]}, idle_s=2.0)
    lost, by_cause = scene.engine.ledger.gpu_lost_s, scene.engine.ledger.by_cause
    assert by_cause["worker-respawn"] > 0.8 * lost
    verdict = scene.engine.verdict
    assert "longer than for later ones" in next(one.detail for one in scene.engine.incidents if one.cause == "worker-respawn"), verdict


def test_a_burst_of_queued_steps_behind_a_start_makes_up_for_nothing() -> None:
    """A look a second, which sees start, resumption and burst in a few stretches, finds what two looks a second do."""
    costs = []
    for every in (5, 10):  # tenths of a second
        respawns, total = Respawns(), 0
        for tenth in range(1, 201):
            total += 0 if 121 <= tenth < 135 else 30 if 135 <= tenth < 145 else 10
            if tenth % every == 0:
                respawns.note(tenth * S // 10, total, None, None)
        respawns.note_birth(121 * S // 10)
        cost = respawns.cost(0)
        assert cost is not None
        costs.append(cost[0])
    assert costs == pytest.approx([1.4, 1.4], abs=0.45)
