"""Waiting for what a test is about, instead of for a time."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(check: Callable[[], object], seconds: float = 20.0) -> None:
    """Try ``check`` until it holds; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)
