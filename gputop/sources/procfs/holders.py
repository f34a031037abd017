"""Finds the process and thread behind the id that a mutex names as its holder's.

Such an id counts only if it can be the holder's: a thread of the sleeper's own process, or of one that maps the same memory. In a container
locks name threads by their numbers there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress

from gputop.sources import parse
from gputop.sources.files import read_once
from gputop.sources.waits import maps_any

InnerPids = Callable[[int], Iterable[int]]  # number of a process in some other pid namespace -> processes here that have it there
MOST_KNOWN = 16  # holders of one process's locks that are remembered (guess)
MOST_THREADS = 256  # threads of a process in a container whose numbers there are looked at (guess)
_NOBODY = (0, 0)


class Holders:
    """Holders of the locks at which one process sleeps."""

    __slots__ = ("_known", "_pid", "_proc")

    def __init__(self, proc: str, pid: int) -> None:
        self._proc, self._pid = proc, pid
        self._known: dict[tuple[int, str], tuple[int, int]] = {}  # (id in the lock, memory) -> (pid, tid), zeros for nobody

    def find(self, named: int, memory: str, is_inner: bool, inner_pids: InnerPids) -> tuple[int, int]:
        """(pid, tid) of the holder, zeros if the id is nobody's. ``memory``: the lock's, as in `Waits.shared_memory`, empty if it is the
        process's own. ``is_inner``: whether the process lives in another pid namespace, which numbers it otherwise."""
        if not named:
            return _NOBODY
        found = self._known.get((named, memory))
        if found is None or (found[0] and not os.path.exists(f"{self._proc}{found[0]}/task/{found[1]}")):
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            found = self._known[named, memory] = self._look(named, memory, is_inner, inner_pids)
        return found

    def _look(self, named: int, memory: str, is_inner: bool, inner_pids: InnerPids) -> tuple[int, int]:
        if not memory:
            tid = self._own_thread(named) if is_inner else named
            return (self._pid, tid) if tid and os.path.exists(f"{self._proc}{self._pid}/task/{tid}") else _NOBODY
        pids = [(pid, pid) for pid in inner_pids(named)] if is_inner else [(_process_of(self._proc, named), named)]
        return next(((pid, tid) for pid, tid in pids if pid and maps_any(f"{self._proc}{pid}/", [memory])), _NOBODY)

    def _own_thread(self, named: int) -> int:
        """The thread of this process with a number in its own pid namespace; 0 without one."""
        with suppress(OSError):
            for name in os.listdir(f"{self._proc}{self._pid}/task")[:MOST_THREADS]:
                status = read_once(f"{self._proc}{self._pid}/task/{name}/status", 4096) or b""
                if parse.status_line(status, b"NSpid").split()[-1:] == [b"%d" % named]:
                    return int(name)
        return 0


def _process_of(proc: str, tid: int) -> int:
    """Pid of a thread's process; 0 if there is no such thread."""
    return int(parse.status_line(read_once(f"{proc}{tid}/status", 4096) or b"", b"Tgid") or b"0")
