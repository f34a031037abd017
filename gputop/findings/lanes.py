"""Series in which a cause shows: the screen and the page of a recording draw them first, and tall, below steps and the GPU."""

from __future__ import annotations

LANES_OF_CAUSE = {
    "cpu-contention": ("runq.p99_ms", "runq.pct", "cpu.busy_pct"), "worker-oversubscription": ("runq.p99_ms", "runq.pct", "cpu.busy_pct"),
    "affinity": ("runq.p99_ms", "runq.pct"), "cgroup-throttle": ("offcpu.pct",), "too-few-workers": ("cpu.busy_pct",),
    "slow-transform": ("cpu.busy_pct",), "gil-contention": ("switches.per_s",), "lock-contention": ("switches.per_s", "offcpu.pct"),
    "disk-io": ("psi.io_pct", "disk.read_mb_per_s"), "network-io": ("net.rx_mb_per_s",), "memory-pressure": ("psi.memory_pct",),
    "main-thread-preprocessing": ("cpu.busy_pct",), "host-optimizer": ("cpu.busy_pct",),
    "h2d-transfer": ("gpu.pcie_rx_mb_per_s", "gpu.c2c_rx_mb_per_s"),
    "sync-storm": ("sync.p99_ms", "switches.per_s"), "small-kernels": ("gpu.sm_active_pct",), "gpu-throttle": ("gpu.power_w",),
    "undersized-work": ("gpu.sm_active_pct",), "output-blocked": ("offcpu.pct",),
    "slow-wire": ("nic.rx_mb_per_s", "net.rx_mb_per_s", "rdma.rx_mb_per_s", "offcpu.pct"),
    "comm-fallback": ("rdma.rx_mb_per_s", "nic.rx_mb_per_s", "net.rx_mb_per_s", "offcpu.pct"), "gpu-shared": ("gpu.sm_active_pct",),
    "frontend-bound": ("serving.first_token_p99_ms", "cpu.busy_pct"),
    "scheduler-bound": ("gpu.sm_active_pct", "serving.first_token_p99_ms"),
    "model-load": ("psi.io_pct", "disk.read_mb_per_s"),
    "kv-full": ("serving.kv_used_pct", "serving.first_token_p99_ms"), "pcie-degraded": ("gpu.pcie_rx_mb_per_s",),
    "numa-remote": ("gpu.pcie_rx_mb_per_s",),
}  # fmt: skip
"""Cause -> fields of `gputop.model.fields`, the most telling first."""
