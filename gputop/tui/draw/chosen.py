"""Which lanes a screen shows: what there is to show, then as many as fit."""

from __future__ import annotations

from msgspec.structs import replace

from gputop.model.board import Board, GpuBoard
from gputop.session.session import Session
from gputop.tui.draw.lanes import Lane
from gputop.tui.view import View

UNREAD = "no reading yet"
LAST = 10
"""The priority of a lane that takes no row which another one needs."""


def lanes(session: Session, view: View) -> list[Lane]:
    """All lanes there is a reason to show, in the order of the screen."""
    board = session.board
    found = [lane for index in sorted(board.gpus) for lane in _of_gpu(session, view, index)]
    imported = board.sources.get("import")
    untold = "no trainer found yet" if imported is None else imported.reason
    found.append(Lane(("sync.p99_ms", 0), "sync p99", absent=_without_sync(board), priority=4))
    if ("runq.p99_ms", 0) in session.history.series:
        found.append(Lane(("runq.p99_ms", 0), "run-queue p99", priority=2))
    else:
        found.append(Lane(("runq.pct", 0), "run-queue", absent=untold, priority=2))
    found.append(Lane(("offcpu.pct", 0), "off-CPU", absent=untold, priority=4))
    found.append(Lane(("switches.per_s", 0), "ctx-switch", absent=untold, priority=5))
    found.append(Lane(("cpu.busy_pct", 0), "host CPU", priority=5))
    host = board.sources.get("host") or imported
    pressure = UNREAD if host is None or host.state == "ok" else host.reason
    found.append(Lane(("psi.io_pct", 0), "PSI io", absent=pressure, priority=8))
    found.append(Lane(("psi.memory_pct", 0), "PSI memory", absent=pressure, priority=9))
    found.append(Lane(("disk.read_mb_per_s", 0), "disk read", priority=9))
    found.append(Lane(("net.rx_mb_per_s", 0), "net rx", priority=9))
    return found


def fitting(found: list[Lane], rows: int) -> list[Lane]:
    """The most important ``rows`` of them, still in the order of the screen."""
    if len(found) <= rows:
        return found
    kept = sorted(range(len(found)), key=lambda i: (found[i].priority, i))[: max(0, rows)]
    return [found[i] for i in sorted(kept)]


def _of_gpu(session: Session, view: View, index: int) -> list[Lane]:
    gpu, chosen = session.board.gpus[index], index == view.gpu
    limit = gpu.number("power_limit_w")
    name = f"SIM {index}" if session.board.header.simulated else f"GPU {index}"
    lanes = [
        Lane(("gpu.util_pct", index), f"{name} util", absent=_reason(gpu, "util_pct"), priority=1 if chosen else 3),
        Lane(("gpu.power_w", index), f"{name} power", limit, _reason(gpu, "power_w"), priority=2 if chosen else 6),
    ]
    if ("gpu.sm_active_pct", index) in session.history.series:
        lanes.append(Lane(("gpu.sm_active_pct", index), f"{name} SM act", priority=3 if chosen else 7))
    if chosen and ("gpu.gr_active_pct", index) in session.history.series:
        lanes.insert(1, Lane(("gpu.gr_active_pct", index), f"{name} GR act", priority=8))
    if chosen:
        absent = _reason(gpu, "pcie_rx_bytes_per_s")
        lanes.append(Lane(("gpu.pcie_rx_mb_per_s", index), f"{name} PCIe rx", absent=absent, priority=7))
    return [replace(lane, priority=LAST) if _is_refused(lane, session) else lane for lane in lanes]


def _is_refused(lane: Lane, session: Session) -> bool:
    """There is nothing to draw of a GPU, and there will not be soon: its row among the GPUs says so too."""
    return lane.absent not in ("", UNREAD) and lane.key not in session.history.series


def _without_sync(board: Board) -> str:
    ebpf = board.sources.get("ebpf")
    if ebpf is not None and ebpf.state not in ("ok", "partial"):
        return f"needs eBPF: {ebpf.reason}"
    counted = any("Synchronize" in name and call.count and not call.hist for (_, name), call in board.calls.items())
    return "calls are counted, how long each took is not known" if counted else "no CUDA synchronize call seen yet"


def _reason(gpu: GpuBoard, name: str) -> str:
    return gpu.missing.get(name, "") or UNREAD
