"""Forked children with known work."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.wait import PATIENCE_S

LIFE_S = 3 * round(PATIENCE_S)  # s after which a child ends, though nobody ends it: all that is waited for is over by then


@contextmanager
def child(work: Callable[[], object], most_s: int = LIFE_S) -> Iterator[int]:
    """A forked child that runs ``work`` and is ended after at most ``most_s``."""
    pid = os.fork()
    if not pid:
        signal.alarm(most_s)
        try:
            work()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
