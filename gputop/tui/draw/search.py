"""Filters of every table: all of some words, or ``!regex``."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gputop.system.text import clean

PATIENCE_S = 0.05  # s for one search in one text: `(a+)+b` takes twice as long with each letter


def matches(pattern: str, texts: Iterable[str]) -> bool:
    """True if a filter finds a row: all its words, or ``!regex``, in the row's texts.

    ``^`` and ``$`` are the ends of each text. What is no regular expression (yet) hides nothing, see `why_no_search`.
    """
    text = "\n".join(map(clean, texts))
    if pattern.startswith("!"):
        return finds(pattern[1:], text)
    return all(word in text.lower() for word in pattern.lower().split())


def why_unused(pattern: str) -> str:
    """A line on why a filter hides nothing; empty if it is words, or a regular expression that works."""
    problem = why_no_search(pattern[1:]) if pattern.startswith("!") else ""
    return f"{pattern[1:]} is no usable regular expression, so nothing is hidden: {problem}" if problem else ""


_endless: set[str] = set()  # expressions that took longer than `PATIENCE_S`: they are not tried again


def finds(expression: str, text: str) -> bool:
    """True if a regular expression is found in a text, is invalid, or takes too long."""
    if why_no_search(expression):
        return True
    try:
        with _limited_time():
            return re.search(expression, text, re.IGNORECASE | re.MULTILINE) is not None
    except TimeoutError:
        _endless.add(expression)
        return True


def why_no_search(expression: str) -> str:
    """Why the expression cannot be used: it is not valid, or takes too long to search with; empty if it works."""
    try:
        re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return "it takes too long" if expression in _endless else ""


@contextmanager
def _limited_time() -> Iterator[None]:
    """Raises TimeoutError after `PATIENCE_S`, by SIGALRM, which the regex engine honours; only in the main thread, where signals arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _raise_timeout(_number: int, _frame: object) -> None:
    raise TimeoutError
