"""The halves of the corpus, as they were drawn once (`split.toml`)."""

from __future__ import annotations

import hashlib
import importlib
import sys
from functools import cache
from pathlib import Path
from typing import Any

LEARN, HOLD_OUT = HALVES = ("learn", "hold-out")
FILE = Path(__file__).with_name("split.toml")


@cache
def drawn() -> dict[str, Any]:
    """The file's content."""
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    found: dict[str, Any] = toml.loads(FILE.read_text())
    return found


def half_of(name: str) -> str:
    """The half of a workload or a kept recording. One that came after the draw has its half by the hash of its name."""
    for one in drawn()["round"]:
        for half in HALVES:
            if name in one[half]:
                return half
    return HALVES[int(hashlib.sha256(f"{drawn()['seed']} {name}".encode()).hexdigest()[0], 16) & 1]
