"""Changes of an experiment: one setting of one thread, process or control group file, with its value before.

A process that reuses a pid is not changed: a pidfd is opened first, then its start time is compared. The kernel has no call
that takes a pidfd for priorities and masks, so for the few microseconds up to the call by pid a reuse cannot be excluded.
Imports little, for the guardian does all its work with this module.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from msgspec import Struct

from gputop.prove.processes import GONE, pidfd_of, read_process, read_thread

IDLE = f"{os.SCHED_IDLE} 0"  # value of the setting ``policy``
DEADLINE = 6  # SCHED_DEADLINE (linux/sched.h): its parameters are not ours to set
STOPPED, RUNNING = "stopped", "running"  # values of the setting ``state``
AGAIN_S, ASK_S = 1.0, 0.05  # s that a write to autogroup is repeated, and between two tries: the kernel takes one each 0.1 s without root
NAMED = 3  # processes that are named in a line, the others are counted
FILE_BYTES = 4096  # most bytes of a control group's file: one line, or one for each device
PAGE_BYTES = os.sysconf("SC_PAGESIZE")
CONTROL_GROUPS = (0x27E0EB, 0x63677270)  # CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC (linux/magic.h), as from statfs(2)
PROC = (0x9FA0,)  # PROC_SUPER_MAGIC
FILES = frozenset({
    "cpu.max", "cpu.weight", "cpu.cfs_quota_us", "cpu.shares", "memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "memory.max",
    "memory.high", "io.max", *(f"blkio.throttle.{way}_{unit}_device" for way in ("read", "write") for unit in ("bps", "iops")),
})  # fmt: skip
"""Files of a control group that are written; no other is, whatever a journal names (cgroup.procs, cgroup.kill, release_agent …)."""


class TargetProcess(Struct, frozen=True):
    """A process: its pid and start time name it for ever. ``name`` is cleaned (`gputop.system.text.clean`)."""

    pid: int
    start_ticks: int
    name: str
    stands_for: str = ""  # the culprits that the diagnosis named, where this is what started them

    def __str__(self) -> str:
        return f"{self.stands_for} and the rest of {self.name} ({self.pid})" if self.stands_for else f"{self.name} ({self.pid})"


def named(targets: Sequence[TargetProcess]) -> str:
    """``make (12), xz (13), gzip (14) and 2 more``."""
    more = len(targets) - NAMED
    return ", ".join(map(str, targets[:NAMED])) + (f" and {more} more" if more > 0 else "")


class Case(Struct, frozen=True):
    """The claim to prove: a cause, the trainer and its workers, victims and culprits."""

    cause: str  # a word of `gputop.findings.verdict.CAUSES`
    trainer: TargetProcess
    family: tuple[TargetProcess, ...]  # the trainer and its workers
    victims: tuple[TargetProcess, ...]
    culprits: tuple[TargetProcess, ...]
    near_cpus: frozenset[int] = frozenset()  # of the NUMA nodes to which its GPUs are attached; empty if unknown


class Change(Struct, frozen=True):
    """A setting to be changed: of ``target``, its threads and what descends from it, or of the file at ``path``."""

    setting: str  # a key of `SETTINGS`
    new: str
    target: TargetProcess | None = None
    path: str = ""  # of a control group's file


class Reached(Struct, frozen=True):
    """A process that the changes reach: its own setting is changed, or that of a control group or session that it is in."""

    target: TargetProcess
    user: str  # name, or uid where it has none
    reason: str  # ``idle priority``, ``in cgroup /a/b: cpu.max``
    is_other: bool  # of another user
    is_job: bool  # of the job that is tried
    cpu: float | None = None  # CPUs that it used while it was observed; None: it began or ended then


class Plan(Struct, frozen=True):
    """An experiment that is possible here."""

    intervention: str  # name of an `Intervention`
    says: str  # ``fluent-bit (903) to idle priority``
    changes: tuple[Change, ...]
    may_keep: bool
    pulse_s: float | None = None  # s that it may be on at a stretch; None: as long as it takes
    others: tuple[TargetProcess, ...] = ()  # processes of other users in it: ask, and name them, before it begins
    reached: tuple[Reached, ...] = ()  # all processes that the changes reach, other users' first


class Refusal(Struct, frozen=True):
    """Why there is no experiment, and what to do instead, in one line."""

    reason: str


class Record(Struct, frozen=True):
    """One thread, process or file, and its value before the experiment. A process setting has ``tid`` = ``pid``."""

    setting: str
    new: str  # to be set; once that is done, as it reads then
    old: str
    pid: int = 0
    start_ticks: int = 0
    tid: int = 0
    tid_ticks: int = 0  # start time of the thread
    group: int = 0
    session: int = 0
    path: str = ""
    inode: int = 0  # of the file's folder: a control group made again under the same name is another one

    @property
    def subject(self) -> tuple[str, int, int, str]:
        """Key of what the value belongs to; a new control group under an old name is another one."""
        where = f"{self.path} {self.inode}" if self.setting in (FILE, DEVICE) else self.path
        return self.setting, self.tid, self.tid_ticks, f"{where} {_device(self)}" if self.setting == DEVICE else where


class Setting(Struct, frozen=True):
    """Functions that read and write a setting. Both get the id of a thread (of the process, if threads share it); they raise OSError."""

    read: Callable[[int], str]
    write: Callable[[int, str], None] | None  # None: by a signal
    each_thread: bool


def _read_policy(tid: int) -> str:
    return f"{os.sched_getscheduler(tid)} {os.sched_getparam(tid).sched_priority}"


def _write_policy(tid: int, value: str) -> None:
    """SCHED_IDLE keeps SCHED_RESET_ON_FORK, which only root could set again."""
    policy, priority = map(int, value.split())
    if value == IDLE:
        policy |= os.sched_getscheduler(tid) & os.SCHED_RESET_ON_FORK
    os.sched_setscheduler(tid, policy, os.sched_param(priority))


def _read_nice(tid: int) -> str:
    return str(os.getpriority(os.PRIO_PROCESS, tid))


def _write_nice(tid: int, value: str) -> None:
    os.setpriority(os.PRIO_PROCESS, tid, int(value))


def _read_mask(tid: int) -> str:
    return ",".join(map(str, sorted(os.sched_getaffinity(tid))))


def _write_mask(tid: int, value: str) -> None:
    os.sched_setaffinity(tid, set(map(int, value.split(","))))


def _read_io_priority(tid: int) -> str:
    """ioprio_get(2) by psutil, which takes the id of a thread, too: class and level."""
    import psutil

    with _as_os_errors():
        found = psutil.Process(tid).ionice()
        return f"{int(found.ioclass)} {found.value}"


def _write_io_priority(tid: int, value: str) -> None:
    """Class 0 (none) and class 3 (idle) have no level; kernels before 5.18 report one for class 0."""
    import psutil

    io_class, level = map(int, value.split())
    with _as_os_errors():
        psutil.Process(tid).ionice(io_class, level if io_class in (1, 2) else None)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    import psutil

    try:
        yield
    except psutil.NoSuchProcess as error:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from error
    except psutil.AccessDenied as error:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM)) from error


def autogroup_of(pid: int) -> tuple[str, int]:
    """Name and niceness of the session's CPU group: ``/autogroup-25 nice 0`` (sched(7)). Raises OSError.

    The name is empty in the session that the kernel booted with (init's, as in a small virtual machine): it has no group of its own.
    """
    with open(f"/proc/{pid}/autogroup", encoding="ascii") as file:
        words = file.read().split()
    return (words[0], int(words[2])) if len(words) == 3 else ("", 0)


def _read_autogroup(pid: int) -> str:
    return str(autogroup_of(pid)[1])


def _write_autogroup(pid: int, value: str) -> None:
    until = time.monotonic() + AGAIN_S
    while not _is_written(f"/proc/{pid}/autogroup", value):
        if time.monotonic() > until:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        time.sleep(ASK_S)


def _is_written(path: str, value: str) -> bool:
    with _checked(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC), PROC) as descriptor:
        try:
            os.write(descriptor, value.encode())
        except BlockingIOError:
            return False
    return True


@contextmanager
def _checked(descriptor: int, kinds: tuple[int, ...]) -> Iterator[int]:
    """Yield the descriptor and close it afterwards. Raises OSError if its file system is of no such kind: nothing else is written."""
    try:
        if kind_of(descriptor) not in kinds:
            raise OSError(errno.EPERM, "it is no setting of the kernel: neither in a control group's file system nor in /proc")
        yield descriptor
    finally:
        os.close(descriptor)


def kind_of(descriptor: int) -> int:
    """The kind of the file system that an open file is in (fstatfs(2), f_type). Raises OSError."""
    found = ctypes.create_string_buffer(1024)  # struct statfs has 120 bytes
    if _libc.fstatfs(descriptor, found) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(struct.unpack_from("=I", found)[0])


_libc = ctypes.CDLL(None, use_errno=True)


def _read_state(pid: int) -> str:
    return STOPPED if read_process(pid).state == "T" else RUNNING


SETTINGS = {
    "policy": Setting(_read_policy, _write_policy, True),
    "nice": Setting(_read_nice, _write_nice, True),
    "io-priority": Setting(_read_io_priority, _write_io_priority, True),
    "cpu-mask": Setting(_read_mask, _write_mask, True),
    "autogroup": Setting(_read_autogroup, _write_autogroup, False),
    "state": Setting(_read_state, None, False),
}
FILE, DEVICE = "file", "device"  # settings of a control group's file: its text; its line for one disk, whose value begins ``8:0 ``
NO_LIMIT = {"io.max": "rbps=max wbps=max riops=max wiops=max"}  # file -> what a disk without a line has; in v1 files 0


@contextmanager
def held(pid: int, start_ticks: int) -> Iterator[int | None]:
    """A pidfd of this very process; None if the kernel or a sandbox has none. Raises ProcessLookupError if it ended or the pid was
    reused."""
    descriptor = pidfd_of(pid)
    try:
        proc = read_process(pid)
        if proc.start_ticks != start_ticks or proc.ended:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def read_value(record: Record) -> str:
    """The value now. Raises ProcessLookupError if the thread or process has ended, FileNotFoundError for a control group, OSError."""
    if record.setting in (FILE, DEVICE):
        return _read_file(record)
    with held(record.pid, record.start_ticks):
        _check_thread(record)
        return SETTINGS[record.setting].read(record.tid)


def write_value(record: Record, value: str) -> None:
    """Set the value; same errors."""
    if record.setting in (FILE, DEVICE):
        _write_file(record, value)
        return
    write = SETTINGS[record.setting].write
    if write is None:
        send_signal_to(record.pid, record.start_ticks, signal.SIGSTOP if value == STOPPED else signal.SIGCONT)
        return
    with held(record.pid, record.start_ticks):
        _check_thread(record)
        write(record.tid, value)


def is_new(record: Record, value: str) -> bool:
    """True if the kernel reports the experiment's value; a thread may have it from its parent."""
    if record.setting == "policy":
        policy, priority = value.split()
        return f"{int(policy) & ~os.SCHED_RESET_ON_FORK} {priority}" == record.new
    return value == record.new or _reads_as(record, value)


def _reads_as(record: Record, value: str) -> bool:
    """True if the kernel writes a file's new text as ``value``: limits in whole pages, all limits of a disk."""
    if record.setting == DEVICE:
        return set(record.new.split()) <= set(value.split())
    if record.setting == FILE and os.path.basename(record.path).startswith("memory.") and value.isdecimal() and record.new.isdecimal():
        return int(value) // PAGE_BYTES == int(record.new) // PAGE_BYTES
    return False


def send_signal_to(pid: int, start_ticks: int, number: signal.Signals) -> None:
    """Signal this very process. Raises ProcessLookupError, PermissionError."""
    with held(pid, start_ticks) as descriptor:
        if descriptor is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)


BACK, GONE_BY_NOW, THEIRS = "put back", "gone", "theirs"  # what `restore` tells


def restore(record: Record) -> str:
    """Put the old value back, and read it. Raises OSError if that fails, also if another value is read afterwards.

    `BACK`: the subject has the old value. `GONE_BY_NOW`: the subject has ended. `THEIRS`: the value is neither the old one nor the
    experiment's, so another program has changed it since, and it is left as it is.
    """
    try:
        value = read_value(record)
        if value == record.old:
            return BACK
        if not is_new(record, value):
            return THEIRS
        write_value(record, record.old)
        value = read_value(record)
    except (ProcessLookupError, FileNotFoundError):
        return _restore_session(record) if record.setting == "autogroup" else GONE_BY_NOW
    except OSError as error:
        if error.errno == errno.ENODEV:  # a control group that was removed since
            return GONE_BY_NOW
        raise
    if value != record.old:
        raise OSError(errno.EIO, f"it reads {value} after that")
    return BACK


def _restore_session(record: Record) -> str:
    """Restore a session's nice value by way of another of its processes, because the one in the record has ended or left the session."""
    refused = None
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            found = autogroup_of(int(name))
            if found[0] != record.path:
                continue
            if str(found[1]) not in (record.new, record.old):
                return THEIRS
            if str(found[1]) == record.new:
                _write_autogroup(int(name), record.old)
            if autogroup_of(int(name)) == (record.path, int(record.old)):
                return BACK
        except GONE as error:
            refused = error if isinstance(error, PermissionError) else refused  # of another user
    if refused is not None:
        raise refused
    return GONE_BY_NOW


def _check_thread(record: Record) -> None:
    """Raises ProcessLookupError if it is another thread, or another session."""
    if record.setting == "autogroup" and autogroup_of(record.tid)[0] != record.path:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    if record.tid != record.pid and read_thread(record.pid, record.tid).start_ticks != record.tid_ticks:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))


def folder_inode(path: str) -> int:
    """Inode of the control group's folder that a file belongs to. Raises FileNotFoundError."""
    return os.stat(os.path.dirname(path), follow_symlinks=False).st_ino


def _device(record: Record) -> str:
    """``MAJOR:MINOR`` of the disk."""
    return record.new.partition(" ")[0]


def _read_file(record: Record) -> str:
    with _opened(record, os.path.basename(record.path), os.O_RDONLY) as descriptor:
        text = os.read(descriptor, FILE_BYTES).decode("ascii", "replace").strip()
    if record.setting == FILE:
        return text
    device = _device(record)
    unlimited = f"{device} {NO_LIMIT.get(os.path.basename(record.path), '0')}"
    return next((line for line in text.splitlines() if line.startswith(f"{device} ")), unlimited)


def _write_file(record: Record, value: str) -> None:
    name = os.path.basename(record.path)
    if name == "memory.max" and value.isdecimal():
        _make_room(record, int(value))
    with _opened(record, name, os.O_WRONLY) as descriptor:
        os.write(descriptor, value.encode())


def _make_room(record: Record, limit_bytes: int) -> None:
    """Have the kernel take pages from the group (memory.reclaim, since Linux 5.19): with a memory.max below what it holds it would kill.

    Raises OSError if the group still holds more.
    """
    if (more := _held_bytes(record) - limit_bytes) > 0:
        with suppress(OSError), _opened(record, "memory.reclaim", os.O_WRONLY) as descriptor:
            os.write(descriptor, str(more).encode())
        if _held_bytes(record) > limit_bytes:
            raise OSError(errno.EBUSY, "the group holds more than that by now, and the kernel would kill")


def _held_bytes(record: Record) -> int:
    with _opened(record, "memory.current", os.O_RDONLY) as descriptor:
        return int(os.read(descriptor, FILE_BYTES))


@contextmanager
def _opened(record: Record, name: str, flags: int) -> Iterator[int]:
    """Open a file of exactly this control group: no link leads out of its file system, and only `FILES` are allowed."""
    if os.path.basename(record.path) not in FILES:
        raise OSError(errno.EPERM, "no setting that an experiment changes")
    folder = os.open(os.path.dirname(record.path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with _checked(folder, CONTROL_GROUPS):
        if record.inode and os.fstat(folder).st_ino != record.inode:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        with _checked(os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder), CONTROL_GROUPS) as descriptor:
            yield descriptor
