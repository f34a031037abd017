"""Who a GPU is: read once, and again until the driver says it."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref

from gputop.sources.nvml.abi import Device, PciInfo, bind
from gputop.sources.nvml.reading import ONCE_NS, Reading, one

_ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper", 10: "Blackwell", 13: "Rubin",
}  # fmt: skip


def identity_readings(device: Device) -> list[Reading]:
    """What a GPU is asked when it answers."""
    asked: dict[str, Callable[[], object]] = {
        "name": lambda: device.text("nvmlDeviceGetName"),
        "uuid": lambda: device.text("nvmlDeviceGetUUID"),
        "pci_bus_id": lambda: _pci_bus_id(device),
        "architecture": lambda: _architecture(device.number("nvmlDeviceGetArchitecture")),
    }
    return [one(field, ONCE_NS, read) for field, read in asked.items()]


def _pci_bus_id(device: Device) -> str:
    pci = PciInfo()
    device.call(bind("nvmlDeviceGetPciInfo_v3"), byref(pci))
    return str(pci.bus_id.decode("ascii", "replace"))


def _architecture(code: int) -> str:
    return _ARCHITECTURES.get(code, f"architecture {code}")
