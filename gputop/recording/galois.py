"""Arithmetic of bytes in GF(256), by which `gputop.recording.parity` brings back what is lost: sums are exclusive ors.

Byte strings are multiplied by a number through ``bytes.translate``, and added as Python's own long integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

_POLYNOMIAL = 0x11D
"""x^8 + x^4 + x^3 + x^2 + 1, of which 2 is a generator."""


def inverse(number: int) -> int:
    """Of 1 to 255."""
    powers, exponents = _tables()
    return powers[255 - exponents[number]]


def product(a: int, b: int) -> int:
    """Of two numbers."""
    return times(b)[a]


@cache
def times(factor: int) -> bytes:
    """What each number gives when it is multiplied by ``factor``: a table for ``bytes.translate``."""
    powers, exponents = _tables()
    return bytes([powers[exponents[factor] + exponents[number]] if factor and number else 0 for number in range(256)])


@cache
def _tables() -> tuple[Sequence[int], Sequence[int]]:
    """The powers of 2, twice over, and of which power each number is."""
    powers, exponents, power = [0] * 510, [0] * 256, 1
    for exponent in range(255):
        powers[exponent] = powers[exponent + 255] = power
        exponents[power] = exponent
        power = power << 1 ^ (_POLYNOMIAL if power & 0x80 else 0)
    return powers, exponents


def solve(matrix: list[list[int]], sums: list[int], size: int) -> list[int]:
    """The byte strings of ``size`` that, multiplied by each row of an invertible square ``matrix``, give the ``sums``.

    Byte strings are little-endian integers. Both lists are used up.
    """
    for column, _ in enumerate(matrix):
        pivot = next(row for row in range(column, len(matrix)) if matrix[row][column])
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        sums[column], sums[pivot] = sums[pivot], sums[column]
        factor = inverse(matrix[column][column])
        matrix[column] = [product(number, factor) for number in matrix[column]]
        sums[column] = _scaled(sums[column], factor, size)
        for row, numbers in enumerate(matrix):
            if row != column and numbers[column]:
                factor = numbers[column]
                matrix[row] = [a ^ product(b, factor) for a, b in zip(numbers, matrix[column], strict=True)]
                sums[row] ^= _scaled(sums[column], factor, size)
    return sums


def _scaled(string: int, factor: int, size: int) -> int:
    """A byte string multiplied by a number."""
    return int.from_bytes(string.to_bytes(size, "little").translate(times(factor)), "little")
