"""Waiting for what a test is about, instead of for a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

PATIENCE_S = 90.0
"""s that a test waits for what takes seconds on a quiet machine: nobody waits so long unless the thing never comes."""


def at_this_load(seconds: float) -> float:
    """What takes so many seconds at most where a CPU has one process to run may take here: each CPU has several now."""
    return seconds * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def until(check: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Try ``check`` until it holds; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)
