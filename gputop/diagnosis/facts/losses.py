"""GPUs that have stopped working: the driver has lost one, waits for its reset, or does not return from calls about it."""

from __future__ import annotations

from msgspec import Struct

from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.model.board import GpuBoard
from gputop.model.xids import ENDING_XIDS

GONE, RESET, SILENT = "gone", "reset", "silent"
"""Kinds of loss. GONE: it has left the bus or was removed. RESET: it answers, but works again only after a reset. SILENT: no call about it
returns."""


class Loss(Struct, frozen=True):
    """Facts about a lost GPU."""

    kind: str  # `GONE`, `RESET` or `SILENT`
    since_ns: int  # CLOCK_MONOTONIC; of a reset, when it was read last
    reason: str  # the driver's words, or how long it has not answered
    xid: int | None = None  # the latest, of `ENDING_XIDS` before any other
    works: bool = False  # its counters show work nevertheless
    model: str = ""
    uuid: str = ""
    pci_bus_id: str = ""


def loss_of(gpu: GpuBoard, t_ns: int) -> Loss | None:
    """The GPU's loss; None if it answers and needs no reset. A driver that has just been started may take some seconds to answer."""
    found = _kind(gpu, t_ns)
    if found is None:
        return None
    kind, since_ns, reason = found
    xid = gpu.values.get("xid")
    works = kind == RESET and (gpu.number("util_pct") or 0.0) >= 100 * policy.TENTH
    names = (gpu.text(name) for name in ("name", "uuid", "pci_bus_id"))
    return Loss(kind, since_ns, reason, xid if isinstance(xid, int) else None, works, *names)


def _kind(gpu: GpuBoard, t_ns: int) -> tuple[str, int, str] | None:
    if gpu.values.get("lost"):
        reason = next((gpu.missing[name] for name in ("util_pct", "power_w", "mem_used_bytes") if name in gpu.missing), "")
        return RESET if "reset" in reason else GONE, gpu.read_ns.get("lost", t_ns), reason
    silent_s = gpu.silent_s
    if silent_s is not None and silent_s >= (policy.HUNG_S if gpu.text("name") else policy.FAR_S):
        return SILENT, t_ns - int(silent_s * 1e9), filled("no call to the driver about it has returned for {:.0f} s", silent_s)
    if gpu.values.get("needs_reset"):
        return RESET, gpu.read_ns.get("needs_reset", t_ns), ENDING_XIDS.get(gpu.values.get("xid"), "")  # type: ignore[call-overload]
    return None
