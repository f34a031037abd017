"""Regular expressions that people type: one that is none (yet), or that would search for years, hides nobody."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 0.05
"""For one text. `(a+)+b` takes twice as long with each letter."""
_endless: set[str] = set()
"""Expressions that took longer: they are not tried again."""


def searched(expression: str, text: str) -> bool:
    """Whether it is found, or is `no_expression`."""
    if no_expression(expression):
        return True
    try:
        with _patience():
            return re.search(expression, text, re.IGNORECASE | re.MULTILINE) is not None
    except TimeoutError:
        _endless.add(expression)
        return True


def no_expression(expression: str) -> str:
    """Why it is no regular expression, or none to search with; empty where it is."""
    try:
        re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return "it takes too long" if expression in _endless else ""


@contextmanager
def _patience() -> Iterator[None]:
    """Raises TimeoutError after `PATIENCE_S`, by a signal: the engine of expressions looks for these as it goes. In the main thread alone,
    which alone gets signals, and where the screen is drawn."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _end)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _end(_number: int, _frame: object) -> None:
    raise TimeoutError
