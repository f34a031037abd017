"""Ranks that fell back to TCP: what is named, which fix fits what keeps them there, and the ways on which ranks' data move."""

from __future__ import annotations

import pytest

from gputop.findings.verdict import Verdict
from gputop.findings.ways import Way, words
from gputop.model.frame import Nic
from tests.unit.diagnosis.causes_wire import fallen_back, fallen_back_on_one_host, ranks_on_a_wire, through_the_hosts_memory
from tests.unit.diagnosis.scene import Scene


def told(scene: Scene) -> Verdict:
    verdict = scene.play(6).engine.verdict
    assert (verdict.symptom, verdict.cause) == ("comm-bound", "comm-fallback")
    return verdict


def commands(verdict: Verdict) -> list[str]:
    return [fix.command for fix in verdict.fixes if not fix.look]


@pytest.mark.parametrize(
    ("transport", "first"),
    [
        ({"variables": {"NCCL_IB_DISABLE": "1"}}, "unset NCCL_IB_DISABLE"),
        ({"variables": {"NCCL_IB_DISABLE": "1"}, "configured": ["NCCL_IB_DISABLE"]}, "sudo sed -i /^NCCL_IB_DISABLE/d /etc/nccl.conf"),
        ({"variables": {"NCCL_NET": "Socket"}}, "unset NCCL_NET"),
        ({"variables": {"NCCL_IB_HCA": "=mlx5_7"}, "devices": ["mlx5_7"]}, "export NCCL_IB_HCA=mlx5_0"),
        ({"variables": {"NCCL_IB_HCA": "^mlx5_0"}, "devices": ["mlx5_7"]}, "export NCCL_IB_HCA=mlx5_0"),
        ({"lacks_devices": True}, "docker run --device=/dev/infiniband --ulimit memlock=-1 --network=host ..."),
        ({"variables": {"NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": "mlx5"}}, 'torch.distributed.init_process_group("nccl")'),
    ],
)
def test_the_first_fix_is_for_what_keeps_it_from_the_card(transport: dict, first: str) -> None:
    verdict = told(fallen_back(**transport))
    assert commands(verdict)[0] == first
    assert "ranks 0-1" in verdict.detail
    assert "eth0" in verdict.detail
    assert "mlx5_0/1" in verdict.detail


def test_a_variable_that_is_off_and_devices_that_are_allowed_are_no_reason() -> None:
    verdict = told(fallen_back(variables={"NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": "mlx5_0:1,mlx5_1"}, devices=["mlx5_0"]))
    assert not any("NCCL_IB" in command or "docker" in command for command in commands(verdict))
    assert any("NCCL_DEBUG" in fix.command for fix in verdict.fixes if fix.look)


def test_on_one_host_shared_memory_and_variables() -> None:
    scene = fallen_back_on_one_host()
    for proc in scene.procs.values():
        proc.info["transport"].variables["NCCL_P2P_DISABLE"] = "1"
    verdict = told(scene)
    assert commands(verdict)[:2] == ["unset NCCL_P2P_DISABLE", "docker run --ipc=host --shm-size=8g ..."]
    assert "NVLink" in verdict.detail


def test_shared_memory_beside_nvlink_at_rest() -> None:
    verdict = told(through_the_hosts_memory())
    assert commands(verdict)[0] == "unset NCCL_P2P_DISABLE"
    assert "6000 MB/s over PCIe" in verdict.detail
    assert not any("shm-size" in command for command in commands(verdict))


@pytest.mark.parametrize("moved", [(500.0, 3000.0), (0.0, 10.0)], ids=["NVLink moves", "PCIe rests"])
def test_shared_memory_is_no_fallback_where_nvlink_moves_or_nothing_does(moved: tuple[float, float]) -> None:
    assert through_the_hosts_memory(*moved).play(6).engine.verdict.cause != "comm-fallback"


@pytest.mark.parametrize(("nvlink", "cause"), [(None, "comm-fallback"), (900.0, "slow-wire")])
def test_a_connection_within_the_host_needs_no_card(nvlink: float | None, cause: str) -> None:
    scene = fallen_back(variables={"NCCL_IB_DISABLE": "1"})
    for proc, gpu in zip(scene.procs.values(), scene.gpus.values(), strict=True):
        proc.ends = ("10.0.0.1:29500", "10.0.0.1:40122")
        gpu |= {} if nvlink is None else {"nvlink_mb_per_s": nvlink}
    verdict = scene.play(6).engine.verdict
    assert verdict.cause == cause
    assert "mlx5" not in verdict.detail


def test_a_faster_network_interface_is_a_fix_too() -> None:
    scene = fallen_back(variables={"NCCL_IB_DISABLE": "1"})
    scene.nics = [Nic("eth0", True, 1000), Nic("eth1", True, 100_000)]
    assert "export NCCL_SOCKET_IFNAME=eth1 GLOO_SOCKET_IFNAME=eth1" in commands(told(scene))


def test_an_interface_faster_than_the_card_is_no_fallback() -> None:
    scene = fallen_back()
    scene.nics = [Nic("eth0", True, 800_000)]
    assert scene.play(6).engine.verdict.cause == "slow-wire"


def test_the_ways_on_which_data_move() -> None:
    scene = ranks_on_a_wire(0.1, 0.1)
    scene.ports |= {"mlx5_0/1": {"mb_per_s": 4000.0}, "hns_0/1": {"mb_per_s": None, "packets_per_s": 1e6}, "mlx5_1/1": {"mb_per_s": 900.0}}
    for pid, gpu in ((100, 0), (200, 1)):
        scene.gpus[gpu]["nvlink_mb_per_s"] = 250.0
        scene.procs[pid].info["transport"] = fallen_back(shm=3, devices=["hns_0", "mlx5_0"]).procs[pid].info["transport"]
    facts = scene.play(6).engine.facts
    assert facts is not None
    rdma, nvlink, sockets, *rest = facts.ways[100]
    assert (rdma.kind, rdma.on, rdma.bytes_per_s) == ("rdma", "mlx5_0/1", pytest.approx(4e9, rel=0.05))
    assert (nvlink.kind, nvlink.on, nvlink.bytes_per_s) == ("nvlink", "GPU 0", pytest.approx(5e8, rel=0.05))
    assert (sockets.kind, sockets.on) == ("sockets", "eth0")
    assert rest == [Way("rdma", "hns_0/1"), Way("shm")], "a card that it has not open carries others' data"


def test_ways_in_words() -> None:
    assert words([Way("rdma", "mlx5_0/1", 5e9), Way("shm"), Way("sockets", "eth0", 1e5)]) == (
        "RDMA by mlx5_0/1 5,000 MB/s, shared memory, TCP by eth0 0 MB/s"
    )
    assert words(()) == ""
