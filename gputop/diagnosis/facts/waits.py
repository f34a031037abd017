"""Kind of wait of a sleeping thread, from one sample of /proc: state, system call, one argument, wchan.

System calls are matched first (their numbers never change), kernel function names second (they do). Where neither can be
read (another user's process, or yama's ptrace_scope) the answer is ``unknown``, not a guess.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from gputop.model.syscalls import FUSE_SERVING, syscall_names, syscall_numbers

TORCH_POLL_MS = 5000
"""MP_STATUS_CHECK_INTERVAL of torch/utils/data/_utils: the time limit with which an idle worker polls its index queue and a waiting trainer
the data queue."""
TORCH_POLL_LESS_MS = 200
"""Possible reduction: the rest once the queue's lock is held, which takes a while if CPUs are short (guess)."""

QUEUE, LOCK, NETWORK, PIPE, TIMER, DISK, POLL, CHILD, DRIVER, UNKNOWN, STOPPED, ONCPU = (
    "queue", "lock", "network", "pipe", "timer", "disk", "poll", "child", "driver", "unknown", "stopped", "on-cpu",
)  # fmt: skip
OUTPUT = "output"  # of a server: until its log is read (`kinds_of_server`)
GPU_LIKE = (DRIVER, TIMER, POLL, UNKNOWN, LOCK)  # kinds of wait that a sample may show for a main thread that waits for its GPU

STOPPED_STATES = "Tt"  # of /proc/PID/stat: by a signal, or by a debugger
ENDED_STATES = "ZX"  # a dead process that its parent has not reaped, and one that is being removed

_CALLS = {
    LOCK: "futex futex_waitv flock fcntl semop semtimedop",
    NETWORK: "recvfrom recvmsg recvmmsg sendto sendmsg connect",
    PIPE: "read write readv writev",
    TIMER: "nanosleep clock_nanosleep pause",
    DISK: (
        "pread64 pwrite64 preadv pwritev preadv2 pwritev2 fsync fdatasync sync open openat stat fstat lstat newfstatat statx getdents64 "
        "sendfile copy_file_range readahead rename renameat renameat2 mkdir mkdirat unlink unlinkat mmap munmap mprotect msync brk "
        "io_getevents io_pgetevents io_uring_enter"
    ),
    POLL: "poll ppoll select pselect6 epoll_wait epoll_pwait epoll_pwait2 accept accept4",
    CHILD: "wait4 waitid clone vfork clone3",
    DRIVER: "ioctl",
}  # fmt: skip
_KIND_OF_CALL = {name: kind for kind, names in _CALLS.items() for name in names.split()}

STDERR = 2
_OUTPUT = (1, STDERR)
_WOKEN = "wait_woken"  # wait for a socket, or for a terminal that accepts no more output

_UNSENT = ("sock_alloc_send", "sock_wait_for_wmem")  # where a UNIX socket's writer waits for its reader (net/core/sock.c)

_REMOTE_FILES = ("rpc_", "nfs", "request_wait_answer", "fuse_", "ceph_", "ptlrpc", "smb", "cifs")
# Beginnings of kernel function names, from 5.15 to 6.18. Accepting waits for any client, as polls do. The network's and the disk's
# come early: they decide what a plain read waits for.
_WCHAN = (
    (POLL, ("inet_csk_accept", "unix_accept", FUSE_SERVING)),
    (NETWORK, ("sk_wait", "wait_woken", "tcp_", "inet_", *_REMOTE_FILES)),
    (DISK, ("folio_wait", "wait_on_page", "io_schedule", "blk_", "submit_bio", "__iomap", "filemap_", "jbd2_", "ext4_", "xfs_", "btrfs_",
            "bit_wait_io", "wait_on_buffer", "__wait_on_buffer", "rq_qos_wait", "wbt_wait", "balance_dirty", "xlog_", "do_writepages",
            "read_events", "io_cqring_wait")),
    (PIPE, ("pipe_", "anon_pipe_", "fifo_open", "wait_for_partner", "unix_stream", "unix_dgram", "unix_wait", *_UNSENT)),
    (LOCK, ("futex_", "do_futex", "flock_lock", "fcntl_setlk", "locks_", "do_sem", "rwsem_", "__mutex", "mutex_")),
    (TIMER, ("hrtimer_nanosleep", "do_nanosleep", "common_nsleep")),
    (POLL, ("poll_schedule", "do_poll", "do_sys_poll", "do_select", "ep_poll", "schedule_hrtimeout")),
    (CHILD, ("do_wait", "kernel_wait4", "kernel_clone", "_do_fork")),  # the latter two until the child of vfork runs a program
)  # fmt: skip


KindOf = Callable[[str, "int | None", "int | None", "str | None"], str]
"""(state, system call, its argument, wchan) -> one of this module's words"""


@lru_cache
def kinds(machine: str) -> KindOf:
    """The function that names a sample's kind of wait on such a machine (``uname -m``; "" is this one): numbers of system calls differ.

    ``queue`` is a poll with torch's 5 s: a worker has no work left, or a trainer has no batch.
    """
    by_number = {number: _KIND_OF_CALL[name] for number, name in syscall_names(machine).items() if name in _KIND_OF_CALL}
    polls, writes = syscall_numbers("poll", "ppoll", machine=machine), syscall_numbers("write", machine=machine)

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
            return QUEUE if is_torch_poll(argument or 0.0) else POLL
        kind = by_number.get(call, UNKNOWN)
        if call in writes and argument in _OUTPUT and wchan == _WOKEN:
            return PIPE
        if kind == DISK and by_name == PIPE:
            return PIPE  # opening a named pipe waits for the process that opens its other end
        if kind == DISK and is_remote_file(wchan):
            return NETWORK
        return by_name if kind in (PIPE, NETWORK, UNKNOWN) and by_name in (NETWORK, DISK, PIPE) else kind

    return kind_of


@lru_cache
def kinds_of_server(machine: str) -> KindOf:
    """Like `kinds`, for a process that serves over sockets: what it writes to its standard output or errors is no answer, but its log."""
    plain = kinds(machine)

    def kind_of(state: str, call: int | None, argument: int | None, wchan: str | None) -> str:
        return OUTPUT if state == "S" and is_unheard(machine, call, argument, wchan) else plain(state, call, argument, wchan)

    return kind_of


@lru_cache(512)
def is_remote_file(wchan: str | None) -> bool:
    """True if the thread waits for a file system that another host or another process serves (NFS, FUSE, Lustre …)."""
    return wchan is not None and wchan.startswith(_REMOTE_FILES) and not wchan.startswith(FUSE_SERVING)


def is_torch_poll(limit_ms: float) -> bool:
    """True if a poll with this time limit is torch's of a queue."""
    return TORCH_POLL_MS - TORCH_POLL_LESS_MS < limit_ms <= TORCH_POLL_MS


def is_by_timer(machine: str, state: str, call: int | None, argument: int | None, wchan: str | None) -> bool:
    """True if the thread sleeps by a timer: a sleep, or a poll with a time limit."""
    kind = kinds(machine)(state, call, argument, wchan)
    return kind == TIMER or (kind == POLL and call in syscall_numbers("poll", "ppoll", machine=machine) and (argument or 0) > 0)


@lru_cache(512)
def is_accepting(wchan: str | None) -> bool:
    """True if the thread waits for any client, not for an answer to a request of its own."""
    return wchan is not None and wchan.startswith(("inet_csk_accept", "unix_accept", "__skb_wait_for_more_packets"))


@lru_cache(512)
def is_ahead(wchan: str | None) -> bool:
    """True if the thread waits until another process reads what it has written."""
    return wchan is not None and (wchan.endswith("pipe_write") or wchan.startswith(_UNSENT))


def is_unread(wchan: str | None) -> bool:
    """Like `is_ahead`, for a thread met at a pipe or at its output, which may be a terminal."""
    return is_ahead(wchan) or wchan == _WOKEN


def is_unheard(machine: str, syscall: int | None, descriptor: int | None, wchan: str | None) -> bool:
    """True if the thread cannot write its output: no process reads the pipe, or the terminal accepts no more."""
    return syscall in syscall_numbers("write", machine=machine) and descriptor in _OUTPUT and is_unread(wchan)


def is_mute(machine: str, syscall: int | None, descriptor: int | None, wchan: str | None) -> bool:
    """True if the thread cannot write its errors, because no process reads the pipe. (Standard output may be another process's input;
    errors never are.)"""
    return syscall in syscall_numbers("write", machine=machine) and descriptor == STDERR and is_ahead(wchan)


def _kind_of_name(wchan: str | None) -> str:
    if not wchan or wchan == "0":
        return UNKNOWN
    return next((kind for kind, beginnings in _WCHAN if wchan.startswith(beginnings)), UNKNOWN)
