"""Streams for the metrics: kept recordings, and machines that are made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gputop.metrics.metered import Metered
from gputop.metrics.prometheus import Pages
from gputop.model.frame import Frame, Header
from tests.corpus.accuracy import DATA
from tests.corpus.runs import load
from tests.unit.diagnosis.scene import FUTEX, ON_CPU, QUEUE, Proc, Scene

OF_GPU = {
    "util_pct": 60.0, "gr_active_pct": 60.0, "sm_active_pct": 50.0, "tensor_active_pct": 20.0, "dram_active_pct": 30.0,
    "mem_used_bytes": 60 << 30, "mem_total_bytes": 80 << 30, "power_w": 412.3, "temp_c": 54.0, "sm_clock_mhz": 1980, "throttle_mask": 4,
    "pcie_tx_bytes": 10**12, "pcie_rx_bytes": 10**13, "nvlink_tx_bytes": 10**14, "nvlink_rx_bytes": 10**14, "ecc_corrected": 3,
    "ecc_uncorrected": 0, "needs_reset": False, "lost": False, "name": "NVIDIA H100 80GB HBM3", "pci_bus_id": "00000000:1B:00.0",
}  # fmt: skip
"""All that a GPU of a server tells."""


def run_of(workload: str, mode: str = "eBPF") -> list[Header | Frame]:
    """Header and frames of a kept run."""
    return load(Path(DATA, f"{workload}.xz")).items(mode)


def take(metered: Metered, item: Header | Frame) -> None:
    """Let it take the next item, after the diagnosis that is read before it."""
    for reader in (metered.judging, metered):
        if isinstance(item, Header):
            reader.begin(item)
        else:
            reader.take(item)


def taken(items: Iterator[Header | Frame] | list[Header | Frame], **options: object) -> Metered:
    """What is known at the end of a stream."""
    metered = Metered(**options)  # type: ignore[arg-type]
    for item in items:
        take(metered, item)
    assert not metered.problem
    assert not metered.judging.problem
    return metered


def series(metered: Metered) -> dict[str, float]:
    """``name{label="value"}`` -> value, as in Prometheus' text."""
    text = Pages(metered).page()[0].decode()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if not line.startswith("#")}


def server_of(gpus: int, ranks: int, workers: int = 8, first_pid: int = 1000) -> Scene:
    """A server that trains on ``gpus`` GPUs with ``ranks`` ranks; further ranks share them."""
    scene = Scene(cpus=64)
    for index in range(gpus):
        scene.gpus[index] = OF_GPU | {"uuid": f"GPU-{index:08d}-3c1a-4b7e-9d52-0123456789ab", "pids": []}
    for rank in range(ranks):
        pid = first_pid + 100 * rank
        env = {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
        scene.add(Proc(pid, ppid=2, run=0.2, looks=[FUTEX, QUEUE], info={"uses_cuda": True, "env": env, "user": "ana"}))
        for worker in range(workers):
            scene.add(Proc(pid + 1 + worker, pid, comm="pt_data_worker", run=0.9, looks=[ON_CPU], start_ticks=50_100 + worker))
        scene.gpus[rank % gpus]["pids"] = [*scene.gpus[rank % gpus]["pids"], pid]
    return scene


def played(scene: Scene, metered: Metered, seconds: float, step_s: float = 0.5) -> Metered:
    """Let time pass on a made machine."""
    if metered.board.seq < 0:
        take(metered, scene.board.header)
    for _ in range(round(seconds / step_s)):
        frame = scene.next_frame(step_s)
        scene.board.fold(frame)
        take(metered, frame)
    assert not metered.problem
    assert not metered.judging.problem
    return metered


def contended_server(gpus: int = 2) -> Scene:
    """One on which a log shipper takes the CPUs from all loader workers; all that can be measured is."""
    scene = server_of(gpus, gpus, workers=2)
    scene.cpus, scene.cpu_busy, scene.probed = 4, [1.0] * 4, True
    for pid, proc in scene.procs.items():
        if proc.comm == "pt_data_worker":
            proc.run, proc.wait = 0.3, 0.7
        else:
            proc.run, proc.looks = 0.05, [QUEUE]
            scene.calls |= {(pid, "cuStreamSynchronize"): (8.0, 0.21, 0.0), (pid, "cuMemcpyHtoDAsync_v2"): (8.0, 0.002, 2e6)}
    return scene.add(Proc(900, comm="fluent-bit", cmdline=["/bin/fluent-bit"], run=2.0, looks=[ON_CPU]))
