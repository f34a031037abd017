"""Columns of the machine, subject 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gputop.history.columns import History
from gputop.model.board import Board
from gputop.model.frame import CpuSample, DiskSample, Frame, NetSample, Psi
from gputop.model.rates import cpu_deltas

_PSI = (("psi.cpu_pct", "cpu_some_ns"), ("psi.io_pct", "io_some_ns"), ("psi.memory_pct", "memory_some_ns"))
T = TypeVar("T", DiskSample, NetSample)


def observe(board: Board, frame: Frame, history: History) -> None:
    """Rates between what stood and what the frame brings."""
    host = frame.host
    if host is None:
        return
    if host.cpus is not None and isinstance(old := board.host.get("cpus"), list):
        _busy(old, host.cpus, history)
    if host.psi is not None and isinstance(psi := board.host.get("psi"), Psi):
        _pressure(psi, host.psi, host.t_ns - board.host_read_ns["psi"], history)
    if host.disks is not None and isinstance(disks := board.host.get("disks"), list):
        _throughput("disk.read_mb_per_s", disks, host.disks, lambda d: d.read_bytes, host.t_ns - board.host_read_ns["disks"], history)
    if host.nets is not None and isinstance(nets := board.host.get("nets"), list):
        _throughput("net.rx_mb_per_s", nets, host.nets, lambda n: n.rx_bytes, host.t_ns - board.host_read_ns["nets"], history)


def _busy(older: list[CpuSample], newer: list[CpuSample], history: History) -> None:
    times = cpu_deltas(older, newer).values()
    worked_ns = sum(worked for worked, _ in times)
    total_ns = worked_ns + sum(idle for _, idle in times)
    if total_ns > 0:
        history.put("cpu.busy_pct", 0, 100 * worked_ns / total_ns)


def _pressure(older: Psi, newer: Psi, span_ns: int, history: History) -> None:
    for field_id, name in _PSI:
        before, after = getattr(older, name), getattr(newer, name)
        if before is not None and after is not None and span_ns > 0:
            history.put(field_id, 0, min(100.0, 100 * max(0, after - before) / span_ns))


def _throughput(field_id: str, older: list[T], newer: list[T], count: Callable[[T], int], span_ns: int, history: History) -> None:
    """MB/s over all devices that were there both times."""
    before = {device.name: count(device) for device in older}
    moved = sum(max(0, count(device) - before[device.name]) for device in newer if device.name in before)
    if span_ns > 0:
        history.put(field_id, 0, moved / span_ns * 1000)
