"""What changed on the machine: each kind is seen when it happens, named with what was before, and led to no cause but by a mechanism."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gputop.diagnosis.changed import HostChange
from gputop.findings.sentence import filled
from gputop.model.frame import FileSystem, Hardware, NetSample
from tests.unit.diagnosis.scene import Proc, Scene, training

GROUP = "/jobs/a"


def disk(files: int) -> Hardware:
    return Hardware(file_systems=[FileSystem("/data", "/dev/nvme1n1", "ext4", False, 1 << 42, 1 << 41, files)])


def machine() -> Scene:
    scene = training(run=0.3)
    scene.gpus[0] |= {"power_limit_w": 700.0, "sm_clock_max_mhz": 1980, "pcie_width": 16, "nvlink_links": 18, "mig_mode": False}
    for proc in scene.procs.values():
        proc.info |= {"cgroup": GROUP, "cpus_allowed": "0-3"}
    scene.gauges |= {"hardware": disk(files=100_000)}
    scene.cgroups[GROUP] = {"version": 2, "quota_cpus": 4.0, "mem_limit_bytes": 64 << 30}
    return scene.play(8, 1.0)


def seen(scene: Scene) -> list[HostChange]:
    return scene.engine.slowdowns.changes.between(0, scene.board.t_ns)


CHANGES: dict[str, tuple[Callable[[Scene], object], str, str]] = {
    "power": (lambda scene: scene.gpus[0].update(power_limit_w=400.0), "GPU 0 may draw 400 W instead of 700", "gpu-throttle"),
    "clock": (lambda scene: scene.gpus[0].update(sm_clock_max_mhz=1200), "GPU 0 may run at 1200 MHz instead of 1980", "gpu-throttle"),
    "lanes": (lambda scene: scene.gpus[0].update(pcie_width=4), "the PCIe link of GPU 0 has 4 lanes instead of 16", "pcie-degraded"),
    "NVLinks": (lambda scene: scene.gpus[0].update(nvlink_links=17), "GPU 0 has 17 NVLinks instead of 18", "straggler-rank"),
    "MIG": (lambda scene: scene.gpus[0].update(mig_mode=True), "MIG of GPU 0 was switched on", "gpu-shared"),
    "quota": (lambda scene: scene.cgroups[GROUP].update(quota_cpus=1.5), "the CPU quota of /jobs/a is 1.50 CPUs instead of 4.00 CPUs",
              "cgroup-throttle"),
    "memory": (lambda scene: scene.cgroups[GROUP].update(mem_limit_bytes=8 << 30),
               "the memory limit of /jobs/a is 8.0 GiB instead of 64.0 GiB", "memory-pressure"),
    "mask": (lambda scene: scene.procs[100].info.update(cpus_allowed="0"), "process 100 may run on CPUs 0 instead of 0-3", "affinity"),
    "taker": (lambda scene: scene.add(Proc(900, comm="backup", cmdline=["backup"], run=2.0)), "backup (900) began to take 2.0 CPUs",
              "cpu-contention"),
    "disk": (lambda scene: scene.add(Proc(901, comm="rsync", cmdline=["rsync"], run=0.1, write_bytes=80_000_000)),
             "rsync (901) began to move 80 MB/s to or from storage", "disk-io"),
    "files": (lambda scene: scene.gauges.update(hardware=disk(files=130_000)), "/data holds 130000 files instead of 100000", "disk-io"),
    "workers": (lambda scene: scene.drop(102), "process 100 has 1 worker instead of 2", "too-few-workers"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_when_it_happens(name: str) -> None:
    happens, says, cause = CHANGES[name]
    scene = machine()
    before_ns = scene.board.t_ns
    assert seen(scene) == []
    happens(scene)
    scene.play(8, 1.0)
    found = [one for one in seen(scene) if one.words == says]
    assert len(found) == 1, [one.words for one in seen(scene)]
    assert abs(found[0].t_ns - before_ns) <= 4e9
    assert cause in found[0].ways


def test_a_process_that_ends_to_take_cpus_is_seen_too() -> None:
    scene = machine().add(Proc(900, comm="backup", cmdline=["backup"], run=2.0)).play(8, 1.0)
    scene.drop(900).play(14, 1.0)
    assert [one.words for one in seen(scene)][-1] == "backup (900) took 2.0 CPUs no longer"


def test_a_change_explains_what_its_causes_rose_by_and_nothing_of_others() -> None:
    cap = HostChange(0, "power limit", filled("GPU {} may draw {:.0f} W instead of {:.0f}", 0, 400, 700), ("gpu-throttle",))
    assert cap.explains({"gpu-throttle": 0.06, "disk-io": 0.02, "pause": -0.1}) == pytest.approx(0.75)
    assert cap.explains({"gpu-throttle": -0.1, "disk-io": 0.1}) == 0.0
    assert cap.explains({}) == 0.0


def test_files_that_come_one_by_one_are_a_change_when_there_are_a_tenth_more() -> None:
    scene = machine()
    for files in range(100_000, 125_000, 1000):
        scene.gauges["hardware"] = disk(files=files)
        scene.play(1, 1.0)
    assert [one.words.partition(" instead of ")[0][:14] for one in seen(scene)] == ["/data holds 11", "/data holds 12"]


def carrying(scene: Scene, mb_per_s: float, seconds: int, held: list[int]) -> Scene:
    for _ in range(seconds):
        held[0] += round(1e6 * mb_per_s)
        scene.gauges["nets"] = [NetSample("eth0", held[0], 0, 0, 0, 0, 0, 0), NetSample("br0", held[0], 0, 0, 0, 0, 0)]
        scene.play(1, 1.0)
    return scene


def test_an_interface_that_carries_more_is_a_change_and_one_that_carries_less_is_none() -> None:
    scene, held = machine(), [0]
    before_ns = carrying(scene, 20, 33, held).board.t_ns
    [found] = seen(carrying(scene, 220, 33, held))
    assert found.words.startswith("network interface eth0 carries 220 MB/s instead of 20")
    assert abs(found.t_ns - before_ns) <= 12e9
    assert "network-io" in found.ways
    assert len(seen(carrying(scene, 20, 33, held))) == 1


def test_a_clock_at_work_that_another_program_set_is_a_change() -> None:
    scene = machine()
    scene.gpus[0] |= {"sm_clock_mhz": 1980, "util_pct": 100.0}
    scene.play(33, 1.0)
    scene.gpus[0]["sm_clock_mhz"] = 1410
    [found] = seen(scene.play(33, 1.0))
    assert found.words == "GPU 0 at work runs at 1410 MHz instead of 1980"
    assert found.ways == ("gpu-throttle",)


def test_a_link_that_is_slower_at_work_is_a_change() -> None:
    scene = machine()
    scene.gpus[0] |= {"pcie_gen": 5, "pcie_gen_max": 5, "util_pct": 100.0}
    scene.play(33, 1.0)
    scene.gpus[0]["pcie_gen"] = 3
    assert "the PCIe link of GPU 0 has generation 3 instead of 5" in [one.words for one in seen(scene.play(40, 1.0))]
