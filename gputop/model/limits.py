"""What holds a GPU back, in words, worst first: errors that it has had, then why its clocks are held down."""

from __future__ import annotations

from gputop.model.board import GpuBoard
from gputop.model.fields import throttle_words


def limits(gpu: GpuBoard) -> list[str] | None:
    """Errors and NVML's clocks-event reasons; None where the driver tells neither."""
    found, mask = errors(gpu), gpu.number("throttle_mask")
    return None if mask is None and not found else found + throttle_words(None if mask is None else int(mask))


def errors(gpu: GpuBoard) -> list[str]:
    """The latest Xid, uncorrected ECC errors since the driver loaded, and memory rows that wait for a reset or cannot be replaced."""
    xid, ecc = gpu.number("xid"), gpu.number("ecc_uncorrected")
    found = [f"Xid {xid:.0f}"] if xid is not None else []
    if ecc:
        found.append(f"{ecc:.0f} ECC error{'s' if ecc > 1 else ''}")
    return found + [word for field, word in _REMAPS if gpu.values.get(field)]


_REMAPS = (("remap_failed", "row remap failed"), ("remap_pending", "row remap pending"))
