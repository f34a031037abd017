"""A trainer on a MIG device is judged by what that does, not by what the GPU does that it is a part of."""

from __future__ import annotations

import pytest

from gputop.model.frame import GpuProc, MigInstance
from tests.unit.diagnosis.scene import SLEEP, Proc, Scene, training

REFUSED = "not available while MIG is on"


def split(*procs: GpuProc, utils: tuple[float | None, ...] = (100.0, 0.0)) -> Scene:
    """The GPU of a training is split; each instance, 7 and up, has one seventh of it, and its SMs are as busy as it is."""
    scene = training()
    mig = [MigInstance(i, 7 + i, util_pct=util, sm_active_pct=util) for i, util in enumerate(utils)]
    whole = sum(util or 0.0 for util in utils) / 7
    scene.gpus[0] = {"power_w": 120.0, "power_limit_w": 700.0, "sm_active_pct": whole, "missing": {"util_pct": REFUSED}}
    scene.gpus[0] |= {"mig_mode": True, "mig": mig, "procs": list(procs)}
    return scene


@pytest.mark.parametrize("listed", [GpuProc(100, gpu_instance=7), GpuProc(4242)], ids=["by the driver", "the only one there is"])
def test_a_trainer_that_keeps_its_part_busy_is_well(listed: GpuProc) -> None:
    utils = (100.0, 0.0) if listed.gpu_instance else (100.0,)
    verdict = split(listed, utils=utils).play(4).engine.verdict
    assert (verdict.symptom, verdict.lost_pct) == ("healthy", 0.0)


def test_a_trainer_whose_part_idles_is_not_well_though_the_other_is_busy() -> None:
    scene = split(GpuProc(100, gpu_instance=8), GpuProc(300, gpu_instance=7))
    scene.add(Proc(300, cmdline=["python", "other.py"], run=0.1, looks=[SLEEP], info={"uses_cuda": True})).play(4)
    facts = {job.trainer.pid: job for job in scene.engine.facts.jobs}
    assert (facts[100].lost, facts[300].lost) == (1.0, 0.0)
    assert scene.engine.verdict.trainer_pid == 100
    assert scene.engine._judged[300].verdict.headline == "other.py (300) keeps its GPU working 100% of the time"


def test_the_headline_names_the_device_as_nvidia_smi_does() -> None:
    engine = split(GpuProc(100, gpu_instance=8), GpuProc(300, gpu_instance=7)).play(8).engine
    assert engine.verdict.headline.startswith("GPU 0:1 lost 100% of the last ")
    assert engine.verdict.gpu == 0
    assert [one.headline.partition(" lost ")[0] for one in engine.incidents if one.trainer_pid == 100] == ["GPU 0:1"]


def test_where_nothing_tells_which_part_it_has_nothing_is_measured() -> None:
    job = split(GpuProc(100)).play(4).engine.facts.jobs[0]
    assert (job.lost, job.host_only) == (None, True)


def test_a_part_that_cannot_be_read_is_not_measured() -> None:
    job = split(GpuProc(100, gpu_instance=7), utils=(None, 100.0)).play(4).engine.facts.jobs[0]
    assert (job.lost, job.host_only) == (None, True)


def test_after_mig_was_switched_off_the_whole_gpu_counts() -> None:
    scene = split(GpuProc(100, gpu_instance=7)).play(4)
    scene.gpus[0] = {"util_pct": 30.0, "mig_mode": False, "pids": [100]}
    assert scene.play(6).engine.facts.jobs[0].lost == pytest.approx(0.7)
