"""Commands of observed facts. Whatever a process, a control group, a unit or a device is called, it is one word to the shell that they
are pasted into, and no option of the program that it is given to.

Numbers may be put into a command as they are; every text goes through here.
"""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote


def word(text: str) -> str:
    """``text`` as one word."""
    return quote(text)


def operand(text: str) -> str:
    """The same behind a program's options, though it begin like one."""
    return f"-- {quote(text)}" if text.startswith("-") else quote(text)


def kill(pids: Iterable[int], signal: str = "") -> str:
    """``kill -CONT 12 13``; empty where no process is named: to kill, numbers below 1 mean groups and everybody."""
    named = " ".join(str(pid) for pid in pids if pid > 1)
    return f"kill {f'-{signal} ' if signal else ''}{named}" if named else ""
