"""Bounds of NVML's numbers. A driver that fails or is half updated gives impossible ones.

Each function returns the number in the unit of `gputop.model.frame.Gpu`. It raises NoValue for a number that is out of bounds, and
NVML_ERROR_NO_DATA for one with all bits set, which is NVML's "not available".
"""

from __future__ import annotations

from gputop.sources.nvml import binding as nvml

NOT_AVAILABLE = (2**32 - 1, 2**64 - 1)
MOST_BYTES = 1 << 44  # bytes of a GPU's memory: 50 times that of the largest
MOST_GPUS = 256  # a choice
_MOST_COUNT = 2**63 - 1  # what the stream and SQL hold; a terabyte a second takes 100 days to count so far


class NoValue(Exception):
    """The driver answered, but with no usable number; the text has the reason."""


def checked(number: float, least: float, most: float, unit: str = "") -> float:
    """``number``, if it lies between ``least`` and ``most``."""
    if number in NOT_AVAILABLE:
        raise nvml.NVMLError(nvml.NVML_ERROR_NO_DATA)
    if not least <= number <= most:  # NaN lies between no two numbers
        raise NoValue(f"the driver reports {number:g}{unit}, which is impossible")
    return number


def count(number: float, unit: str = "") -> int:
    return int(checked(number, 0, _MOST_COUNT, unit))


def gpus(number: int) -> int:
    return int(checked(number, 0, MOST_GPUS, " GPUs"))


def percent(number: float) -> float:
    return float(checked(number, 0, 100, " %"))


def fan_percent(number: float) -> float:
    return float(checked(number, 0, 200, " %"))  # nvml.h: "this value may exceed 100%"


def watts(milliwatts: float) -> float:
    return checked(milliwatts, 0, 10_000_000, " mW") / 1000


def watts_limit(milliwatts: float) -> float:
    return checked(milliwatts, 1, 10_000_000, " mW") / 1000  # no GPU runs with a limit of 0


def megahertz(number: float) -> int:
    return int(checked(number, 0, 100_000, " MHz"))


def megahertz_limit(number: float) -> int:
    return int(checked(number, 1, 100_000, " MHz"))


def link(number: int) -> int:
    """A PCIe link's generation or its number of lanes."""
    return int(checked(number, 1, 64))


def pstate(number: int) -> int:
    if number == nvml.NVML_PSTATE_UNKNOWN:
        raise nvml.NVMLError(nvml.NVML_ERROR_NO_DATA)
    return int(checked(number, 0, 15))


def bytes_per_s(kilobytes: int) -> float:
    """A PCIe link's rate. No link reaches a terabyte a second; a rate below 0 in 32 bits lies above it."""
    return checked(kilobytes, 0, 1_000_000_000, " KB/s") * 1000.0


def memory(whole: int) -> int:
    return int(checked(whole, 1, MOST_BYTES, " bytes"))


def part_of(whole: int, used: int) -> int:
    """``used`` bytes of ``whole``."""
    if count(used) > whole:
        raise NoValue(f"the driver reports {used} of {whole} bytes in use, which is impossible")
    return used


def celsius(degrees: float) -> float:
    """A temperature; some calls give a negative one as an unsigned number of 32 bits."""
    signed = degrees - (1 << 32) if 1 << 31 <= degrees < NOT_AVAILABLE[0] else degrees
    return float(checked(signed, -100, 200, " °C"))
