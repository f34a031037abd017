"""Names and ends of the demo's processes (prctl(2), by ctypes: no compiler)."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def set_name(name: str) -> None:
    """Give the calling thread a name of up to 15 bytes, as torch does with its workers."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send ``number`` to this process when its parent ends, however that happens; at once if it has."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)
