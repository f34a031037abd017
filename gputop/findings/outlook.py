"""TODO"""

from __future__ import annotations

from collections.abc import Sequence

from gputop.findings.verdict import WhatIf

NOTHING = 0.02  # off 1, up to which a factor is called nothing
WIDE = 1.3  # of the upper to the lower end of a band, from which it is told


def told(one: WhatIf, closely: bool = False) -> str:
    """``8 workers: 1.9×``; with its band where that is wide, or ``closely``."""
    if one.factor is None or one.low is None or one.high is None:
        return f"{one.change}: not known"
    if abs(one.factor - 1.0) <= NOTHING and not closely:
        return f"{one.change}: nothing"
    band = f" ({one.low:.2g} to {one.high:.2g})" if closely or one.high > WIDE * one.low else ""
    return f"{one.change}: {one.factor:.{2 if closely or one.factor < 2 else 1}f}×{band}"


def sentence(found: Sequence[WhatIf]) -> str:
    """In a line, without those that would make it slower; empty without any."""
    kept = [one for one in found if one.factor is None or one.factor >= 1.0 - NOTHING]
    return f"What if: {' · '.join(map(told, kept))}" if kept else ""
