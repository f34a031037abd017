"""Memory that grows: when it is told, of whom, how long it lasts, and when nothing is said."""

from __future__ import annotations

from collections.abc import Callable
from math import exp

import pytest

from gputop.findings.trouble import growing
from gputop.findings.verdict import GPU_GROWTH, GROWTHS, HOST_GROWTH, Incident
from tests.unit.diagnosis.scene import Proc, Scene, training

MIB, GIB = 1 << 20, 1 << 30
ROOM = 8 * GIB


def machine(**worker: object) -> Scene:
    """A healthy training for some time, with 8 GiB of memory that are available."""
    scene = training(run=0.2, **worker)
    scene.gauges = {"mem_available_bytes": ROOM}
    scene.gpus[0] |= {"mem_total_bytes": 80 * GIB, "mem_used_bytes": 20 * GIB}
    for proc in scene.procs.values():
        proc.anon_bytes = 400 * MIB
    return scene.play(3)


def live(scene: Scene, seconds: int, at: Callable[[int], None]) -> Scene:
    """Let time pass; ``at`` changes the scene each second."""
    for second in range(seconds):
        at(second)
        scene.play(1, step_s=0.5)
    return scene


def growths(scene: Scene) -> list[Incident]:
    return [one for one in scene.engine.incidents if one.cause in GROWTHS]


def leaking(scene: Scene, mib_per_s: float, *pids: int) -> Callable[[int], None]:
    before = {pid: scene.procs[pid].anon_bytes or 0 for pid in pids}

    def at(second: int) -> None:
        for pid in pids:
            scene.procs[pid].anon_bytes = before[pid] + int((second + 1) * mib_per_s * MIB)

    return at


def test_workers_that_keep_what_they_read_are_told_within_half_a_minute():
    scene = machine()
    live(scene, 30, leaking(scene, 20, 101, 102))
    [incident] = growths(scene)
    assert (incident.cause, incident.severity, incident.trainer_pid, incident.gpu) == (HOST_GROWTH, "high", 100, None)
    assert incident.end_ns is None
    assert {victim.pid for victim in incident.victims} == {101, 102}
    assert incident.headline.startswith("2 workers of train.py (100) grow by 2.3 GiB a minute: out of memory in 3 min")
    values = {item.metric: item.value for item in incident.evidence}
    assert values["growth_bytes_per_s"] == pytest.approx(40 * MIB, rel=0.05)
    assert values["time_left_s"] == pytest.approx(ROOM / 40 / MIB, rel=0.05)
    assert values["room_bytes"] == ROOM
    assert values["copied_pct"] is None
    assert "cache" in incident.fixes[0].text
    assert growing(scene.engine.incidents) == ("memory ends in 3 min", "high")


def test_it_is_no_verdict_and_costs_nothing():
    scene = machine()
    live(scene, 40, leaking(scene, 20, 101, 102))
    assert (scene.engine.verdict.symptom, scene.engine.verdict.cause) == ("healthy", "none")
    found = scene.engine.explain()
    assert (found.verdict.symptom, found.verdict.cause) == ("healthy", "none")
    assert [one.cause for one in found.incidents] == [HOST_GROWTH]
    assert HOST_GROWTH not in found.ledger.by_cause


def test_copies_of_shared_pages_are_growth_that_resident_memory_does_not_show():
    scene = machine(shared_bytes=4 * GIB)

    def copy(second: int) -> None:
        for pid in (101, 102):
            scene.procs[pid].shared_bytes = 4 * GIB - second // 2 * 40 * MIB

    live(scene, 40, copy)
    [incident] = growths(scene)
    assert {item.metric: item.value for item in incident.evidence}["copied_pct"] == 100
    assert "numpy" in incident.fixes[0].text
    assert {victim.pid for victim in incident.victims} == {101, 102}


def test_the_first_reading_of_what_is_shared_is_no_change():
    scene = machine()

    def told(second: int) -> None:
        for pid in (101, 102) if second > 10 else ():
            scene.procs[pid].shared_bytes = 300 * MIB

    assert growths(live(scene, 60, told)) == []


def test_a_trainer_that_keeps_its_losses():
    scene = machine().drop(101, 102)
    live(scene, 30, leaking(scene, 40, 100))
    [incident] = growths(scene)
    assert incident.headline.startswith("train.py (100) grows by 2.3 GiB a minute")
    assert [victim.pid for victim in incident.victims] == [100]
    assert any(".item()" in fix.command for fix in incident.fixes)


def on_gpu(scene: Scene, held: Callable[[int], int]) -> Callable[[int], None]:
    def at(second: int) -> None:
        scene.gpus[0] |= {"held": {100: held(second)}, "mem_used_bytes": held(second) + GIB}

    return at


def test_gpu_memory_that_grows_is_told_with_what_is_left_of_that_gpu():
    scene = machine()
    scene.gpus[0]["held"] = {100: 60 * GIB}
    live(scene.play(30, step_s=0.5), 30, on_gpu(scene, lambda second: 60 * GIB + second * 200 * MIB))
    [incident] = growths(scene)
    assert (incident.cause, incident.gpu, incident.severity) == (GPU_GROWTH, 0, "high")
    assert "grows on GPU 0" in incident.headline
    assert "out of GPU memory in" in incident.headline
    assert "GPU 0 are free" in incident.detail
    assert any("expandable_segments" in fix.command for fix in incident.fixes)
    assert growing(scene.engine.incidents)[0].startswith("GPU 0 memory ends in ")


def test_while_a_training_warms_up_its_gpu_memory_may_grow():
    scene = machine()
    assert growths(live(scene, 45, on_gpu(scene, lambda second: int(20 * GIB * 1.06 ** min(second, 24))))) == []


def test_where_the_driver_lists_no_process_all_that_is_used_of_the_gpu_counts():
    scene = machine()
    live(scene, 40, lambda second: scene.gpus[0].update(mem_used_bytes=60 * GIB + second * 200 * MIB))
    assert [one.cause for one in growths(scene)] == [GPU_GROWTH]


def test_of_a_gpu_that_shares_the_hosts_memory_the_room_is_the_hosts():
    scene = machine()
    scene.gpus[0] |= {"held": {100: 60 * GIB}, "mem_shared": True}
    live(scene.play(30, step_s=0.5), 30, on_gpu(scene, lambda second: 60 * GIB + second * 200 * MIB))
    [incident] = growths(scene)
    assert (incident.cause, incident.gpu) == (GPU_GROWTH, 0)
    assert "8.0 GiB of the host's memory are available" in incident.detail


def test_and_what_others_take_of_it_is_no_growth_of_the_trainer():
    scene = machine()
    scene.gpus[0]["mem_shared"] = True
    live(scene, 40, lambda second: scene.gpus[0].update(mem_used_bytes=60 * GIB + second * 200 * MIB))
    assert growths(scene) == []


def test_an_allocators_steps_are_none():
    scene = machine()
    assert growths(live(scene, 120, on_gpu(scene, lambda second: 70 * GIB + second // 40 * GIB))) == []


def test_a_cache_that_fills_to_its_bound_is_none():
    scene = machine()

    def fill(second: int) -> None:
        scene.procs[101].anon_bytes = 400 * MIB + int(3 * GIB * (1 - exp(-second / 15)))

    assert growths(live(scene, 120, fill)) == []


def test_growth_is_told_once_it_has_taken_a_tenth_of_what_was_free():
    scene = machine()
    grow = leaking(scene, 4, 101, 102)
    assert growths(live(scene, 80, grow)) == []
    live(scene, 140, lambda second: grow(80 + second))
    [incident] = growths(scene)
    assert incident.severity == "medium"
    grown, left = (next(item.value for item in incident.evidence if item.metric == name) for name in ("grown_bytes", "room_bytes"))
    assert grown is not None
    assert left is not None
    assert grown > left / 11


def test_a_limit_of_the_cgroup_may_end_first():
    scene = machine()
    scene.cgroups["/job"] = {"mem_limit_bytes": 3 * GIB, "mem_bytes": 2 * GIB, "mem_file_bytes": GIB // 2}
    live(scene, 30, leaking(scene, 20, 101, 102))
    [incident] = growths(scene)
    assert "cgroup /job" in incident.detail
    assert {item.metric: item.value for item in incident.evidence}["room_bytes"] == 1.5 * GIB


def test_with_free_swap_the_host_swaps_first():
    scene = machine()
    scene.gauges["swap_free_bytes"] = 2 * GIB
    live(scene, 30, leaking(scene, 20, 101, 102))
    assert "swapping begins in" in growths(scene)[0].headline


def test_what_has_stopped_growing_ends_and_says_so():
    scene = machine()
    live(scene, 40, leaking(scene, 20, 101, 102))
    live(scene, 40, lambda _: None)
    [incident] = growths(scene)
    assert incident.end_ns is not None
    assert incident.headline == "2 workers of train.py (100) grow by 2.3 GiB a minute, and then no more"
    assert growing(scene.engine.incidents) == ("", "")


def test_a_trainer_that_is_killed_ends_it():
    scene = machine()
    live(scene, 40, leaking(scene, 20, 101, 102))
    live(scene.drop(100, 101, 102), 3, lambda _: None)
    assert growths(scene)[0].end_ns is not None


def test_two_that_fill_the_same_room_fill_it_sooner():
    scene = machine()
    live(scene, 30, leaking(scene, 20, 100, 101, 102))
    left = [one.evidence[0].value for one in growths(scene)]
    assert left == [pytest.approx(ROOM / 60 / MIB, rel=0.05)] * 2
    assert growths(scene)[0].evidence[0].text == "at the rates of the 2 that grow there"


def test_workers_that_are_made_anew_give_back_what_they_had():
    scene, fresh = machine(), iter(range(200, 400))

    def epoch(second: int) -> None:
        if second % 40 == 0:
            for pid in [pid for pid, proc in scene.procs.items() if proc.ppid == 100]:
                scene.drop(pid)
            for _ in range(2):
                pid = next(fresh)
                scene.add(Proc(pid, ppid=100, comm="pt_data_worker", start_ticks=scene.ticks, run=0.2, anon_bytes=400 * MIB))
        for proc in scene.procs.values():
            if proc.ppid == 100:
                proc.anon_bytes = (proc.anon_bytes or 0) + 4 * MIB

    live(scene, 200, epoch)
    assert growths(scene) == []


def test_workers_that_import_one_after_the_other_are_none():
    scene = machine()

    def start(second: int) -> None:
        if second % 9 == 0:
            scene.add(Proc(200 + second, ppid=100, comm="pt_data_worker", start_ticks=scene.ticks, run=0.9, anon_bytes=0))
        newest = scene.procs[200 + second // 9 * 9]
        newest.anon_bytes = (newest.anon_bytes or 0) + 60 * MIB

    assert growths(live(scene, 50, start)) == []


def test_a_start_is_none():
    scene = training(util=0.0, run=0.9)
    scene.gauges = {"mem_available_bytes": ROOM}
    for proc in scene.procs.values():
        proc.anon_bytes, proc.start_ticks = 0, scene.ticks
    assert growths(live(scene, 28, leaking(scene, 100, 100, 101, 102))) == []


def test_what_is_loaded_while_the_gpu_rests_is_none():
    scene = machine()
    scene.gpus[0]["util_pct"] = 0.0
    live(scene, 60, leaking(scene, 40, 100))
    scene.gpus[0]["util_pct"] = 100.0
    assert growths(live(scene, 60, lambda _: None)) == []


def test_a_model_that_is_loaded_for_minutes_before_the_first_step_is_none():
    scene = training(util=0.0, run=0.9)
    scene.gauges = {"mem_available_bytes": ROOM}
    for proc in scene.procs.values():
        proc.anon_bytes = 0
    assert growths(live(scene, 60, leaking(scene, 40, 100))) == []


def test_nothing_is_said_where_memory_is_not_read():
    scene = machine()
    for proc in scene.procs.values():
        proc.anon_bytes = None
    assert growths(live(scene, 40, lambda _: scene.gauges.clear())) == []


def test_batches_that_are_kept_fill_shared_memory():
    scene = machine()
    scene.gauges |= {"shm_total_bytes": 4 * GIB, "shm_free_bytes": 4 * GIB}
    live(scene, 30, lambda second: scene.gauges.update(shm_free_bytes=4 * GIB - second * 30 * MIB))
    [incident] = growths(scene)
    assert incident.headline.startswith("/dev/shm, where train.py (100) has its batches, grows by 1.8 GiB a minute: out of room in ")
    assert "are free in /dev/shm" in incident.detail
    assert incident.fixes[0].command == "kept.append(batch.clone())"


def test_incidents_have_numbers_of_their_own():
    scene = machine()
    live(scene, 40, leaking(scene, 20, 100, 101, 102))
    assert len({one.id for one in scene.engine.incidents}) == len(scene.engine.incidents) == 2
