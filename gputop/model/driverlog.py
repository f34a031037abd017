"""Errors that NVIDIA's driver reports in the kernel's log: Xids of GPUs, and SXids of NVSwitches."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gputop.model.ranges import Count, Ns, Pid

XID, SXID = "xid", "sxid"
DRIVER_ERROR_KEY = ("kind", "device", "number", "link")


class DriverError(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One kind of error of one device, as it was reported last, since the machine booted and as far as the kernel's log reaches back."""

    kind: str  # `XID` or `SXID`
    device: str  # PCI address of the GPU or NVSwitch: ``0000:3b:00``
    number: Count
    t_ns: Ns = 0  # when the latest was read (CLOCK_MONOTONIC)
    logged_ns: Ns = 0  # the latest's time in the kernel's log: about CLOCK_MONOTONIC
    times: Count = 1
    link: Count | None = None  # of the NVSwitch
    fatal: bool | None = None  # of an SXid, as the driver states it
    pid: Pid | None = None  # whose work met the Xid
    process: str = ""  # that one's name
    text: str = ""  # the driver's words
    old: bool = False  # it was reported before gputop began to watch, and not since


def errors_by_key(read: Iterable[DriverError]) -> dict[tuple[str, str, int, int | None], DriverError]:
    """`DRIVER_ERROR_KEY` -> the newest reading."""
    return {(one.kind, one.device, one.number, one.link): one for one in read}


def pci_device(address: str) -> str:
    """``0000:3b:00`` of ``00000000:3B:00.0``; empty for what is no PCI address."""
    domain, _, rest = address.lower().partition(":")
    place = rest.partition(".")[0]
    try:
        return f"{int(domain, 16):04x}:{place}" if len(place) == 5 and place[2] == ":" and int(place.replace(":", ""), 16) >= 0 else ""
    except ValueError:
        return ""
