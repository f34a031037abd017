"""Network namespaces of other processes, as of containers: which one a process is in, and how a thread enters it."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_NEWNET = 0x40000000  # CLONE_NEWNET (linux/sched.h)


def namespace(folder: str) -> int:
    """Inode of the network namespace of the process under ``folder``; 0 if it may not be read."""
    with suppress(OSError):
        return os.stat(f"{folder}ns/net").st_ino
    return 0


def enter(path: str, space: int) -> bool:
    """Make the network of this thread the one that ``path`` in /proc names, if that is ``space``; False where it may not be entered, which
    takes root. The thread cannot go back."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.fstat(descriptor).st_ino == space and not ctypes.CDLL(None, use_errno=True).setns(descriptor, _NEWNET)
        finally:
            os.close(descriptor)
    return False
