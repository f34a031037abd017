"""Copies from another NUMA node than the GPU's: what they cost, when nothing is claimed, and where the node is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputop.sources.nvml.slow import read_place
from tests.unit.diagnosis.causes_gpu import copying_pinned
from tests.unit.diagnosis.scene import SLEEP, Scene


def _far_share(scene: Scene) -> float:
    """Share of the window that is booked to the distance."""
    standing = scene.play(8).engine.standing[100]
    return standing.shares.get("numa-remote", 0.0) * (standing.job.lost or 0.0)


@pytest.mark.parametrize(("gb_per_s", "share"), [(8.0, 0.41), (12.6, 0.3), (20.0, 0.12), (26.0, 0.0)])
def test_the_price_is_what_the_copies_would_save_beside_the_gpu(gb_per_s: float, share: float) -> None:
    """Of 60 % of the time: sixteen lanes of generation 4 carry 31.5 GB/s, of which copies reach 25.2."""
    assert _far_share(copying_pinned(gb_per_s, on=0)) == pytest.approx(share, abs=0.03)


def test_it_costs_as_often_as_it_runs_there() -> None:
    scene = copying_pinned(8.0, on=0)
    shares = []
    for tick in range(40):
        scene.procs[100].processor = 0 if tick % 2 else 2
        shares.append(_far_share_now(scene.play(0.2)))
    assert shares[-1] == pytest.approx(0.2, abs=0.04)


def _far_share_now(scene: Scene) -> float:
    standing = scene.engine.standing.get(100)
    return standing.shares.get("numa-remote", 0.0) * (standing.job.lost or 0.0) if standing is not None else 0.0


@pytest.mark.parametrize(
    "gpu",
    [
        {"near_cpus": "0-3", "numa_node": 0},
        {"near_cpus": None, "numa_node": None},
        {"numa_node": None},
        {"c2c_links": 5},
        {"near_cpus": "0-1", "numa_node": 0},
    ],
    ids=["one node", "unknown node", "CPUs without a node", "Grace", "runs beside it"],
)
def test_no_distance_is_claimed(gpu: dict[str, object]) -> None:
    assert _far_share(copying_pinned(8.0, on=0, **gpu)) == 0.0


def test_few_copies_are_no_cause() -> None:
    scene = copying_pinned(8.0, on=0)
    scene.calls[100, "cuMemcpyHtoD_v2"] = (50, 0.08, int(0.08 * 8e9))
    assert _far_share(scene) == 0.0


@pytest.mark.parametrize(("on", "is_told"), [(0, True), (3, False)])
def test_copies_that_are_not_counted_have_no_price_and_can_be_counted(on: int, is_told: bool) -> None:
    scene = copying_pinned(8.0, on=on)
    scene.probed, scene.calls = False, {}
    scene.procs[100].run, scene.procs[100].looks = 0.02, [SLEEP]
    scene.gpus[0]["pcie_rx_bytes_per_s"] = 4.8e9
    assert _far_share(scene) == 0.0
    verdict = scene.engine.verdict
    assert verdict.cause == "h2d-transfer"
    assert any(fix.look and "NUMA node" in fix.text for fix in verdict.fixes) is is_told


def test_what_is_slower_than_any_distance_has_another_reason() -> None:
    assert _far_share(copying_pinned(1.2, on=0)) == 0.0


@pytest.mark.parametrize(("trainer", "workers"), [(0, 0), (0, 3), (3, 0)])
def test_pageable_copies_cost_less_and_lie_where_workers_wrote_them(trainer: int, workers: int) -> None:
    scene = copying_pinned(2.5, on=workers)
    scene.procs[100].processor = trainer
    assert _far_share(scene) == pytest.approx(0.24, abs=0.03)


def test_workers_do_not_count_where_the_trainer_locks_its_own_pages() -> None:
    scene = copying_pinned(8.0, on=0)
    scene.procs[100].processor = 3
    assert _far_share(scene) == 0.0


def test_advice_binds_trainer_and_workers_to_what_the_cgroup_has_of_the_node() -> None:
    scene = copying_pinned(8.0, on=0, near_cpus="2-5")
    scene.cgroups = {"/job": {"cpuset": "0-3"}}
    verdict = scene.play(8).engine.verdict
    assert verdict.cause == "numa-remote"
    assert verdict.fixes[0].command == "for p in 100 101 102; do taskset -apc 2-3 $p; done"
    assert "--cpunodebind=1 --membind=1" in verdict.fixes[1].text


def test_a_cgroup_without_a_cpu_of_that_node_is_named() -> None:
    scene = copying_pinned(8.0, on=0)
    scene.cgroups = {"/job": {"cpuset": "0-1"}}
    verdict = scene.play(8).engine.verdict
    assert verdict.cause == "h2d-transfer"
    assert any("NUMA node 1" in fix.text and "cgroup" in fix.text for fix in verdict.fixes)


def test_gpus_on_both_nodes_leave_nothing_to_bind_to() -> None:
    scene = copying_pinned(8.0, on=0)
    scene.gpus[1] = scene.gpus[0] | {"numa_node": 0, "near_cpus": "0-1"}
    assert _far_share(scene) == 0.0


def _device(folder: Path, name: str, node: str, cpus: str) -> str:
    (folder / name).mkdir()
    (folder / name / "numa_node").write_text(node)
    (folder / name / "local_cpulist").write_text(cpus)
    return str(folder)


@pytest.mark.parametrize(
    ("bus_id", "name"),
    [("00000000:1B:00.0", "0000:1b:00.0"), ("0001A3F0:C1:00.0", "1a3f0:c1:00.0"), ("0009:01:00.0", "0009:01:00.0")],
)
def test_the_kernel_has_the_node_of_a_slot(tmp_path: Path, bus_id: str, name: str) -> None:
    assert read_place(bus_id, _device(tmp_path, name, "1\n", "32-63,96-127\n")) == (1, "32-63,96-127")


@pytest.mark.parametrize(
    ("node", "cpus", "reason"),
    [("-1\n", "0-15\n", "does not state"), ("2\n", "\n", "has no CPUs"), ("x\n", "0-3\n", "invalid"), ("0\n", "\x1b[2J", "no CPUs")],
)
def test_an_unknown_node_has_a_reason(tmp_path: Path, node: str, cpus: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_place("00000000:1B:00.0", _device(tmp_path, "0000:1b:00.0", node, cpus))


@pytest.mark.parametrize("bus_id", ["", "00000000:1B", "../../../etc", "00000000:1B:00.0/../x", "GPU-0"])
def test_what_is_no_address_opens_no_file(tmp_path: Path, bus_id: str) -> None:
    with pytest.raises(ValueError, match="no PCI address"):
        read_place(bus_id, str(tmp_path))


def test_a_device_that_the_kernel_does_not_show_has_a_reason(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot be read: no such file"):
        read_place("00000000:1B:00.0", str(tmp_path))
