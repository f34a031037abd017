"""What a capture does to its target: nothing. `make bench` measures the gaps that a spinning one sees meanwhile."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from gputop.stacks.capture import capture
from tests.stacks.conftest import Target
from tests.wait import until

PTRACE_SEIZE = 0x4206


def debug(pid: int) -> None:
    """We are its debugger, without stopping it: nobody else can attach, and whatever stops it is told to us."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(ctypes.c_long(PTRACE_SEIZE), ctypes.c_long(pid), None, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def test_the_target_is_not_paused(start: Callable[..., Target], tmp_path: Path) -> None:
    path = tmp_path / "gaps"
    path.write_bytes(bytes(16))
    pid = start("spinning", str(path)).pid

    def is_read() -> bool:
        taken = capture([pid])
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it was stopped"
        assert not taken.native
        return any("spinning" in line for stack in taken.stacks for line in stack.python)

    debug(pid)
    for _ in range(5):
        until(is_read)
