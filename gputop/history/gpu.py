"""GPU columns, subject = the GPU's index."""

from __future__ import annotations

from operator import attrgetter

from gputop.history.columns import History
from gputop.model.board import Board, GpuBoard
from gputop.model.fields import FIELDS
from gputop.model.frame import Frame, Gpu
from gputop.model.rates import bytes_per_s

_GAUGES = (
    ("gpu.power_w", "power_w"), ("gpu.gr_active_pct", "gr_active_pct"), ("gpu.sm_active_pct", "sm_active_pct"),
    ("gpu.sm_occupancy_pct", "sm_occupancy_pct"),
    ("gpu.tensor_active_pct", "tensor_active_pct"), ("gpu.dram_active_pct", "dram_active_pct"), ("gpu.temp_c", "temp_c"),
    ("gpu.sm_clock_mhz", "sm_clock_mhz"),
)  # fmt: skip
_GAUGE_IDS = tuple(field_id for field_id, _ in _GAUGES)
_gauges = attrgetter(*(name for _, name in _GAUGES))
_UTILIZATION = (("gpu.util_pct", "util_pct"), ("gpu.mem_util_pct", "mem_util_pct"))
_RATES = tuple(
    (field_id, tuple((name, f"{name}_per_s") for name in counters))
    for field_id, counters in (
        ("gpu.pcie_rx_mb_per_s", ("pcie_rx_bytes",)), ("gpu.pcie_tx_mb_per_s", ("pcie_tx_bytes",)),
        ("gpu.nvlink_mb_per_s", ("nvlink_rx_bytes", "nvlink_tx_bytes")),
    )
)  # fmt: skip
"""Counters, and where a driver tells a rate instead."""


def observe(board: Board, frame: Frame, history: History) -> None:
    """Every reading that ``frame`` brings, once."""
    for gpu in frame.gpus:
        older = board.gpus.get(gpu.index) or GpuBoard(gpu.index)
        for field_id, value in zip(_GAUGE_IDS, _gauges(gpu), strict=True):
            if value is not None:
                history.put(field_id, gpu.index, value)
        for field_id, name in _UTILIZATION:
            value = getattr(gpu, name)
            if value is not None and _is_new(older, gpu, field_id, name, value, history):
                history.put(field_id, gpu.index, value)
        _memory(older, gpu, history)
        for field_id, counters in _RATES:
            total = 0.0
            for name, per_s in counters:
                count, told = getattr(gpu, name), getattr(gpu, per_s, None)
                rate = told if count is None else _bytes_per_s(older, gpu, name, count, told)
                if rate is None:
                    break
                total += rate
            else:
                history.put(field_id, gpu.index, total / 1e6)


def _is_new(older: GpuBoard, gpu: Gpu, field_id: str, name: str, value: float, history: History) -> bool:
    """Whether the driver measured again since the last reading that was drawn.

    It tells when (`Gpu.util_t_ns`), or else a changed value shows it; an unchanged one counts once per refresh of the field:
    a steady load is measured too.
    """
    if gpu.util_t_ns is not None:
        return gpu.util_t_ns != older.values.get("util_t_ns")
    if value != older.values.get(name):
        return True
    last = history.at((field_id, gpu.index), gpu.t_ns, FIELDS[field_id].refresh_ns)
    return last != last


def _memory(older: GpuBoard, gpu: Gpu, history: History) -> None:
    total = gpu.mem_total_bytes or older.number("mem_total_bytes")
    if gpu.mem_used_bytes is not None and total:
        history.put("gpu.mem_used_pct", gpu.index, 100 * gpu.mem_used_bytes / total)


def _bytes_per_s(older: GpuBoard, gpu: Gpu, name: str, count: int, told: float | None) -> float | None:
    return bytes_per_s(older.number(name), count, gpu.t_ns - older.read_ns.get(name, 0), told)
