"""What a number of NVML's may be. A driver that fails or is half updated says what cannot be; each kind of number has its bounds here."""

from __future__ import annotations

import pynvml

NONE = (2**32 - 1, 2**64 - 1)
"""All bits set: NVML's word for no number."""
_MOST = 2**63 - 1
"""What the stream and SQL hold; at a terabyte a second a counter takes a hundred days to get there."""
_MOST_MW = 100_000_000
_LEAST_C, _MOST_C = -100, 500
_MOST_MHZ = 100_000
_MOST_GPUS = 256
_MOST_KB_PER_S = 1_000_000_000
"""A terabyte a second: no link is near it, and what went below 0 in 32 bits lies above it."""


class NoValue(Exception):
    """The driver answers, and yet there is none; says why."""


def known(number: int) -> int | None:
    """A number that a call wrote; None where all its bits are set, by which NVML says that there is none, and where it cannot be."""
    return None if number in NONE or number > _MOST else number


def some(number: int) -> int:
    """The same, whatever it is; raises NVML_ERROR_NO_DATA where there is none."""
    if number in NONE:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_DATA)
    return number


def given(number: int) -> int:
    """The same of what is counted from 0, see `count`."""
    return count(some(number))


def count(number: float, unit: str = "") -> int:
    """What is counted from 0. Raises NoValue where it cannot be, as the functions below."""
    return int(_between(0, number, _MOST, unit))


def percent(number: float) -> float:
    """A share of time."""
    return float(_between(0, number, 100, " %"))


def watts(milliwatts: float) -> float:
    """Power, or a limit of it."""
    return _between(0, milliwatts, _MOST_MW, " mW") / 1000


def megahertz(number: float) -> int:
    """A clock, or its limit."""
    return int(_between(0, number, _MOST_MHZ, " MHz"))


def bytes_per_s(kilobytes: int) -> float:
    """What a PCIe link moves."""
    return _between(0, kilobytes, _MOST_KB_PER_S, " KB/s") * 1000.0


def devices(number: int) -> int:
    """How many GPUs there are."""
    return int(_between(0, number, _MOST_GPUS, " GPUs"))


def part_of(whole: int, used: int) -> int:
    """Bytes in use of all there are."""
    if used > whole:
        raise NoValue(f"the driver says that {used} of {whole} bytes are in use, which cannot be")
    return used


def celsius(degrees: float) -> float:
    """A temperature; the driver writes a signed number of 32 bits as an unsigned one."""
    return float(_between(_LEAST_C, degrees - (1 << 32) if 1 << 31 <= degrees < 1 << 32 else degrees, _MOST_C, " °C"))


def _between(least: int, number: float, most: int, unit: str) -> float:
    if not least <= number <= most:  # nor does NaN lie between any two
        raise NoValue(f"the driver says {number:g}{unit}, which cannot be")
    return number
