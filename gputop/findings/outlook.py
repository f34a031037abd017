"""Predictions of changes (`WhatIf`) in words."""

from __future__ import annotations

from collections.abc import Sequence

from gputop.findings.verdict import WhatIf

NOTHING = 0.02  # deviation from 1 up to which a factor counts as no change
WIDE = 1.3  # ratio of a band's upper to its lower end from which the band is printed

WHAT_IF = "What if: "  # before the changes


def told(one: WhatIf, closely: bool = False) -> str:
    """``8 workers: 1.9×``; with its band if that is wide, or if ``closely``."""
    if one.factor is None or one.low is None or one.high is None:
        return f"{one.change}: not known"
    if abs(one.factor - 1.0) <= NOTHING and not closely:
        return f"{one.change}: nothing"
    digits = 2 if closely or one.factor < 2 else 1
    low, high = (f"{one.low:.2g}", f"{one.high:.2g}") if one.high > WIDE * one.low else (f"{one.low:.{digits}f}", f"{one.high:.{digits}f}")
    band = f" ({low} to {high})" if closely or one.high > WIDE * one.low else ""
    return f"{one.change}: {one.factor:.{digits}f}×{band}"


def sentence(found: Sequence[WhatIf]) -> str:
    """All predictions in one line, except of changes that make a step slower; empty without any."""
    kept = [one for one in found if one.factor is None or one.factor >= 1.0 - NOTHING]
    return f"{WHAT_IF}{' · '.join(map(told, kept))}" if kept else ""
