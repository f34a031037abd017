"""NVML and GPM."""

from __future__ import annotations

import os
import time

from gputop.doctor import Check
from gputop.model.frame import SILENT, Frame
from gputop.sources import Beat, Settings, Source, Unavailable

_OPEN_TO_ALL = "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia-profiling.conf; then reboot"
_PATIENCE_S = 2.0  # s for the first GPU to answer; a choice


def checks(root: str) -> list[Check]:
    """NVML, opened as the source opens it; GPM, once a GPU has answered."""
    from gputop.sources.nvml import NvmlSource

    source = NvmlSource(Settings(root=root, everyone=True))
    try:
        state = source.open()
    except Unavailable as why:
        return [
            Check("nvml", "NVML", "missing", why.reason, why.remedy, required=True),
            Check("gpm", "GPM", "missing", "needs NVML"),
        ]
    try:
        facts = ", ".join(f"{name} {value}" for name, value in state.detail.items() if value)
        nvml = Check("nvml", "NVML", "ok" if state.state == "ok" else "limited", state.reason or facts, state.remedy, required=True)
        return [nvml, _gpm(source, root, int(state.detail.get("gpus", 1)))]
    finally:
        source.close()


def _gpm(source: Source, root: str, gpus: int) -> Check:
    """Read until one GPU gives its SM activity, or each has a reason why not that further readings will not change."""
    reasons: dict[int, str] = {}
    deadline, seq = time.monotonic() + _PATIENCE_S, 0
    while time.monotonic() < deadline and (len(reasons) < gpus or any(map(_may_pass, reasons.values()))):
        now = time.monotonic_ns()
        frame = Frame(seq, now, key=seq == 0)
        source.read(Beat(now, seq, seq == 0), frame)
        for gpu in frame.gpus:
            if gpu.sm_active_pct is not None:
                return Check("gpm", "GPM", "ok", "SM, tensor and DRAM activity are read")
            if "sm_active_pct" in gpu.missing:
                reasons[gpu.index] = gpu.missing["sm_active_pct"]
        seq += 1
        time.sleep(0.05)
    missing = next(iter(reasons.values()), "no GPU gave a figure")
    return Check("gpm", "GPM", "limited", missing, _OPEN_TO_ALL if _admin_only(root) and os.geteuid() else "")


def _may_pass(reason: str) -> bool:
    """The first reading has no interval yet, and a silent driver may answer."""
    from gputop.sources.nvml.gpm import FIRST

    return reason == FIRST or reason.startswith(SILENT)


def _admin_only(root: str) -> bool:
    """Whether the driver lets only root profile (/proc/driver/nvidia/params)."""
    try:
        with open(os.path.join(root, "proc/driver/nvidia/params"), encoding="ascii", errors="replace") as file:
            return "RmProfilingAdminOnly: 1" in file.read()
    except OSError:
        return False
