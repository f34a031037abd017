"""Times of day and lengths of time, as every part of the screen shows them."""

from __future__ import annotations

from time import localtime, strftime

NEARLY_S = 0.05
"""A frame that comes so little before a second is of that second."""


def of_day(unix_s: float, tenths: bool = False) -> str:
    """``14:03:07``, or ``14:03:07.2``, local."""
    whole, tenth = divmod(int((unix_s + NEARLY_S) * 10), 10)
    return strftime("%H:%M:%S", localtime(whole)) + (f".{tenth}" if tenths else "")


def length(seconds: float, tenths: bool = False) -> str:
    """``0:07``, ``12:30`` or ``3:07:05``, or ``0:07.2``."""
    whole, tenth = divmod(int((max(0.0, seconds) + NEARLY_S) * 10), 10)
    minutes, left = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
    return text + (f".{tenth}" if tenths else "")
