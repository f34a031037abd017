"""The NVLink fabric between GPUs (NVSwitch, NVL72): whether a GPU has joined it, and what is wrong with it by the fabric manager's word.

Numbers and meanings: NVML_GPU_FABRIC_* of nvml.h. The reports of the switches themselves (SXid) stand in the kernel's log alone.
"""

from __future__ import annotations

from typing import NamedTuple

from gputop.sources.nvml import binding as nvml
from gputop.sources.nvml.driver import Device
from gputop.sources.nvml.groups import Missing, Values, Way

FABRIC = ("fabric_state", "fabric_health")
HEALTHY = "healthy"
_STATES = {1: "not started", 2: "in progress", 3: "completed"}  # 0: no fabric
_COMPLETED = 3


class _Part(NamedTuple):
    """A part of the health mask."""

    shift: int
    width: int  # mask of its bits
    words: dict[int, str]  # value -> what is wrong; other values are no fault, 0 is not supported


_PARTS = (
    _Part(0, 3, {1: "degraded bandwidth"}),
    _Part(2, 3, {1: "route recovery in progress"}),
    _Part(4, 3, {1: "unhealthy route"}),
    _Part(6, 3, {1: "recovery after an access timeout"}),
    _Part(8, 15, {2: "incorrect system GUID", 3: "incorrect chassis serial number", 4: "no partition", 5: "too few NVLinks"}),
)


def fabric(device: Device) -> Way:
    """The way to read `FABRIC`."""

    def way(values: Values, missing: Missing) -> None:
        info = device.call(nvml.nvmlDeviceGetGpuFabricInfoV)
        number = info.state & 0xFF
        if not number:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        state = _STATES.get(number, f"state {number}")
        values["fabric_state"] = f"failed: error {info.status} of NVML" if number == _COMPLETED and info.status else state
        health = health_of(info.healthMask)
        if health is None:
            missing["fabric_health"] = "the driver has no health of the fabric"
        else:
            values["fabric_health"] = health

    return way


def health_of(mask: int) -> str | None:
    """``healthy``, or what is wrong by the mask; None if it says nothing."""
    parts = [(part, mask >> part.shift & part.width) for part in _PARTS]
    if not any(value for _, value in parts):
        return None
    return ", ".join(part.words[value] for part, value in parts if value in part.words) or HEALTHY
