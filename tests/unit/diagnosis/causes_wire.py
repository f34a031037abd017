"""Scenes of ranks that wait for the data that they send each other, and of the ways that they do not take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gputop.model.frame import Transport
from tests.unit.diagnosis.causes import straggling
from tests.unit.diagnosis.scene import AWAIT, SLEEP, Proc, Scene


def ranks_on_a_wire(*busy: float) -> Scene:
    """Ranks on two GPUs, asleep until their library's threads have exchanged gradients; so long each has data on the wire."""
    scene = Scene()
    for rank, share in enumerate(busy):
        pid, env = 100 * (rank + 1), {"RANK": str(rank), "WORLD_SIZE": str(len(busy))}
        scene.gpus[rank] = {"util_pct": 35.0, "power_w": 250.0, "power_limit_w": 400.0, "pids": [pid]}
        info = {"uses_cuda": True, "env": env}
        scene.add(Proc(pid, run=0.1, looks=[AWAIT], info=info, wire=(share, 12.0, 12.0)))
    return scene


def slow_wire() -> Scene:
    return ranks_on_a_wire(0.5, 0.48)


def slow_wire_by_turns() -> Scene:
    """One sends while the other receives."""
    return ranks_on_a_wire(0.26, 0.25)


def slow_wire_under_a_kernel() -> Scene:
    """The collective is a kernel that spins on few SMs: the GPUs look busy."""
    scene = ranks_on_a_wire(0.6, 0.6)
    for gpu in scene.gpus.values():
        gpu |= {"util_pct": 99.0, "sm_active_pct": 25.0}
    return scene


def collectives_over_no_tcp() -> Scene:
    """The same over InfiniBand, of which nothing is seen: no model is too small."""
    scene = slow_wire_under_a_kernel()
    for proc in scene.procs.values():
        proc.wire = None
    return scene


def slow_wire_of_one_here() -> Scene:
    """The other rank is on another host."""
    return ranks_on_a_wire(0.55, 0.55).drop(200)


def fallen_back(**transport: Any) -> Scene:
    """Two of four ranks, on this host, whose NCCL talks TCP to the other host though a card of InfiniBand is there."""
    scene = ranks_on_a_wire(0.6, 0.6)
    scene.ports["mlx5_0/1"] = {}
    for proc in scene.procs.values():
        proc.info["env"] |= {"WORLD_SIZE": "4"}
        proc.info["transport"] = Transport(**{"library": "nccl", "version": "2.21.5"} | transport)
    return scene


def fallen_back_from_infiniband() -> Scene:
    return fallen_back(variables={"NCCL_IB_DISABLE": "1"})


def fallen_back_in_a_container() -> Scene:
    """A port that counts packets alone."""
    scene = fallen_back(lacks_devices=True)
    scene.ports["mlx5_0/1"] |= {"mb_per_s": None}
    return scene


def fallen_back_on_one_host(nvlink_mb_per_s: float | None = 0.0) -> Scene:
    """Both ranks are here, each in a container of its own, and NVLink between their GPUs is at rest."""
    scene = fallen_back(shm_bytes=64 << 20)
    for proc, gpu in zip(scene.procs.values(), scene.gpus.values(), strict=True):
        proc.info["env"] |= {"WORLD_SIZE": "2"}
        if nvlink_mb_per_s is not None:
            gpu["nvlink_mb_per_s"] = nvlink_mb_per_s
    return scene


def fallen_back_on_one_host_without_nvlink() -> Scene:
    return fallen_back_on_one_host(None)


def through_the_hosts_memory(nvlink_mb_per_s: float = 0.0, pcie_mb_per_s: float = 3000.0) -> Scene:
    """NCCL may use shared memory, and not NVLink: its kernels spin on few SMs, and nothing goes by TCP."""
    scene = fallen_back_on_one_host(nvlink_mb_per_s)
    for proc, gpu in zip(scene.procs.values(), scene.gpus.values(), strict=True):
        proc.wire = (0.0, 0.0, 0.0)
        proc.info["transport"] = Transport("nccl", "2.21.5", 8, variables={"NCCL_P2P_DISABLE": "1"})
        gpu |= {"util_pct": 99.0, "sm_active_pct": 20.0, "pcie_mb_per_s": pcie_mb_per_s}
    return scene


def tcp_beside_nvlink() -> Scene:
    """NVLink carries the exchange of the GPUs here."""
    return fallen_back_on_one_host(900.0)


def tcp_beside_a_card_at_work() -> Scene:
    scene = fallen_back(devices=["mlx5_0"])
    scene.ports["mlx5_0/1"] = {"mb_per_s": 5000.0}
    return scene


def tcp_beside_a_card_without_link() -> Scene:
    scene = fallen_back()
    scene.ports["mlx5_0/1"] = {"state": "DOWN"}
    return scene


def tcp_by_a_library_without_other_ways() -> Scene:
    """No NCCL is mapped: they use TCP by design."""
    return fallen_back(library="", version="")


def tcp_that_fills_its_card() -> Scene:
    """RoCE on the same port would be no faster."""
    scene = fallen_back()
    scene.ports["mlx5_0/1"] = {"rate_mbit": 180, "interface": "eth0", "link": "Ethernet"}
    return scene


def late_rank_beside_an_idle_card() -> Scene:
    """A card that idles is no cause where nobody waits for the wire."""
    scene = late_rank_on_a_good_wire()
    scene.ports["mlx5_0/1"] = {}
    for pid in (100, 200):
        scene.procs[pid].info["transport"] = Transport(library="nccl", variables={"NCCL_IB_DISABLE": "1"})
    return scene


def upload_beside_a_late_rank() -> Scene:
    """What one of them sends goes elsewhere, and nothing comes back: rank 1, which computes on the host, is late."""
    scene = straggling()
    for pid in (100, 200):
        scene.procs[pid].wire = (0.8, 80.0, 0.1)
    return scene


def late_rank_on_a_good_wire() -> Scene:
    scene = straggling()
    for pid in (100, 200):
        scene.procs[pid].wire = (0.03, 15.0, 15.0)
    return scene


def late_rank_asleep(busy: float = 0.03) -> Scene:
    """Rank 1 sleeps by itself between its steps, as one whose requests are limited."""
    scene = ranks_on_a_wire(busy, busy)
    scene.procs[200].looks = [SLEEP] * 9 + [AWAIT]
    return scene


def late_rank_beside_a_slow_wire() -> Scene:
    """The wire takes a fifth of the time, and rank 1 the rest."""
    scene = late_rank_asleep(0.22)
    for gpu in scene.gpus.values():
        gpu["util_pct"] = 15.0
    return scene


def slow_wire_beside_a_late_rank() -> Scene:
    """Rank 1 takes a fifth of the time, and the wire the rest."""
    scene = slow_wire()
    scene.procs[200].looks = [SLEEP, AWAIT, AWAIT, AWAIT, AWAIT]
    return scene


ON_WIRE: dict[Callable[[], Scene], tuple[str, str]] = {
    slow_wire: ("comm-bound", "slow-wire"),
    slow_wire_by_turns: ("comm-bound", "slow-wire"),
    slow_wire_under_a_kernel: ("comm-bound", "slow-wire"),
    slow_wire_of_one_here: ("comm-bound", "slow-wire"),
    collectives_over_no_tcp: ("comm-bound", "unexplained"),
    fallen_back_from_infiniband: ("comm-bound", "comm-fallback"),
    fallen_back_in_a_container: ("comm-bound", "comm-fallback"),
    fallen_back_on_one_host: ("comm-bound", "comm-fallback"),
    fallen_back_on_one_host_without_nvlink: ("comm-bound", "comm-fallback"),
    through_the_hosts_memory: ("comm-bound", "comm-fallback"),
    tcp_beside_nvlink: ("comm-bound", "slow-wire"),
    tcp_beside_a_card_at_work: ("comm-bound", "slow-wire"),
    tcp_beside_a_card_without_link: ("comm-bound", "slow-wire"),
    tcp_by_a_library_without_other_ways: ("comm-bound", "slow-wire"),
    tcp_that_fills_its_card: ("comm-bound", "slow-wire"),
    late_rank_beside_an_idle_card: ("straggler", "straggler-rank"),
    upload_beside_a_late_rank: ("straggler", "straggler-rank"),
    slow_wire_beside_a_late_rank: ("comm-bound", "slow-wire"),
    late_rank_asleep: ("straggler", "straggler-rank"),
    late_rank_beside_a_slow_wire: ("straggler", "straggler-rank"),
    late_rank_on_a_good_wire: ("straggler", "straggler-rank"),
}
