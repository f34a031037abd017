"""One thread as the kernel shows it: state, system call, wait channel, kernel stack, and its wait in words.

Sources: /proc/PID/task/TID/{comm,stat,syscall,wchan,stack}, /proc/PID/{fd,fdinfo} and /proc/PID/mountinfo. Nothing here opens a file that
the process uses, so a dead network mount cannot hang the reader. System calls are named by the kernel's uapi headers, to Linux 6.17, for
x86_64 and aarch64.
"""

from __future__ import annotations

import os
import platform
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

_X86_64 = """
0: read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn ioctl pread64
  pwrite64 readv writev access pipe select sched_yield mremap msync mincore madvise shmget shmat shmctl dup dup2 pause nanosleep getitimer
  alarm setitimer getpid sendfile socket connect accept sendto recvfrom sendmsg recvmsg shutdown bind listen getsockname getpeername
  socketpair setsockopt getsockopt clone fork vfork execve exit wait4 kill uname semget semop semctl shmdt msgget msgsnd msgrcv msgctl
  fcntl flock fsync fdatasync truncate ftruncate getdents getcwd chdir fchdir rename mkdir rmdir creat link unlink symlink readlink chmod
  fchmod chown fchown lchown umask gettimeofday getrlimit getrusage sysinfo times ptrace getuid syslog getgid setuid setgid geteuid
  getegid setpgid getppid getpgrp setsid setreuid setregid getgroups setgroups setresuid getresuid setresgid getresgid getpgid setfsuid
  setfsgid getsid capget capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend sigaltstack utime mknod uselib personality
  ustat statfs fstatfs sysfs getpriority setpriority sched_setparam sched_getparam sched_setscheduler sched_getscheduler
  sched_get_priority_max sched_get_priority_min sched_rr_get_interval mlock munlock mlockall munlockall vhangup modify_ldt pivot_root
  _sysctl prctl arch_prctl adjtimex setrlimit chroot sync acct settimeofday mount umount2 swapon swapoff reboot sethostname setdomainname
  iopl ioperm create_module init_module delete_module get_kernel_syms query_module quotactl nfsservctl getpmsg putpmsg afs_syscall tuxcall
  security gettid readahead setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr
  lremovexattr fremovexattr tkill time futex sched_setaffinity sched_getaffinity set_thread_area io_setup io_destroy io_getevents
  io_submit io_cancel get_thread_area lookup_dcookie epoll_create epoll_ctl_old epoll_wait_old remap_file_pages getdents64 set_tid_address
  restart_syscall semtimedop fadvise64 timer_create timer_settime timer_gettime timer_getoverrun timer_delete clock_settime clock_gettime
  clock_getres clock_nanosleep exit_group epoll_wait epoll_ctl tgkill utimes vserver mbind set_mempolicy get_mempolicy mq_open mq_unlink
  mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load waitid add_key request_key keyctl ioprio_set ioprio_get inotify_init
  inotify_add_watch inotify_rm_watch migrate_pages openat mkdirat mknodat fchownat futimesat newfstatat unlinkat renameat linkat symlinkat
  readlinkat fchmodat faccessat pselect6 ppoll unshare set_robust_list get_robust_list splice tee sync_file_range vmsplice move_pages
  utimensat epoll_pwait signalfd timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4 signalfd4 eventfd2 epoll_create1
  dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg fanotify_init fanotify_mark prlimit64
  name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg setns getcpu process_vm_readv process_vm_writev kcmp finit_module
  sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create kexec_file_load bpf execveat userfaultfd membarrier mlock2
  copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq
"""

_AARCH64 = """
0: io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr
  flistxattr removexattr lremovexattr fremovexattr getcwd lookup_dcookie eventfd2 epoll_create1 epoll_ctl epoll_pwait dup dup3 fcntl
  inotify_init1 inotify_add_watch inotify_rm_watch ioctl ioprio_set ioprio_get flock mknodat mkdirat unlinkat symlinkat linkat renameat
  umount2 mount pivot_root nfsservctl statfs fstatfs truncate ftruncate fallocate faccessat chdir fchdir chroot fchmod fchmodat fchownat
  fchown openat close vhangup pipe2 quotactl getdents64 lseek read write readv writev pread64 pwrite64 preadv pwritev sendfile pselect6
  ppoll signalfd4 vmsplice splice tee readlinkat newfstatat fstat sync fsync fdatasync sync_file_range timerfd_create timerfd_settime
  timerfd_gettime utimensat acct capget capset personality exit exit_group waitid set_tid_address unshare futex set_robust_list
  get_robust_list nanosleep getitimer setitimer kexec_load init_module delete_module timer_create timer_gettime timer_getoverrun
  timer_settime timer_delete clock_settime clock_gettime clock_getres clock_nanosleep syslog ptrace sched_setparam sched_setscheduler
  sched_getscheduler sched_getparam sched_setaffinity sched_getaffinity sched_yield sched_get_priority_max sched_get_priority_min
  sched_rr_get_interval restart_syscall kill tkill tgkill sigaltstack rt_sigsuspend rt_sigaction rt_sigprocmask rt_sigpending
  rt_sigtimedwait rt_sigqueueinfo rt_sigreturn setpriority getpriority reboot setregid setgid setreuid setuid setresuid getresuid
  setresgid getresgid setfsuid setfsgid times setpgid getpgid getsid setsid getgroups setgroups uname sethostname setdomainname getrlimit
  setrlimit getrusage umask prctl getcpu gettimeofday settimeofday adjtimex getpid getppid getuid geteuid getgid getegid gettid sysinfo
  mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr msgget msgctl msgrcv msgsnd semget semctl semtimedop semop shmget
  shmctl shmat shmdt socket socketpair bind listen accept connect getsockname getpeername sendto recvfrom setsockopt getsockopt shutdown
  sendmsg recvmsg readahead brk munmap mremap add_key request_key keyctl clone execve mmap fadvise64 swapon swapoff mprotect msync mlock
  munlock mlockall munlockall mincore madvise remap_file_pages mbind get_mempolicy set_mempolicy migrate_pages move_pages
  rt_tgsigqueueinfo perf_event_open accept4 recvmmsg
260: wait4 prlimit64 fanotify_init fanotify_mark name_to_handle_at open_by_handle_at clock_adjtime syncfs setns sendmmsg process_vm_readv
  process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create bpf execveat userfaultfd
  membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq kexec_file_load
"""

# The numbers from 424 on are the same on both.
_COMMON = """
424: pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount fspick pidfd_open
  clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2 mount_setattr quotactl_fd landlock_create_ruleset
  landlock_add_rule landlock_restrict_self memfd_secret process_mrelease futex_waitv set_mempolicy_home_node cachestat fchmodat2
  map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal
  setxattrat getxattrat listxattrat removexattrat open_tree_attr file_getattr file_setattr
"""


def _parse(text: str) -> dict[int, str]:
    names: dict[int, str] = {}
    number = 0
    for word in text.split():
        if word.endswith(":"):
            number = int(word[:-1])
        else:
            names[number] = word
            number += 1
    return names


@lru_cache(2)
def syscall_names(machine: str) -> dict[int, str]:
    """System call number -> name for ``machine`` (``uname -m``; "": this machine); empty for an unknown one."""
    first = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(machine or platform.machine())
    return _parse(first + _COMMON) if first else {}


_NAMES = syscall_names("")


_BOUND = 1 << 20  # bytes read of a file of /proc
MAX_KERNEL_FRAMES = 64  # of a thread, the innermost
_PF_KTHREAD = 0x00200000  # flag in /proc/PID/stat field 9 (linux/sched.h)

# State of a thread that neither runs nor sleeps -> words.
STATES = {"T": "stopped (SIGSTOP or job control): `kill -CONT {pid}` lets it go on", "t": "stopped by a debugger",
          "Z": "zombie: it ended and its parent has not reaped it", "X": "dead"}  # fmt: skip

# System calls whose first argument is the descriptor that they wait on.
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


class Gone(Exception):
    """The thread ended before or while it was read."""


@dataclass(frozen=True, slots=True)
class KernelView:
    """One thread as the kernel shows it. ``missing``: part (``syscall``, ``wchan``, ``stack``) -> why it cannot be read."""

    tid: int
    comm: str
    state: str
    syscall: str = ""
    args: tuple[int, ...] = ()
    wchan: str = ""
    frames: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    kthread: bool = False  # a kernel thread, which has no user code


def read_file(path: str) -> str:
    """The first 1 MiB of a file. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        data = b""
        while len(data) < _BOUND and (part := os.read(descriptor, 65536)):  # /proc gives a page at a time
            data += part
        return data.decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def read_thread(pid: int, tid: int, root: str = "/") -> KernelView:
    """The thread as the kernel shows it now. Raises `Gone`."""
    base = os.path.join(root, "proc", str(pid), "task", str(tid))
    try:
        stat = read_file(f"{base}/stat")
    except OSError as error:
        raise Gone(str(error)) from error
    fields = stat[stat.rfind(")") + 2 :].split()
    missing: dict[str, str] = {}
    number, args = _parse_syscall(_try(f"{base}/syscall", "syscall", missing))
    kthread = bool(int(fields[6]) & _PF_KTHREAD)
    return KernelView(
        tid=tid,
        comm=stat[stat.find("(") + 1 : stat.rfind(")")],
        state=fields[0],
        kthread=kthread,
        syscall="" if kthread else _name(number),
        args=args,
        wchan=_wchan(_try(f"{base}/wchan", "wchan", missing)),
        frames=_parse_stack(_try(f"{base}/stack", "stack", missing)),
        missing=missing,
    )


def view_thread(pid: int, tid: int, root: str = "/") -> KernelView | None:
    """`read_thread`, None if the thread has ended."""
    try:
        return read_thread(pid, tid, root)
    except Gone:
        return None


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


def _name(number: int | None) -> str:
    return "" if number is None else _NAMES.get(number, f"syscall {number}")


def _wchan(text: str) -> str:
    """The content of /proc/…/wchan; empty for ``0``, which means "it runs" or "not permitted"."""
    return "" if text.strip() == "0" else _symbol(text)


def _symbol(text: str) -> str:
    """A kernel function's name without the compiler's suffix (``.isra.0``, ``.constprop.0``)."""
    return text.strip().partition(".")[0]


def _parse_stack(text: str) -> tuple[str, ...]:
    """Lines ``[<0>] folio_wait_bit_common+0x136/0x330`` -> function names, innermost first."""
    return in_kernel(line.rpartition("] ")[2].partition("+")[0] for line in text.splitlines())


def in_kernel(symbols: Iterable[str]) -> tuple[str, ...]:
    """Kernel functions for display: without the compiler's suffixes, without the entry into the kernel, and without bare addresses, which
    aarch64 finds on the stack of a running thread."""
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
    """The call and its timeout. aarch64 has only ppoll, whose timeout lies in the process's memory."""
    from gputop.sources import waits

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
    try:
        wanted = next(line.split()[1] for line in read_file(f"{base}/fdinfo/{number}").splitlines() if line.startswith("mnt_id:"))
        mounts = read_file(f"{base}/mountinfo").splitlines()
        fields = next(line.split() for line in mounts if line.split(" ", 1)[0] == wanted)
        return os.path.basename(fields[fields.index("-") + 2])
    except (OSError, StopIteration, IndexError, ValueError):
        return ""
