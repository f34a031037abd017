"""GPUs that are lost: one incident each, from when they went until they are back, with and without somebody who uses them."""

from __future__ import annotations

import pytest

from gputop.findings.policy import NOBODY
from gputop.findings.trouble import notice
from gputop.findings.verdict import GPU_LOST, LOOKING, Incident
from gputop.model.frame import SourceState
from gputop.model.gpu import SILENT
from gputop.model.xids import ACTIONS, ENDING_XIDS, XIDS, meaning_of
from tests.unit.diagnosis.causes import cpu_contention
from tests.unit.diagnosis.scene import AWAIT, FUTEX, ON_CPU, Proc, Scene, training

FIELDS = ("util_pct", "power_w", "procs", "mem_used_bytes", "sm_clock_mhz", "throttle_mask", "energy_mj")
WHOSE = {"name": "NVIDIA H200", "uuid": "GPU-5713c0de", "pci_bus_id": "00000000:10:00.0"}


def machine(gpus: int = 1) -> Scene:
    """A healthy training on GPU 0, after some seconds; further GPUs rest."""
    scene = training(run=0.3)
    scene.gpus[0] |= WHOSE
    for index in range(1, gpus):
        scene.gpus[index] = {"util_pct": 0.0, **WHOSE, "uuid": f"GPU-{index}"}
    return scene.play(6)


def lose(scene: Scene, index: int = 0, xid: int | None = 79, reason: str = "GPU lost: it has fallen off the bus or been removed") -> Scene:
    """As the driver does it: the Xid comes, and nothing else any more."""
    held = scene.gpus[index].get("pids", [])
    known = {name: scene.gpus[index][name] for name in WHOSE if name in scene.gpus[index]}
    scene.gpus[index] = {"lost": True, "missing": dict.fromkeys(FIELDS, reason), "held_by": list(held), "procs": None, **known}
    if xid is not None:
        scene.gpus[index] |= {"xid": xid}
    return scene


def find(scene: Scene, index: int = 0) -> Incident:
    [one] = [one for one in scene.engine.incidents if one.cause == GPU_LOST and one.gpu == index and one.end_ns is None]
    return one


def test_it_is_an_incident_that_names_gpu_job_and_xid_and_all_its_seconds_are_lost():
    scene = lose(machine()).play(10)
    verdict, one = scene.engine.verdict, find(scene)
    assert (verdict.symptom, verdict.cause, verdict.severity, verdict.gpu, verdict.trainer_pid) == ("idle", GPU_LOST, "high", 0, 100)
    assert verdict.headline == one.headline == "GPU 0 is lost: it has fallen off the bus (Xid 79); train.py (100) cannot go on"
    assert (one.symptom, one.severity, one.trainer_pid, one.confidence) == ("idle", "high", 100, 1.0)
    assert all(word in one.detail for word in ("NVIDIA H200", "GPU-5713c0de", "00000000:10:00.0", "train.py (100)"))
    assert {victim.pid for victim in one.victims} == {100, 101, 102}
    assert {item.metric: item.value for item in one.evidence}["xid"] == 79.0
    found = scene.engine.explain()
    [told] = [told for told in found.incidents if told.cause == GPU_LOST]
    assert found.verdict.cause == GPU_LOST
    assert found.ledger.by_cause[GPU_LOST] == pytest.approx(10.0, abs=0.5)
    assert told.gpu_lost_s == told.regain_gpu_s == pytest.approx(found.ledger.by_cause[GPU_LOST], abs=0.01)
    assert found.trainers[0].ledger.by_cause[GPU_LOST] == pytest.approx(told.gpu_lost_s, abs=0.01)


def test_a_reset_is_a_command_only_where_nobody_uses_it():
    scene = lose(machine()).play(5)
    commands = [fix.command for fix in find(scene).fixes]
    assert not any("nvidia-smi" in command for command in commands)
    assert any("dmesg" in command for command in commands)
    assert any("(100)" in fix.text for fix in find(scene).fixes)
    scene.drop(100, 101, 102).play(5)
    assert "sudo nvidia-smi --gpu-reset -i 0" in [fix.command for fix in find(scene).fixes]


def test_it_is_one_incident_whether_its_job_lives_on_or_ends():
    scene = lose(machine()).play(5).drop(100, 101, 102).play(20)
    one = find(scene)
    assert len([one for one in scene.engine.incidents if one.cause == GPU_LOST]) == 1
    assert one.trainer_pid == 100
    assert one.headline.endswith("train.py (100) used it, and has ended")
    found = scene.engine.explain()
    assert found.ledger.by_cause[GPU_LOST] == pytest.approx(25.0, abs=2.0)
    assert scene.engine.ledgers[NOBODY].gpu_lost_s == pytest.approx(20.0, abs=1.0)
    assert scene.engine.verdict.cause == GPU_LOST


def test_a_job_that_dies_of_it_at_once_is_named_all_the_same():
    one = find(lose(machine()).drop(100, 101, 102).play(5))
    assert (one.trainer_pid, {victim.pid for victim in one.victims}) == (100, {100, 101, 102})


def test_one_that_nobody_uses_is_told_beside_a_training_that_is_well():
    scene = lose(machine(2), 1).play(20)
    assert find(scene, 1).headline == "GPU 1 is lost: it has fallen off the bus (Xid 79)"
    assert find(scene, 1).trainer_pid is None
    assert scene.engine.verdict.gpu == 1
    assert scene.engine.explain().ledger.by_cause[GPU_LOST] == pytest.approx(20.0, abs=0.5)
    assert scene.engine.standing[100].cause == "none"


def test_and_stands_as_a_notice_beside_a_job_that_is_at_fault():
    scene = cpu_contention()
    scene.gpus[1] = {"util_pct": 0.0, **WHOSE}
    lose(scene.play(4), 1).play(10)
    assert scene.engine.verdict.cause == "cpu-contention"
    assert notice(scene.engine.incidents, scene.engine.verdict) == ("GPU 1 is lost", "high")
    assert find(scene, 1).severity == "high"


def test_it_is_over_when_the_gpu_is_back_and_begins_anew_when_it_goes_again():
    scene = lose(machine()).play(5)
    back = {"lost": False, "needs_reset": False, "util_pct": 95.0, "power_w": 600.0, "pids": [100], "xid": 79, **WHOSE}
    scene.gpus[0] = back
    scene.play(6)
    [first] = [one for one in scene.engine.incidents if one.cause == GPU_LOST]
    assert first.end_ns is not None
    assert first.lost_s == pytest.approx(5.0, abs=0.5)
    assert scene.engine.explain().what_if == []
    assert 4.0 <= (first.end_ns - first.start_ns) / 1e9 <= 6.0
    assert scene.engine.verdict.cause == "none"
    assert lose(scene).play(5).engine.incidents[-1].cause == GPU_LOST
    assert len([one for one in scene.engine.incidents if one.cause == GPU_LOST]) == 2


def test_two_gpus_have_an_incident_each():
    scene = lose(lose(machine(3), 0), 2, xid=None).play(6)
    assert find(scene, 0).id != find(scene, 2).id
    assert find(scene, 2).headline == "GPU 2 is lost: it has fallen off the bus, or was removed"


def test_one_that_was_lost_from_the_start_is_told():
    scene = lose(Scene(gpus={0: {}}), xid=None).play(4)
    assert scene.engine.verdict.cause == GPU_LOST
    assert find(scene).detail == ""


def silent(scene: Scene, seconds: float, known: bool = True) -> Scene:
    """No call returns for so long; each second the source says for how long."""
    for second in range(1, round(seconds) + 1):
        whose = {"held_by": [100], **WHOSE} if known else {}
        scene.gpus[0] = {"missing": dict.fromkeys(FIELDS, f"{SILENT}{second} s"), "procs": None, **whose}
        scene.play(1)
    return scene


def test_a_driver_that_does_not_come_back_is_one_too():
    scene = silent(machine(), 4)
    assert [one for one in scene.engine.incidents if one.cause == GPU_LOST] == []
    silent_for = silent(scene, 20)
    assert find(silent_for).headline.startswith("GPU 0 is lost: no call to the driver about it has returned for 20 s; train.py (100)")
    assert find(silent_for).confidence < 1.0
    assert scene.engine.explain().ledger.by_cause[GPU_LOST] >= 18.0


def test_a_driver_that_is_just_started_is_waited_for_longer():
    scene = Scene(gpus={0: {}})
    assert silent(scene, 20, known=False).engine.incidents == []
    assert find(silent(scene, 35, known=False)).gpu == 0


def test_calls_that_fail_are_no_loss():
    scene = machine()
    scene.gpus[0] = {"missing": dict.fromkeys((*FIELDS, "lost"), "the driver failed: Unknown Error"), "held_by": [100]}
    assert scene.play(12).engine.incidents == []


@pytest.mark.parametrize("xid", sorted(ENDING_XIDS))
def test_an_xid_that_asks_for_a_reset_counts_before_the_driver_says_lost(xid: int):
    scene = machine()
    scene.gpus[0] |= {"util_pct": 0.0, "xid": xid, "needs_reset": True}
    one = find(scene.play(6))
    assert f"(Xid {xid})" in one.headline
    assert one.headline.endswith("train.py (100) cannot go on")
    assert scene.engine.verdict.cause == GPU_LOST


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 48, 63, 64, 74, 94, 109])
def test_other_xids_do_not(xid: int):
    scene = machine()
    scene.gpus[0] |= {"xid": xid, "needs_reset": False}
    assert scene.play(6).engine.incidents == []
    assert scene.engine.verdict.cause == "none"


def test_one_that_works_on_though_a_reset_is_asked_for_is_told_and_loses_nothing():
    scene = machine()
    scene.gpus[0] |= {"xid": 119, "needs_reset": True}
    one = find(scene.play(10))
    assert one.headline.startswith("GPU 0 must be reset, though it still works")
    assert (one.severity, one.lost_s, one.symptom) == ("high", 0.0, "healthy")
    assert GPU_LOST not in scene.engine.explain().ledger.by_cause
    assert scene.engine.standing[100].cause == "none"


def ranks() -> Scene:
    scene = Scene()
    for rank in (0, 1):
        scene.gpus[rank] = {"util_pct": 97.0, "power_w": 600.0, "pids": [200 + rank], **WHOSE}
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        scene.add(Proc(200 + rank, 10, run=0.2, looks=[FUTEX], info={"uses_cuda": True, "env": env}))
    return scene.play(8)


def test_ranks_that_stand_with_the_one_that_lost_its_gpu_lose_theirs_to_it():
    scene = lose(ranks(), 1)
    for proc in scene.procs.values():
        proc.run, proc.switches, proc.looks = 0.0, 0, [AWAIT]
    scene.gpus[0] |= {"util_pct": 0.0, "power_w": 75.0}
    scene.play(25)
    assert {one.cause for one in scene.engine.standing.values()} == {GPU_LOST}
    assert "another rank's GPU 1 is lost" in scene.engine.standing[200].verdict.why
    assert scene.engine.explain().ledger.by_cause[GPU_LOST] >= 40.0
    assert [one.cause for one in scene.engine.incidents if one.end_ns is None] == [GPU_LOST]


def test_the_incidents_of_lost_gpus_have_the_ledgers_seconds():
    scene = lose(machine(2)).play(3)
    lose(scene, 1, xid=None)
    scene.add(Proc(300, 10, run=0.3, looks=[ON_CPU], info={"uses_cuda": True})).play(7)
    found = scene.engine.explain()
    booked = sum(one.gpu_lost_s for one in found.incidents if one.cause == GPU_LOST)
    assert booked == pytest.approx(found.ledger.by_cause[GPU_LOST], abs=0.05)


def test_a_driver_that_never_starts_is_told_and_no_absence_of_gpus():
    scene = Scene()
    scene.board.sources["nvml"] = SourceState("nvml", "partial", "the driver has not answered yet")
    scene.play(10)
    assert (scene.engine.verdict.symptom, scene.engine.incidents) == (LOOKING, [])
    assert "has not answered" in scene.engine.verdict.headline
    [one] = scene.play(25).engine.incidents
    assert (one.cause, one.severity, one.gpu, one.lost_s) == (GPU_LOST, "high", None, 0.0)
    assert scene.engine.verdict.headline == one.headline
    scene.gpus[0] = {"util_pct": 0.0, "lost": False}
    scene.board.sources["nvml"] = SourceState("nvml", "ok")
    scene.play(2)
    assert one.end_ns is not None


def test_every_xid_of_the_table_has_a_meaning_that_fits_and_an_action():
    assert {xid.action for xid in XIDS.values()} == ACTIONS.keys()
    assert all(0 < number < 256 and 0 < len(xid.meaning) <= 60 for number, xid in XIDS.items())
    assert (meaning_of(31), meaning_of(9999), meaning_of(None)) == ("a kernel used an address that is not mapped", None, None)


def test_a_driver_that_asks_for_a_reboot_is_not_answered_with_a_reset():
    scene = machine()
    scene.gpus[0] |= {"util_pct": 0.0, "xid": 119, "needs_reset": True}
    scene.drop(100, 101, 102).play(6)
    scene.gpus[0]["pids"] = []
    assert any("gpu-reset" in fix.command for fix in find(scene.play(6)).fixes)
    scene.gpus[0] |= {"recovery_action": 2}
    verdict = scene.play(6).engine.verdict
    assert not any("gpu-reset" in fix.command for fix in verdict.fixes)
    assert any(fix.text.startswith("Reboot") for fix in verdict.fixes)
    assert {item.metric: item.value for item in verdict.evidence}["recovery_action"] == 2
