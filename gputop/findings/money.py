"""What lost GPU time costs."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import floor
from typing import TypeVar

from msgspec import Struct

K = TypeVar("K")


def apportion(parts: Mapping[K, float | Fraction]) -> dict[K, int]:
    """Whole numbers for the parts, which sum to the rounded sum of all: those with the largest remainders are rounded up."""
    whole = {key: floor(value) for key, value in parts.items()}
    left = floor(sum(Fraction(value) for value in parts.values()) + Fraction(1, 2)) - sum(whole.values())
    for key in sorted(parts, key=lambda key: whole[key] - parts[key])[: max(0, left)]:
        whole[key] += 1
    return whole


class GpuHourPrice(Struct, frozen=True):
    """Price of a GPU hour."""

    per_hour: Fraction
    currency: str = ""

    def cents(self, seconds: Mapping[K, float]) -> dict[K, int]:
        """Costs of the parts in hundredths; their sum is the cost of the whole."""
        return apportion({key: s * self.per_hour / 36 for key, s in seconds.items()})


def money(amount: float | None, currency: str | None) -> str:
    """``12.30 EUR``; empty without a price."""
    return "" if amount is None else f"{amount:.2f}{f' {currency}' if currency else ''}"
