"""One thread as the kernel shows it: state, system call, wait channel, kernel stack, and its wait in words.

Sources: /proc/PID/task/TID/{comm,stat,syscall,wchan,stack}, /proc/PID/{fd,fdinfo} and /proc/PID/mountinfo. Nothing here opens a file that
the process uses, so a dead network mount cannot hang the reader.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable

from msgspec import Struct

from gputop.model.syscalls import syscall_names
from gputop.sources import parse, waits
from gputop.sources.files import mounted, read_once

_BOUND = 1 << 20  # bytes read of a file of /proc
MAX_KERNEL_FRAMES = 64  # of a thread, the innermost

# State of a thread that neither runs nor sleeps -> words.
STATES = {"T": "stopped (SIGSTOP or job control): `kill -CONT {pid}` lets it go on", "t": "stopped by a debugger",
          "Z": "zombie: it ended and its parent has not reaped it", "X": "dead"}  # fmt: skip

# System calls that wait on the descriptor in their first argument.
_ON_DESCRIPTOR = frozenset({
    "read", "pread64", "readv", "preadv", "preadv2", "write", "pwrite64", "writev", "pwritev", "pwritev2", "fsync", "fdatasync",
    "sync_file_range", "ioctl", "flock", "fcntl", "fallocate", "ftruncate", "getdents64", "recvfrom", "recvmsg", "recvmmsg", "sendto",
    "sendmsg", "sendmmsg", "accept", "accept4", "connect", "epoll_wait", "epoll_pwait", "epoll_pwait2", "sendfile", "splice",
    "copy_file_range", "readahead", "fadvise64", "io_uring_enter",
})  # fmt: skip
_SLEEPS = frozenset({"nanosleep", "clock_nanosleep"})
# Prefixes of kernel functions by which the kernel was entered: left out of stacks.
_ENTRY = (
    "entry_SYSCALL", "do_syscall_64", "x64_sys_call", "asm_", "irqentry_", "exit_to_user_mode", "syscall_exit_to_user", "ret_from_fork",
    "el0_", "el0t_", "__el0_", "el1_", "el1h_", "__el1_", "do_el0_svc", "invoke_syscall", "do_notify_resume",
)  # fmt: skip


class KernelView(Struct, frozen=True):
    """One thread as the kernel shows it. ``missing``: part (``syscall``, ``wchan``, ``stack``) -> why it cannot be read."""

    tid: int
    comm: str
    state: str
    syscall: str = ""
    args: tuple[int, ...] = ()
    wchan: str = ""
    frames: tuple[str, ...] = ()
    missing: dict[str, str] = {}
    kthread: bool = False  # a kernel thread, which has no user code


def read_file(path: str) -> str:
    """The first 1 MiB of a file. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        data = b""
        while len(data) < _BOUND and (part := file.read(65536)):  # /proc gives a page at a time
            data += part
    return data.decode("utf-8", "replace")


def view_thread(pid: int, tid: int, root: str = "/") -> KernelView | None:
    """The thread as the kernel shows it now; None if it has ended."""
    base = os.path.join(root, "proc", str(pid), "task", str(tid))
    try:
        with open(f"{base}/stat", "rb") as file:
            stat = parse.stat(file.read())
    except OSError:
        return None
    missing: dict[str, str] = {}
    number, args = _parse_syscall(_try(f"{base}/syscall", "syscall", missing))
    return KernelView(
        tid=tid, comm=parse.text(stat.comm), state=stat.state, kthread=stat.kthread, args=args,
        syscall="" if number is None or stat.kthread else syscall_names().get(number, f"syscall {number}"),
        wchan=_wchan(_try(f"{base}/wchan", "wchan", missing)),
        frames=in_kernel(line.rpartition("] ")[2].partition("+")[0] for line in _try(f"{base}/stack", "stack", missing).splitlines()),
        missing=missing,
    )  # fmt: skip


def thread_list(pid: int, root: str = "/") -> list[int]:
    """The thread ids of a process; empty if it has ended."""
    try:
        return [int(name) for name in os.listdir(os.path.join(root, "proc", str(pid), "task"))]
    except OSError:
        return []


def _try(path: str, part: str, missing: dict[str, str]) -> str:
    try:
        return read_file(path)
    except PermissionError:
        missing[part] = "not permitted, even for root" if os.geteuid() == 0 else "needs root"
    except (FileNotFoundError, ProcessLookupError):
        missing[part] = "the process ended, or this kernel has none"
    except OSError as error:
        missing[part] = error.strerror or str(error)
    return ""


def _parse_syscall(text: str) -> tuple[int | None, tuple[int, ...]]:
    """``7 0x7f… 0x1 0x1388 … sp pc`` -> (7, its six arguments); None, () for ``running`` and ``-1 sp pc``."""
    words = text.split()
    if len(words) < 7 or not words[0].isdigit():
        return None, ()
    return int(words[0]), tuple(int(word, 16) for word in words[1:7])


def _wchan(text: str) -> str:
    """The content of /proc/…/wchan; empty for ``0``, which means "it runs" or "not permitted"."""
    return "" if text.strip() == "0" else _symbol(text)


def _symbol(text: str) -> str:
    """A kernel function's name without the compiler's suffix (``.isra.0``, ``.constprop.0``)."""
    return text.strip().partition(".")[0]


def in_kernel(symbols: Iterable[str]) -> tuple[str, ...]:
    """Kernel functions for display: without the compiler's suffixes, the entry into the kernel, and bare addresses, which aarch64 finds on
    the stack of a running thread."""
    names = (_symbol(symbol) for symbol in symbols)
    return tuple(name for name in names if name and not name.startswith(("0x", *_ENTRY)))[:MAX_KERNEL_FRAMES]


def wait_words(pid: int, view: KernelView, root: str = "/") -> str:
    """The thread's wait in words: ``pread64 of /data/train.bin on nvme0n1 (folio_wait_bit_common)``."""
    if view.state in STATES:
        return STATES[view.state].format(pid=pid)
    if view.state == "R":
        return "running, or waiting for a CPU"
    where = f" ({view.wchan})" if view.wchan else ""
    if not view.syscall:
        return f"in the kernel{where}" if where or view.state == "D" else ""
    return _call_words(pid, view, root) + where


def _call_words(pid: int, view: KernelView, root: str) -> str:
    if view.syscall in _SLEEPS:
        return f"sleeping: {view.syscall}"
    if view.syscall in ("poll", "ppoll") and view.args:
        return _poll_words(pid, view, root)
    if view.syscall in _ON_DESCRIPTOR and view.args:
        return f"{view.syscall} of {_descriptor(pid, view.args[0], root)}"
    return view.syscall


def _poll_words(pid: int, view: KernelView, root: str) -> str:
    """The call and its timeout. aarch64 has only ppoll, with its timeout in the process's memory."""
    unit = waits.MS if view.syscall == "poll" else waits.NANO
    limit_ms = waits.timeout_ms(view.args[2], unit, os.path.join(root, "proc", str(pid), ""))
    return view.syscall if limit_ms is None or limit_ms < 0 else f"{view.syscall}, at most {limit_ms} ms"


def _descriptor(pid: int, number: int, root: str) -> str:
    base = os.path.join(root, "proc", str(pid))
    number &= 0xFFFFFFFF
    try:
        target = os.readlink(os.fsencode(f"{base}/fd/{number}"))[:512].decode("utf-8", "replace")
    except OSError:
        return f"fd {number}"
    device = _device(base, number) if target.startswith("/") and not _is_fifo(f"{base}/fd/{number}") else ""
    return f"{target} on {device}" if device else target


def _is_fifo(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def _device(base: str, number: int) -> str:
    """The device or export of the mount that holds an open file (mnt_id of fdinfo, looked up in mountinfo); empty if unknown."""
    fdinfo = re.search(rb"^mnt_id:\s+(\d+)$", read_once(f"{base}/fdinfo/{number}", 1024) or b"", re.MULTILINE)
    sources = (one.source for one in mounted(f"{base}/mountinfo") if fdinfo and one.id == fdinfo[1].decode())
    return os.path.basename(next(sources, ""))
