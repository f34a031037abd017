"""Names and numbers of system calls on x86_64 and aarch64, as gputop/data/syscalls.txt lists them."""

from __future__ import annotations

import os
import platform
from functools import lru_cache

from gputop.system.program import FOLDER


@lru_cache
def syscall_names(machine: str = "") -> dict[int, str]:
    """System call number -> name for ``machine`` (``uname -m``; "": this machine); empty for an unknown one."""
    return _listed(machine or platform.machine())


@lru_cache
def _listed(machine: str) -> dict[int, str]:
    """Names that the shipped list has for a machine, kept by its name alone: the file may not be readable once root is left."""
    names: dict[int, str] = {}
    with open(os.path.join(FOLDER, "data", "syscalls.txt"), encoding="utf-8") as file:
        for line in file:
            listed, first, *words = line.split()
            if listed == machine or (names and listed == "both"):
                names.update(enumerate(words, int(first)))
    return names


@lru_cache
def syscall_numbers(*wanted: str, machine: str = "") -> frozenset[int]:
    """Numbers of system calls on ``machine``, as far as it has them."""
    return frozenset(number for number, name in syscall_names(machine).items() if name in wanted)


FUSE_SERVING = "fuse_dev_"  # beginning of the kernel's functions in which a daemon of a FUSE file system waits for requests
_FUSE = ("request_wait_answer", "fuse_")  # beginnings of those in which a thread waits for such a daemon, or is one


def is_fuse(wchan: str | None) -> bool:
    """True if a thread sleeps, by its wchan, until a process of this host serves a file."""
    return wchan is not None and wchan.startswith(_FUSE) and not wchan.startswith(FUSE_SERVING)
