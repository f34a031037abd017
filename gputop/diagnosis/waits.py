"""What a sleeping thread waits for, from one sample of /proc: state, system call, its telling argument, wchan.

System call numbers are matched first (they never change), kernel function names second (they do). Where neither can be
read (another user's process, or yama's ptrace_scope) the answer is ``unknown``, not a guess.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import lru_cache

TORCH_POLL_MS = 5000
"""MP_STATUS_CHECK_INTERVAL of torch/utils/data/_utils: an idle worker polls its index queue, a waiting trainer the data queue, with it."""

QUEUE, LOCK, NETWORK, PIPE, TIMER, DISK, POLL, CHILD, DRIVER, UNKNOWN, STOPPED, ONCPU = (
    "queue", "lock", "network", "pipe", "timer", "disk", "poll", "child", "driver", "unknown", "stopped", "on-cpu",
)  # fmt: skip

STOPPED_STATES = "Tt"  # of /proc/PID/stat: by a signal, or by a debugger
ENDED_STATES = "ZX"  # a dead process whose parent has not asked for its end yet, and one that is just going

_X86_64 = {
    LOCK: (202, 449, 73, 72, 65, 220), NETWORK: (45, 47, 44, 46, 42, 299), PIPE: (0, 1, 19, 20), TIMER: (35, 230, 34),
    DISK: (17, 18, 295, 296, 327, 328, 74, 75, 162, 2, 257, 4, 5, 6, 262, 332, 217, 26, 40, 326, 187, 82, 83, 87, 263, 10, 11, 12, 9,
           208, 333, 426),
    POLL: (7, 271, 23, 270, 232, 281, 441, 43, 288), CHILD: (61, 247, 56, 58, 435), DRIVER: (16,),
}  # fmt: skip
_AARCH64 = {
    LOCK: (98, 449, 32, 25, 193, 192), NETWORK: (207, 212, 206, 211, 203, 243), PIPE: (63, 64, 65, 66), TIMER: (101, 115),
    DISK: (67, 68, 69, 70, 286, 287, 82, 83, 81, 56, 79, 80, 291, 61, 227, 71, 285, 213, 34, 35,
           38, 276, 222, 226, 215, 214, 4, 292, 426),
    POLL: (73, 72, 22, 441, 202, 242), CHILD: (260, 95, 220, 435), DRIVER: (29,),
}  # fmt: skip
_MACHINES = {"x86_64": (_X86_64, (7, 271)), "aarch64": (_AARCH64, (73,))}  # kinds of system calls, and the polls with a time limit

_WRITE = {"x86_64": 1, "aarch64": 64}
STDERR = 2
_OUTPUT = (1, STDERR)
_WOKEN = "wait_woken"  # where a socket is waited for, and a terminal that takes no more

_UNSENT = ("sock_alloc_send", "sock_wait_for_wmem")  # where a UNIX socket's writer waits for its reader (net/core/sock.c)

# Beginnings of kernel function names, from 5.15 to 6.18. Accepting waits for anybody, as polls do. The network's and the disk's
# come early: they decide what a plain read waits for.
_WCHAN = (
    (POLL, ("inet_csk_accept", "unix_accept")),
    (NETWORK, ("sk_wait", "wait_woken", "tcp_", "inet_", "rpc_", "nfs", "request_wait_answer", "fuse_", "ceph_", "ptlrpc", "smb", "cifs")),
    (DISK, ("folio_wait", "wait_on_page", "io_schedule", "blk_", "submit_bio", "__iomap", "filemap_", "jbd2_", "ext4_", "xfs_", "btrfs_",
            "bit_wait_io", "wait_on_buffer", "__wait_on_buffer", "rq_qos_wait", "wbt_wait", "balance_dirty", "xlog_", "do_writepages",
            "read_events", "io_cqring_wait")),
    (PIPE, ("pipe_", "anon_pipe_", "fifo_open", "wait_for_partner", "unix_stream", "unix_dgram", "unix_wait", *_UNSENT)),
    (LOCK, ("futex_", "do_futex", "flock_lock", "fcntl_setlk", "locks_", "do_sem", "rwsem_", "__mutex", "mutex_")),
    (TIMER, ("hrtimer_nanosleep", "do_nanosleep", "common_nsleep")),
    (POLL, ("poll_schedule", "do_poll", "do_sys_poll", "do_select", "ep_poll", "schedule_hrtimeout")),
    (CHILD, ("do_wait", "kernel_wait4", "kernel_clone", "_do_fork")),  # the latter two until what vfork began runs a program
)  # fmt: skip


KindOf = Callable[[str, "int | None", "int | None", "str | None"], str]
"""state, system call, its argument, wchan -> one of this module's words"""


@lru_cache
def kinds(machine: str) -> KindOf:
    """What a sample of /proc tells on such a machine (``uname -m``; "" is this one): the numbers of system calls are its own.

    ``queue`` is a poll with torch's 5 s: of a worker, no work is left to do; of a trainer, no batch is there.
    """
    by_kind, polls = _MACHINES.get(machine or platform.machine(), ({}, ()))
    by_number = {number: kind for kind, numbers in by_kind.items() for number in numbers}
    write = _WRITE.get(machine or platform.machine())

    @lru_cache(4096)
    def kind_of(state: str, call: int | None, argument: int | None, wchan: str | None) -> str:
        if state == "R":
            return ONCPU
        if state in "TtZX":
            return STOPPED
        by_name = _kind_of_name(wchan)
        if state == "D":
            told = by_name if by_name != UNKNOWN or call is None else by_number.get(call, UNKNOWN)
            return told if told in (NETWORK, CHILD) else DISK
        if call is None:
            return by_name
        if call < 0:
            return ONCPU
        if call in polls:
            return QUEUE if argument == TORCH_POLL_MS else POLL
        kind = by_number.get(call, UNKNOWN)
        if call == write and argument in _OUTPUT and wchan == _WOKEN:
            return PIPE
        if kind == DISK and by_name == PIPE:
            return PIPE  # to open a named one waits for who opens its other end
        return by_name if kind in (PIPE, NETWORK, UNKNOWN) and by_name in (NETWORK, DISK, PIPE) else kind

    return kind_of


def is_accepting(wchan: str | None) -> bool:
    """Whether it waits for anybody who comes, not for whom it asked."""
    return wchan is not None and wchan.startswith(("inet_csk_accept", "unix_accept", "__skb_wait_for_more_packets"))


def is_ahead(wchan: str | None) -> bool:
    """Whether it waits until somebody reads what it has written."""
    return wchan is not None and (wchan.endswith("pipe_write") or wchan.startswith(_UNSENT))


def is_unread(wchan: str | None) -> bool:
    """The same of who was met at a pipe or at its output, which may be a terminal."""
    return is_ahead(wchan) or wchan == _WOKEN


def is_unheard(machine: str, syscall: int | None, descriptor: int | None, wchan: str | None) -> bool:
    """Whether it cannot write its output, for nobody reads the pipe that it goes to, or the terminal takes no more."""
    return syscall == _WRITE.get(machine or platform.machine()) and descriptor in _OUTPUT and is_unread(wchan)


def is_mute(machine: str, syscall: int | None, descriptor: int | None, wchan: str | None) -> bool:
    """Whether it cannot write its errors, for nobody reads the pipe that they go to: unlike standard output, it is nobody's input."""
    return syscall == _WRITE.get(machine or platform.machine()) and descriptor == STDERR and is_ahead(wchan)


def _kind_of_name(wchan: str | None) -> str:
    if not wchan or wchan == "0":
        return UNKNOWN
    return next((kind for kind, beginnings in _WCHAN if wchan.startswith(beginnings)), UNKNOWN)
