"""sync-storm without the probe: who sleeps often need not wait for the GPU."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis.causes_gpu import sync_storm


@pytest.mark.parametrize(("sleeps", "batches", "written", "is_storm"), [
    (1500, 40, 0, True), (900, 45, 0, False), (1500, 40, 3_000_000, False), (1500, 40, 300_000, True),
])  # fmt: skip
def test_sleeps_are_a_storm_where_steps_and_writes_do_not_make_them(sleeps: int, batches: int, written: int, is_storm: bool):
    """Two workers with so many batches each."""
    scene = sync_storm()
    scene.procs[100].switches, scene.procs[100].write_bytes = sleeps, written
    for pid in (101, 102):
        scene.procs[pid].switches = batches
    assert (scene.play(6).engine.verdict.cause == "sync-storm") == is_storm
