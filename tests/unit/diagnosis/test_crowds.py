"""One among many workers: what it owes is a small part of what all do, and yet everything waits for it."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis.scene import FUTEX, QUEUE, READ, training


@pytest.mark.parametrize("workers", [4, 20, 64])
@pytest.mark.parametrize("look", [QUEUE, READ], ids=["no batch comes", "the memory of one that came is asked for"])
def test_a_stopped_worker_is_found_among_any_number(workers: int, look: dict):
    scene = training(workers, util=98.0, run=0.1)
    scene.procs[100].looks = [FUTEX]
    scene.play(4)
    scene.gpus[0]["util_pct"] = 0.0
    scene.procs[100].run, scene.procs[100].looks, scene.procs[100].switches = 0.0, [look], 0
    for pid in range(101, 101 + workers):
        scene.procs[pid].run, scene.procs[pid].switches = 0.0, 0
    scene.procs[101].looks = [{"state": "T"}]
    verdict = scene.play(8).engine.verdict
    assert (verdict.symptom, verdict.cause, verdict.fixes[0].command) == ("input-bound", "hung-worker", "kill -CONT 101")
    assert [victim.pid for victim in verdict.victims] == [101]
