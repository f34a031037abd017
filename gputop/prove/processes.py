"""The process table as an experiment needs it: descendants, jobs, sessions and threads.

Read from /proc/PID/stat in one pass. The guardian and the fuse import this module, so it imports little.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress

from msgspec import Struct

KTHREADD = 2  # pid of the kernel's first thread; outside of the initial pid namespace an ordinary process may have it
CLOCK_TICK_HZ = os.sysconf("SC_CLK_TCK")
_KTHREAD = 0x0020_0000  # PF_KTHREAD (linux/sched.h)
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)  # it has ended, or is hidden; any other error is one of this process
_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Proc(Struct, frozen=True):
    """One process (/proc/PID/stat)."""

    pid: int
    ppid: int
    group: int  # process group: a shell's job
    session: int
    foreground: int  # process group in the foreground of its terminal; -1 without a terminal
    start_ticks: int  # clock ticks since boot; with the pid it names a process for ever
    state: str
    comm: str
    kthread: bool

    @property
    def ended(self) -> bool:
        """A zombie, or on its way out."""
        return self.state in ("Z", "X")


Table = Mapping[int, Proc]  # pid -> process


def parse(pid: int, data: bytes) -> Proc:
    """/proc/PID/stat. The name may hold brackets and spaces: it ends at the last bracket. Raises ValueError or IndexError."""
    end = data.rindex(b")")
    f = data[end + 2 :].split()
    return Proc(
        pid, ppid=int(f[1]), group=int(f[2]), session=int(f[3]), foreground=int(f[5]), start_ticks=int(f[19]), state=f[0].decode(),
        comm=data[data.index(b"(") + 1 : end].decode("utf-8", "replace"), kthread=bool(int(f[6]) & _KTHREAD),
    )  # fmt: skip


def why_no_pids() -> str:
    """The reason why pids in /proc differ from system calls' pids: another pid namespace's /proc is mounted. Else empty."""
    try:
        is_own = os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        is_own = False
    return "" if is_own else "/proc is not that of gputop's pid namespace: its pids are other processes here (mount -t proc proc /proc)"


def read_process(pid: int) -> Proc:
    """Read one process. Raises ProcessLookupError if it does not exist, OSError if no more files can be opened."""
    return _read(pid, f"/proc/{pid}/stat")


def read_thread(pid: int, tid: int) -> Proc:
    """One thread, with its tid in place of the pid. Raises ProcessLookupError if the process has no such thread."""
    return _read(tid, f"/proc/{pid}/task/{tid}/stat")


def read_processes() -> dict[int, Proc]:
    """All processes that this one may see."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(ProcessLookupError):
                found[int(name)] = read_process(int(name))
    return found


def read_threads(pid: int) -> list[Proc]:
    """The threads of a process, its main thread first; none if it has ended."""
    found = []
    with suppress(*GONE):
        for tid in sorted(map(int, os.listdir(f"/proc/{pid}/task")), key=lambda tid: (tid != pid, tid)):
            with suppress(ProcessLookupError):
                found.append(read_thread(pid, tid))
    return found


def pidfd_of(pid: int) -> int | None:
    """A descriptor of the process; None if the kernel or a sandbox has none.

    Raises ProcessLookupError if there is no process, OSError if no more files can be opened.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError as error:
        if error.errno in _SHORT_OF:
            raise
        return None


def uids_of(pid: int) -> frozenset[int]:
    """Real, effective, saved and file system uid (/proc/PID/status). Raises ProcessLookupError."""
    for line in _content(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"Uid:"):
            return frozenset(map(int, line.split()[1:]))
    raise ProcessLookupError(pid)


def cmdline_of(pid: int) -> list[str]:
    """The arguments, cut to 4 KiB; empty for kernel threads and zombies. Raises ProcessLookupError."""
    return [part.decode("utf-8", "replace") for part in _content(f"/proc/{pid}/cmdline")[:4096].rstrip(b"\0").split(b"\0")]


def cpu_ticks_of(pid: int, start_ticks: int) -> int:
    """CPU time of this very process, and of the children that it has waited for, in clock ticks. Raises ProcessLookupError."""
    data = _content(f"/proc/{pid}/stat")
    try:
        f = data[data.rindex(b")") + 2 :].split()
        if int(f[19]) == start_ticks:
            return sum(map(int, f[11:15]))
    except (ValueError, IndexError):
        pass
    raise ProcessLookupError(pid)


def ancestors(table: Table, pid: int) -> list[int]:
    """The parents of a process up to the first, nearest first."""
    found: list[int] = []
    while (proc := table.get(pid)) is not None and proc.ppid > 0 and proc.ppid not in found:
        found.append(pid := proc.ppid)
    return found


def descendants(table: Table, roots: Iterable[int]) -> list[Proc]:
    """The processes ``roots`` that are there, and all that descend from them, parents first."""
    children: dict[int, list[Proc]] = {}
    for proc in table.values():
        children.setdefault(proc.ppid, []).append(proc)
    found = {pid: table[pid] for pid in roots if pid in table}
    ahead = list(found.values())
    for proc in ahead:
        for child in children.get(proc.pid, ()):
            if child.pid not in found:
                found[child.pid] = child
                ahead.append(child)
    return ahead


def _read(pid: int, path: str) -> Proc:
    try:
        return parse(pid, _content(path))
    except (ValueError, IndexError):
        raise ProcessLookupError(pid) from None


def _content(path: str) -> bytes:
    """Content of a file of a process. Raises ProcessLookupError if the process has ended or is hidden, OSError if no more files can be
    opened."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 16) or b""
    except GONE as error:
        raise ProcessLookupError(path) from error
