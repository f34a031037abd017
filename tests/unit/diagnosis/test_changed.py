"""What changed on the machine: each kind is seen when it happens, named with what was before, and led to no cause but by a mechanism."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gputop.diagnosis.changed import MOST_KEPT, Doer, HostChange, by_explained, ways_of
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


EASIER: dict[str, Callable[[Scene], object]] = {
    "power": lambda scene: scene.gpus[0].update(power_limit_w=800.0),
    "lanes": lambda scene: scene.gpus[0].update(pcie_width=32),
    "quota": lambda scene: scene.cgroups[GROUP].update(quota_cpus=None),
    "memory": lambda scene: scene.cgroups[GROUP].update(mem_limit_bytes=128 << 30),
    "mask": lambda scene: scene.procs[100].info.update(cpus_allowed="0-7"),
    "files": lambda scene: scene.gauges.update(hardware=disk(files=50_000)),
}


@pytest.mark.parametrize("name", EASIER)
def test_what_makes_things_easier_is_seen_and_explains_nothing(name: str) -> None:
    scene = machine()
    EASIER[name](scene)
    found = seen(scene.play(8, 1.0))
    assert found
    assert {one.ways for one in found} == {()}


def test_a_process_that_takes_no_more_explains_nothing() -> None:
    scene = machine().add(Proc(900, comm="backup", cmdline=["backup"], run=2.0)).play(8, 1.0)
    began, ended = seen(scene.drop(900).play(14, 1.0))
    rise = {"cpu-contention": 0.2}
    assert (began.explains(rise), ended.explains(rise)) == (1.0, 0.0)


@pytest.mark.parametrize(("setting", "then", "now", "has_ways"), [
    ("power limit, W", "700", "400", True), ("power limit, W", "400", "700", False), ("power limit, W", "400 400", "700 400", True),
    ("CPU quota", "none", "4", True), ("CPU quota", "4", "none", False), ("files on /data", "1000", "9000", True),
    ("files on /data", "9000", "1000", False), ("CPUs that others take", "3", "0", False), ("CPU mask", "0-3", "0-7", False),
    ("CPU mask", "0-7", "0-3", True), ("workers", "2", "4", True), ("kernel", "6.1", "6.8", False),
])  # fmt: skip
def test_another_setting_than_before_leads_to_something_in_one_direction(setting: str, then: str, now: str, has_ways: bool) -> None:
    assert bool(ways_of(setting, then, now)) == has_ways


def test_more_workers_lead_to_other_causes_than_fewer() -> None:
    assert set(ways_of("workers", "2", "4")).isdisjoint({"too-few-workers"})
    assert "too-few-workers" in ways_of("workers", "4", "2")


def test_changes_are_in_order_of_what_they_explain_and_processes_of_their_part() -> None:
    def change(kind: str, cause: str, t_ns: int, doer: Doer | None = None) -> HostChange:
        return HostChange(t_ns, kind, filled("{}", kind), (cause,), doer)

    small, large = (change("taker", "cpu-contention", 0, Doer(name, 9, 1, cpus, cpus)) for name, cpus in (("small", 0.5), ("large", 7.5)))
    disk_ = change("disk", "disk-io", 0, Doer("cp", 9, 1, 1e8, 1e8))
    cap, kernel = change("power limit", "gpu-throttle", 5), change("x", "y", 0)
    rise = {"cpu-contention": 0.06, "disk-io": 0.03, "gpu-throttle": 0.01, "pause": -0.1}
    assert by_explained([kernel, small, cap, disk_, large], rise, 0) == [large, disk_, cap, small, kernel]
    assert by_explained([cap, kernel], {}, 0) == [kernel, cap], "nothing has risen: the nearest first"


def test_a_limit_is_remembered_beside_processes_that_come_and_go_by_the_hundred() -> None:
    scene, doing = machine(), {"run": 0.1, "write_bytes": 80_000_000}
    scene.gpus[0]["power_limit_w"] = 400.0
    for i in range(300):
        scene.add(Proc(1000 + i, comm=f"job{i}", cmdline=[f"job{i}"], **doing))
    for i in range(100):
        scene.add(Proc(2000 + i, comm="cc1plus", cmdline=["cc1plus"], **doing))
    scene.play(5, 1.0)
    scene.drop(*range(1000, 1300), *range(2000, 2100)).play(9, 1.0)
    found = seen(scene)
    assert "GPU 0 may draw 400 W instead of 700" in [one.words for one in found]
    told = {one.words: one for one in found if one.doer is not None and one.doer.name == "cc1plus"}
    began, ended = "100 processes cc1plus began to move up to 80 MB/s each", "100 processes cc1plus moved up to 80 MB/s each"
    assert [*told] == [f"{began} to or from storage", f"{ended} to or from storage no longer"]
    assert len(found) <= 2 * MOST_KEPT + 1
