"""Waiting for what a test is about, instead of for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 90.0
"""s that a test waits for what takes seconds on a quiet machine: nobody waits so long unless the thing never comes."""


def until(check: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Try ``check`` until it holds; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)
