"""What a number of NVML's may be. A driver that fails or is half updated says what cannot be; each kind of number has its bounds here."""

from __future__ import annotations

import pynvml

NONE = (2**32 - 1, 2**64 - 1)
"""All bits set: NVML's word for no number."""
_MOST = 2**63 - 1
"""What the stream and SQL hold; at a terabyte a second a counter takes a hundred days to get there."""
MOST_BYTES = 1 << 44
"""Of a GPU's memory: fifty times that of the largest."""
_MOST_MW = 10_000_000
_LEAST_C, _MOST_C = -100, 200
_MOST_MHZ = 100_000
_MOST_GPUS = 256
_MOST_FAN_PCT = 200
"""NVML's words: it may exceed 100."""
_MOST_LINK = 64
_MOST_PSTATE = 15
_MOST_KB_PER_S = 1_000_000_000
"""A terabyte a second: no link is near it, and what went below 0 in 32 bits lies above it."""


class NoValue(Exception):
    """The driver answers, and yet there is none; says why."""


def some(number: int) -> int:
    """A number that a call wrote, whatever it is; raises NVML_ERROR_NO_DATA where all its bits are set."""
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


def fan(number: float) -> float:
    """A fan's speed, of what it is meant to do at most."""
    return float(_between(0, number, _MOST_FAN_PCT, " %"))


def watts(milliwatts: float) -> float:
    """Power."""
    return _between(0, milliwatts, _MOST_MW, " mW") / 1000


def limit_watts(milliwatts: float) -> float:
    """A limit of it; with one of nothing no GPU runs."""
    return _between(1, milliwatts, _MOST_MW, " mW") / 1000


def megahertz(number: float) -> int:
    """A clock."""
    return int(_between(0, number, _MOST_MHZ, " MHz"))


def limit_megahertz(number: float) -> int:
    """A clock's limit."""
    return int(_between(1, number, _MOST_MHZ, " MHz"))


def link(number: int) -> int:
    """A PCIe link's generation, or how many lanes it has."""
    return int(_between(1, number, _MOST_LINK, ""))


def pstate(number: int) -> int:
    """A performance state."""
    return int(_between(0, number, _MOST_PSTATE, ""))


def bytes_per_s(kilobytes: int) -> float:
    """What a PCIe link moves."""
    return _between(0, kilobytes, _MOST_KB_PER_S, " KB/s") * 1000.0


def devices(number: int) -> int:
    """How many GPUs there are."""
    return int(_between(0, number, _MOST_GPUS, " GPUs"))


def memory(whole: int) -> int:
    """Bytes of memory there are."""
    return int(_between(1, whole, MOST_BYTES, " bytes"))


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
